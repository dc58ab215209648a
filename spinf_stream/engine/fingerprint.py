"""`system_fingerprint`: when it is the same, two scores of the same inputs are comparable, and where `bit_exact`, equal.

A sha256 over everything that touches numerics: the weights' and the tokenizer's digests, the model's description, the
scheme, and what the executor names of itself (kernel table, architecture, library versions, settings). What is asked
(questions) and what is read (content) have digests of their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

from spinf_stream.engine.executor import Executor
from spinf_stream.slots.plan import SLOTS

ENGINE = "engine/1"  # raise when the way of a number changes without any other input here changing


def fingerprint(executor: Executor, tokenizer_digest: str) -> str:
    """64 hex characters. Records say `short(...)` of it, Redis keys use it whole."""
    stack = executor.stack
    inputs = {
        "engine": ENGINE,
        "weights": stack.digest,
        "tokenizer": tokenizer_digest,
        "scheme": stack.scheme,
        "spec": dataclasses.asdict(stack.spec),
        "numerics": executor.numerics,
        "slots": SLOTS,
    }
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def short(full: str) -> str:
    return "fp_" + full[:16]
