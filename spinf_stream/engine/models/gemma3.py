"""Gemma 3 text (model_type gemma3_text, and the text part of gemma3). Truth: transformers' modeling_gemma3.py.

Sandwich norms whose factor is 1 + weight, QK-norm, five sliding layers to one global, a rotary table a kind of layer.
"""

from __future__ import annotations

from spinf_stream.engine.models import rope
from spinf_stream.engine.models.errors import Unsupported
from spinf_stream.engine.models.fields import Fields
from spinf_stream.engine.stack import LayerSpec, StackSpec

NORM_OFFSET = 1.0  # checkpoints store the norm weight's distance from one
THETA = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}


def read(f: Fields) -> StackSpec:
    """The described model. Raises Unsupported naming the key."""
    f.only("hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    f.only("attention_bias", False, None)
    f.only("attn_logit_softcapping", None)
    f.only("use_bidirectional_attention", False, None)
    f.only("tie_word_embeddings", True, default=True)
    count = f.integer("num_hidden_layers", 26)
    pattern = f.integer("sliding_window_pattern", f.integer("_sliding_window_pattern", 6))
    kinds = f.layer_types(count, pattern)
    head_dim = f.integer("head_dim", 256)
    hidden = f.integer("hidden_size", 2304)
    window = f.integer("sliding_window", 4096) if "sliding_attention" in kinds else None
    order = ("sliding_attention", "full_attention")
    layers = tuple(
        LayerSpec(
            heads=f.integer("num_attention_heads", 8),
            kv_heads=f.integer("num_key_value_heads", 4),
            head_dim=head_dim,
            window=window if kind == "sliding_attention" else None,
            scale=f.number("query_pre_attn_scalar", 256) ** -0.5,
            rope=order.index(kind),
        )
        for kind in kinds
    )
    return StackSpec(
        family="gemma3",
        hidden=hidden,
        intermediate=f.integer("intermediate_size", 9216),
        vocab=f.integer("vocab_size", 262_208),
        eps=f.number("rms_norm_eps", 1e-6),
        embed_scale=hidden**0.5,
        softcap=f.number_or_none("final_logit_softcapping"),
        layers=layers,
        ropes=tuple(_rope(f, kind, head_dim) for kind in order),
        bos=f.token_ids("bos_token_id", 2),
        eos=f.token_ids("eos_token_id", 1),
    )


def _rope(f: Fields, kind: str, head_dim: int) -> tuple[float, ...]:
    """A table from `rope_parameters`, or from the older keys: rope_theta, rope_local_base_freq, rope_scaling.

    rope_scaling is of the global layers alone.
    """
    params = f.table_of("rope_parameters")
    if params and not set(params) <= set(THETA):
        raise Unsupported("config.json: rope_parameters must be by layer type (full_attention, sliding_attention)")
    if kind == "full_attention":
        theta = f.number("rope_theta", THETA[kind])
        return rope.table({**(params.get(kind) or {}), **f.table_of("rope_scaling")}, head_dim, theta)
    return rope.table(params.get(kind) or {}, head_dim, f.number("rope_local_base_freq", THETA[kind]))
