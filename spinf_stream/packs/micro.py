"""The micro layer: a tiny network over macros and z-scores, its weights, and the peer's lock."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.questions.plan import F64

LOCK_WARNING = "micro-layer lock mismatch: the pack was edited; using the fallback mode"
MOST_HIDDEN = 4096


class MicroLayer(NamedTuple):
    """I inputs, h hidden units; hidden = 0 is linear. Doubles decoded from float32."""

    inputs: tuple[str, ...]  # c:<category> = its macro, r:<read> = its z
    hidden: int
    w1: F64  # [I, h], or [I] weights when linear
    b1: F64  # [h]
    w2: F64  # [h]
    b2: float
    threshold: float
    locked: bool  # the file's lock matches what it was trained on

    def value(self, x: Iterable[float]) -> float:
        """Input by input, hidden unit by hidden unit: the same sum order whatever the size."""
        if not self.hidden:
            total = 0.0
            for w, v in zip(self.w1.tolist(), x):
                total += w * v
            return total + self.b2
        inner = np.zeros(self.hidden)
        for row, v in zip(self.w1, x):
            inner = inner + row * v
        total = 0.0
        for w, v in zip(self.w2.tolist(), (inner + self.b1).tolist()):
            total += w * math.tanh(v)
        return total + self.b2


def floats(inputs: int, hidden: int) -> int:
    """How many float32 values the weights hold, the threshold last."""
    return inputs * hidden + 2 * hidden + 2 if hidden else inputs + 2


def decode_weights(text: str) -> F64:
    """Raises ValueError, saying what is wrong."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    if len(raw) % 4:
        raise ValueError(f"holds {len(raw)} bytes, not a multiple of 4")
    values = np.frombuffer(raw, "<f4").astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("holds a value that is not finite")
    return values


def encode_weights(values: F64) -> str:
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode("ascii")


def micro_layer(spec: dict[str, Any], locked: bool) -> MicroLayer:
    """From a validated `micro_layer` object with weights."""
    inputs, hidden = tuple(spec["inputs"]), spec.get("hidden") or 0
    w, n = decode_weights(spec["weights"]), len(spec["inputs"])
    none = np.zeros(0)
    if not hidden:
        return MicroLayer(inputs, 0, w[:n], none, none, float(w[n]), float(w[n + 1]), locked)
    b1, w2 = w[n * hidden : (n + 1) * hidden], w[(n + 1) * hidden : (n + 2) * hidden]
    return MicroLayer(inputs, hidden, w[: n * hidden].reshape(n, hidden), b1, w2, float(w[-2]), float(w[-1]), locked)


def lock(doc: dict[str, Any]) -> str:
    """The peer's lock: sha256 over the queries, the reads, every platt and the layer's inputs as canonical JSON.

    Numbers as Python prints them, so 1 and 1.0 differ. Our own digest (document.py) covers the rest.
    """
    signed = {
        "queries": doc["scoring"]["queries"],
        "reads": doc["reads"],
        "platt": {name: spec.get("platt") for name, spec in doc["categories"].items()},
        "inputs": doc["decision"]["micro_layer"]["inputs"],
    }
    canonical = json.dumps(signed, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()
