"""Gemma 4 text, dense (gemma4_text, gemma4_unified_text, the text part of gemma4 and gemma4_unified).

Truth: transformers' modeling_gemma4_unified.py. Beside Gemma 3: the norm weight is the factor itself, V-norm, no
1/sqrt(d), wider heads on global layers whose values may be the raw keys, partial rotary there, a scalar a layer.
Mixture of experts, shared keys and values, and per-layer embeddings (E2B, E4B, 26B-A4B) are refused.
"""

from __future__ import annotations

from spinf_stream.engine.models import rope
from spinf_stream.engine.models.errors import Unsupported
from spinf_stream.engine.models.fields import Fields
from spinf_stream.engine.stack import LayerSpec, StackSpec

NORM_OFFSET = 0.0
SLIDING, GLOBAL = "sliding_attention", "full_attention"
ROPES = {  # transformers' default when the config has no rope_parameters
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def read(f: Fields) -> StackSpec:
    """The described model. Raises Unsupported naming the key."""
    unified = str(f.get("model_type", "")).startswith("gemma4_unified")
    f.only("hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    f.only("attention_bias", False, None)
    f.only("use_bidirectional_attention", None, "vision")  # "vision" concerns image tokens alone
    f.only("tie_word_embeddings", True, default=True)
    f.only("num_kv_shared_layers", 0, None)
    f.only("use_double_wide_mlp", False, None)
    f.only("enable_moe_block", False, None)
    f.only("hidden_size_per_layer_input", 0, None, default=None if unified else 256)
    kinds = f.layer_types(f.integer("num_hidden_layers", 30), pattern=6)
    if kinds[-1] != GLOBAL:
        raise Unsupported("config.json: the last entry of layer_types must be full_attention")
    hidden = f.integer("hidden_size", 2304)
    k_eq_v = f.flag("attention_k_eq_v")
    window = f.integer("sliding_window", 1024 if unified else 512)
    order = (SLIDING, GLOBAL)
    layers = []
    for i, kind in enumerate(kinds):
        head_dim, kv_heads = _shape(f, i, kind, k_eq_v)
        layers.append(
            LayerSpec(
                heads=f.integer("num_attention_heads", 8),
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=window if kind == SLIDING else None,
                scale=1.0,
                rope=order.index(kind),
                k_eq_v=k_eq_v and kind == GLOBAL,
                v_norm=True,
            )
        )
    return StackSpec(
        family="gemma4",
        hidden=hidden,
        intermediate=f.integer("intermediate_size", 9216),
        vocab=f.integer("vocab_size", 262_144),
        eps=f.number("rms_norm_eps", 1e-6),
        embed_scale=hidden**0.5,
        softcap=f.number_or_none("final_logit_softcapping"),
        layers=tuple(layers),
        ropes=tuple(_rope(f, index, layers) for index in range(len(order))),
        bos=f.token_ids("bos_token_id", 2),
        eos=f.token_ids("eos_token_id", 1),
    )


def _shape(f: Fields, layer: int, kind: str, k_eq_v: bool) -> tuple[int, int]:
    """(head_dim, kv_heads) of a layer, from `per_layer_config` (transformers 5 writes it) or the global_* keys."""
    head_dim, kv_heads = f.integer("head_dim", 256), f.integer("num_key_value_heads", 4)
    by_layer = f.table_of("per_layer_config")
    if by_layer:
        own = Fields(Fields(by_layer).table_of(str(layer)))
        unknown = set(own.table) - {"head_dim", "num_key_value_heads"}
        if unknown or not all(k.isdecimal() for k in by_layer):
            raise Unsupported(f"config.json: per_layer_config of layer {layer} has {sorted(unknown)}, not supported")
        return own.integer("head_dim", head_dim), own.integer("num_key_value_heads", kv_heads)
    if kind == SLIDING:
        return head_dim, kv_heads
    if k_eq_v and f.get("num_global_key_value_heads") is not None:
        kv_heads = f.integer("num_global_key_value_heads")
    return f.integer("global_head_dim", 512), kv_heads


def _rope(f: Fields, index: int, layers: list[LayerSpec]) -> tuple[float, ...]:
    kind = (SLIDING, GLOBAL)[index]
    params = f.table_of("rope_parameters") or ROPES
    dims = {layer.head_dim for layer in layers if layer.rope == index}
    if not dims:
        return ()
    if len(dims) > 1:
        raise Unsupported(f"config.json: {kind} layers have heads of {sorted(dims)}, one rotary table needs one size")
    if kind not in params:
        raise Unsupported(f"config.json: rope_parameters has no entry for {kind}")
    return rope.table(params[kind], dims.pop(), ROPES[kind]["rope_theta"])  # type: ignore[arg-type]
