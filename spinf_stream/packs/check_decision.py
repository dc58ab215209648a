"""Checks of a pack's decision: modes, thresholds, critical categories and the micro layer."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from spinf_stream.packs.micro import MOST_HIDDEN, decode_weights, floats
from spinf_stream.packs.problems import Checker, kind, step

MODES = ("max", "per_category", "micro_layer")
FALLBACKS = ("max", "per_category")
_LOCK = re.compile(r"sha256:[0-9a-f]{64}")
_FIELDS = ("mode", "fallback", "max", "per_category", "micro_layer", "critical")
_MICRO = ("inputs", "hidden", "dtype", "weights", "lock")


def check_decision(
    check: Checker, raw: Any, categories: Collection[str], reads: Collection[str], draft: bool, path: str = "$.decision"
) -> None:
    table = check.table(raw, path, _FIELDS)
    if table is None:
        return
    mode = check.text(table, "mode", path, required=True, one_of=MODES)
    fallback = check.text(table, "fallback", path, one_of=FALLBACKS)
    if "max" in table:
        top = check.table(table["max"], step(path, "max"), ("threshold",))
        at = step(step(path, "max"), "threshold")
        if top is not None and top.get("threshold") is not None:
            check.number(top["threshold"], at, 0, 1)
        elif top is not None and not draft:
            check.error(at, "is missing")
    elif not draft and (mode == "max" or fallback == "max"):
        check.error(step(step(path, "max"), "threshold"), "is missing: the decision can use max")
    if "per_category" in table:
        check.table(table["per_category"], step(path, "per_category"))
    if "micro_layer" in table:
        _micro(check, table["micro_layer"], categories, reads, draft, step(path, "micro_layer"))
    elif mode == "micro_layer":
        check.error(step(path, "micro_layer"), "is missing: it is the decision's mode")
    if "critical" in table:
        at = step(path, "critical")
        for i, name in enumerate(check.items(table["critical"], at, empty=True) or ()):
            if not isinstance(name, str):
                check.error(step(at, i), f"must be a category id, not {kind(name)}")
            elif name not in categories:
                check.error(step(at, i), "names no category of this pack")


def _micro(check: Checker, raw: Any, categories: Collection[str], reads: Collection[str], draft: bool, path: str) -> None:
    layer = check.table(raw, path, _MICRO)
    if layer is None:
        return
    if "inputs" not in layer:
        check.error(step(path, "inputs"), "is missing")
    inputs = check.items(layer["inputs"], step(path, "inputs")) if "inputs" in layer else None
    for i, name in enumerate(inputs or ()):
        at = step(step(path, "inputs"), i)
        if not isinstance(name, str):
            check.error(at, f"must be a string, not {kind(name)}")
        elif name[:2] not in ("c:", "r:"):
            check.error(at, "must start with c: (a category) or r: (a read)")
        elif name[2:] not in (categories if name[0] == "c" else reads):
            check.error(at, f"names no {'category' if name[0] == 'c' else 'read'} of this pack")
    hidden = layer.get("hidden", 0)
    if isinstance(hidden, bool) or not isinstance(hidden, int):
        check.error(step(path, "hidden"), f"must be a whole number, not {kind(hidden)}")
        hidden = None
    elif not 0 <= hidden <= MOST_HIDDEN:
        check.error(step(path, "hidden"), f"must lie in 0..{MOST_HIDDEN}")
        hidden = None
    check.text(layer, "dtype", path, one_of=("float32",))
    check.text(layer, "lock", path, required=not draft, pattern=_LOCK)
    weights = check.text(layer, "weights", path, required=not draft)
    if weights is None:
        return
    try:
        count = len(decode_weights(weights))
    except ValueError as e:
        check.error(step(path, "weights"), str(e))
        return
    if inputs is not None and hidden is not None and count != floats(len(inputs), hidden):
        check.error(
            step(path, "weights"),
            f"hold {count} numbers; {len(inputs)} inputs and {hidden} hidden units need {floats(len(inputs), hidden)}",
        )
