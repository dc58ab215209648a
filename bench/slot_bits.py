"""Slots together against each by itself, bit for bit: 48 of every kind, and 64 generations, on a bench's own engine.

A slot by itself has a plan, an article and a pass of its own. Nothing is replayed here. To random weights no number is likely:
searches for numbers prune nothing, or there would be nothing to compare.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

KINDS = ("number", "amount", "text", "copied number", "copied amount", "copied text", "generated")
ALONE = 12  # of those together


def told(bench: Any, slots: int) -> dict[str, Any]:
    """By kind: slots together, how many of them were run alone, how many came out otherwise, and endings compared."""
    out = {}
    for kind in KINDS:
        began = time.perf_counter()
        together = 64 if kind == "generated" and slots > 1 else slots
        with unpruned() if kind in ("number", "amount") else nullcontext():
            found = compared(bench, kind, together)
        out[kind] = {**found, "seconds": round(time.perf_counter() - began, 1)}
        print(f"{kind:<14} together = alone: {out[kind]}", flush=True)
    return out


@contextmanager
def unpruned() -> Iterator[None]:
    from spinf_stream.slots import search

    old = search.MIN_P, search.REL_P
    search.MIN_P = search.REL_P = 1e-300
    try:
        yield
    finally:
        search.MIN_P, search.REL_P = old


def compared(bench: Any, kind: str, slots: int, per: int = 4) -> dict[str, int]:
    from spinf_stream.slots.build import SlotSet

    per = min(per, slots)
    texts = bench.texts(-(-slots // per))
    queries, plan = bench.questions(per, kind).slots, bench.questions(1).plan
    every = SlotSet(queries, bench.words)
    together = run(bench, plan, every, texts)
    places = [(tree, query) for tree in range(len(texts)) for query in range(per)]
    chosen = places[:: max(1, len(places) // ALONE)]
    different = seen = 0
    for tree, query in chosen:
        alone = endings(run(bench, plan, SlotSet([queries[query]], bench.words), texts[tree : tree + 1])[0], 0)
        among = endings(together[tree], query)
        seen += len(alone)
        different += alone != among
    return {"together": len(places), "alone": len(chosen), "different": different, "endings": seen}


def run(bench: Any, plan: Any, slots: Any, texts: list[str]) -> list[Any]:
    index = bench.engine.register(plan, slots.plan)
    try:
        return [t.slots for t in bench.engine.collect(bench.engine.submit(bench.batch(texts, index, slots))).trees]
    finally:
        bench.engine.forget([index])


def endings(found: Any, slot: int) -> list[tuple[Any, ...]]:
    """Everything that was found for a slot; floats as they are."""
    out = []
    for e in range(int(found.ptr[slot]), int(found.ptr[slot + 1])):
        tokens = tuple(found.token[found.token_ptr[e] : found.token_ptr[e + 1]].tolist())
        out.append((tokens, float(found.logprob[e]), int(found.taken[e]), bool(found.complete[e])))
    return out
