"""Typed, strict access to a checkpoint's config.json.

A feature that would change the numbers and is not built is refused by name (`only`), never ignored. Defaults are those
of the family's config class in transformers, because checkpoints on the Hub leave out what equals them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spinf_stream.engine.models.errors import Unsupported

# read by nobody here because they change no number of a forward pass, or only beside a feature that is refused
_HARMLESS = frozenset(
    ["architectures", "attention_dropout", "cache_implementation", "chunk_size_feed_forward", "dtype", "expert_intermediate_size", "global_head_dim", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "max_position_embeddings", "model_type", "moe_intermediate_size", "num_experts", "num_global_key_value_heads", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "quantization_config", "return_dict", "rope_local_base_freq", "rope_theta", "_sliding_window_pattern", "sliding_window_pattern", "top_k_experts", "torch_dtype", "transformers_version", "use_cache", "vocab_size_per_layer_input", "_name_or_path", "sliding_window"]
)


class Fields:
    """One table of a config. `backup` (the whole multimodal config) answers for bos and eos ids alone."""

    def __init__(self, table: Mapping[str, Any], backup: Mapping[str, Any] | None = None) -> None:
        self.table = table
        self.backup = backup or {}
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return self.table.get(key, default)

    def unread(self) -> list[str]:
        """Keys with a value that nobody asked for: what transformers may have learnt after this family was written."""
        return sorted(k for k, v in self.table.items() if v and k not in self.asked and k not in _HARMLESS)

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise Unsupported(f"config.json: {key} must be an integer >= {least}, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise Unsupported(f"config.json: {key} must be a number > 0, got {value!r}")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """True or false, false when absent or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise Unsupported(f"config.json: {key} must be true or false, got {value!r}")
        return bool(value)

    def only(self, key: str, *allowed: Any, default: Any = None) -> None:
        """Refuse any value of `key` but these (compared with ==); `default` stands for an absent key."""
        value = self.get(key, default)
        if value not in allowed:
            shown = " or ".join(repr(a) for a in allowed)
            raise Unsupported(f"config.json: {key} = {value!r} is not supported by this engine, only {shown}")

    def table_of(self, key: str) -> Mapping[str, Any]:
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise Unsupported(f"config.json: {key} must be a table, got {type(value).__name__}")
        return value

    def token_ids(self, key: str, default: int) -> tuple[int, ...]:
        value = self.get(key)
        if value is None:
            value = self.backup.get(key, default)
        ids = value if isinstance(value, list) else [value]
        if not ids or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise Unsupported(f"config.json: {key} must be a token id or a list of them, got {value!r}")
        return tuple(ids)

    def layer_types(self, count: int, pattern: int) -> list[str]:
        """Kind of each layer; without a list every `pattern`-th layer is global."""
        kinds = self.get("layer_types")
        if kinds is None:
            kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(count)]
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown or len(kinds) != count:
            raise Unsupported(
                f"config.json: layer_types must name {count} layers, each full_attention or sliding_attention; "
                f"got {len(kinds)} with {sorted(unknown) or 'known kinds'}"
            )
        return list(kinds)
