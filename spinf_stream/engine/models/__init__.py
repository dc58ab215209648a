"""Model families: from a checkpoint's config and tensor names to engine/stack.py's description.

    config.json --describe--> StackSpec --pieces--> the tensors it needs, by canonical name and checkpoint name

A family is one file with `read(fields) -> StackSpec` and NORM_OFFSET; the tensor names are the same in all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple

from spinf_stream.engine.models import gemma3, gemma4
from spinf_stream.engine.models.errors import ModelAway, ModelError, Unsupported
from spinf_stream.engine.models.fields import Fields
from spinf_stream.engine.stack import StackSpec

__all__ = ["ModelAway", "ModelError", "Piece", "Unsupported", "describe", "norm_offset", "pieces", "strip_prefix"]

log = logging.getLogger(__name__)

_FAMILIES: dict[str, ModuleType] = {
    "gemma3": gemma3,
    "gemma3_text": gemma3,
    "gemma4": gemma4,
    "gemma4_text": gemma4,
    "gemma4_unified": gemma4,
    "gemma4_unified_text": gemma4,
}
# where the text model's tensors start; the first that fits a name is cut off
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
# what a multimodal checkpoint holds beside its text model, and the tied head
_IGNORED = (
    "lm_head.", "language_model.lm_head.", "vision_tower.", "model.vision_tower.", "model.vision_embedder.",
    "multi_modal_projector.", "model.multi_modal_projector.", "model.embed_vision.", "model.embed_audio.",
    "model.audio_tower.", "audio_tower.", "embed_vision.", "embed_audio.",
)  # fmt: skip


class Piece(NamedTuple):
    """One tensor of the converted file: checkpoint tensors stacked along their rows."""

    name: str  # canonical, e.g. layers.0.qkv
    parts: tuple[str, ...]  # checkpoint names without prefix
    rows: tuple[int, ...]  # rows of each part; of a vector its length
    columns: int | None  # None = a vector
    kind: Literal["embed", "linear", "norm", "scalar"]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(self.rows),) if self.columns is None else (sum(self.rows), self.columns)


def describe(config: Mapping[str, Any]) -> StackSpec:
    """The text model of a config.json. Raises Unsupported, naming the key and what is possible."""
    kind = config.get("model_type")
    if kind not in _FAMILIES:
        raise Unsupported(f"config.json: model_type {kind!r} is not supported, only {', '.join(sorted(_FAMILIES))}")
    text = config.get("text_config")
    if text is None:
        return _read(kind, Fields(config))
    if not isinstance(text, Mapping):
        raise Unsupported("config.json: text_config must be a table")
    if "tie_word_embeddings" in config:
        text = {"tie_word_embeddings": config["tie_word_embeddings"], **text}
    inner = text.get("model_type", f"{kind}_text")
    if _FAMILIES.get(inner) is not _FAMILIES[kind]:
        raise Unsupported(f"config.json: a {kind} whose text_config is {inner!r} is not supported")
    return _read(inner, Fields({"model_type": inner, **text}, config))


def norm_offset(spec: StackSpec) -> float:
    """What is added to a checkpoint's norm weights to get the factor itself."""
    return float(_FAMILIES[spec.family].NORM_OFFSET)


def pieces(spec: StackSpec) -> list[Piece]:
    """Every tensor the model needs, large ones first (so that they stay aligned in the file)."""
    out = [Piece("embed", ("embed_tokens.weight",), (spec.vocab,), spec.hidden, "embed")]
    norms = [Piece("final_norm", ("norm.weight",), (spec.hidden,), None, "norm")]
    scalars = []
    for i, layer in enumerate(spec.layers):
        at, to = f"layers.{i}.", f"layers.{i}."
        q, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        names = ("q_proj", "k_proj") if layer.k_eq_v else ("q_proj", "k_proj", "v_proj")
        out += [
            Piece(to + "qkv", tuple(f"{at}self_attn.{n}.weight" for n in names), (q, kv, kv)[: len(names)], spec.hidden, "linear"),
            Piece(to + "o", (at + "self_attn.o_proj.weight",), (spec.hidden,), q, "linear"),
            Piece(
                to + "gate_up",
                (at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"),
                (spec.intermediate, spec.intermediate),
                spec.hidden,
                "linear",
            ),
            Piece(to + "down", (at + "mlp.down_proj.weight",), (spec.hidden,), spec.intermediate, "linear"),
        ]
        for ours, theirs in (
            ("attn_in", "input_layernorm"),
            ("attn_out", "post_attention_layernorm"),
            ("mlp_in", "pre_feedforward_layernorm"),
            ("mlp_out", "post_feedforward_layernorm"),
        ):
            norms.append(Piece(to + ours, (f"{at}{theirs}.weight",), (spec.hidden,), None, "norm"))
        norms.append(Piece(to + "q_norm", (at + "self_attn.q_norm.weight",), (layer.head_dim,), None, "norm"))
        norms.append(Piece(to + "k_norm", (at + "self_attn.k_norm.weight",), (layer.head_dim,), None, "norm"))
        if spec.family == "gemma4":
            scalars.append(Piece(to + "layer_scalar", (at + "layer_scalar",), (1,), None, "scalar"))
    return out + norms + scalars


def strip_prefix(name: str) -> str | None:
    """A checkpoint tensor's name within the text model; None when it does not belong to it."""
    if any(name.startswith(p) for p in _IGNORED):
        return None
    return next((name[len(p) :] for p in _PREFIXES if name.startswith(p)), name)


def _read(kind: str, fields: Fields) -> StackSpec:
    spec: StackSpec = _FAMILIES[kind].read(fields)
    if unread := fields.unread():
        log.warning("config.json of a %s has keys that this engine does not read: %s", kind, ", ".join(unread))
    for i, layer in enumerate(spec.layers):
        if layer.heads % layer.kv_heads or layer.head_dim % 2:
            raise Unsupported(f"config.json: layer {i} has {layer.heads} heads, {layer.kv_heads} KV heads of {layer.head_dim}")
    return spec
