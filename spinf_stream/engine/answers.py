"""From an ask's numbers to what a record says of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from spinf_stream.engine.asks import Ask
from spinf_stream.questions.readout import Read
from spinf_stream.records import CombinationScore, CompactPart, CompactScores, OptionScore, QueryScore


def full(ask: Ask, read: Read) -> Iterator[QueryScore]:
    """One QueryScore a query, in the question set's order. NaN becomes null."""
    logprob, p, residual = _listed(read.logprob), read.p.tolist(), _listed(read.residual)
    floor_p, floor_residual = _listed(ask.floors.p), _listed(ask.floors.residual)
    option = prompt = 0
    for q in ask.questions.queries:
        combinations = []
        for values in q.values:
            options = [
                OptionScore(text, logprob[option + k], p[option + k], floor_p[option + k]) for k, text in enumerate(q.options)
            ]
            combinations.append(CombinationScore(values, options, residual[prompt], floor_residual[prompt]))
            option, prompt = option + len(options), prompt + 1
        yield QueryScore(q.id, combinations, q.pack, q.context)


def compact(asks: Sequence[Ask], reads: Sequence[Read]) -> CompactScores:
    """All asks' numbers in order, float32."""

    def packed(columns: Sequence[np.ndarray]) -> bytes:
        return np.concatenate(columns).astype("<f4").tobytes()

    return CompactScores(
        options=sum(len(r.p) for r in reads),
        prompts=sum(len(r.residual) for r in reads),
        logprob=packed([r.logprob for r in reads]),
        p=packed([r.p for r in reads]),
        floor_p=packed([a.floors.p for a in asks]),
        residual=packed([r.residual for r in reads]),
        floor_residual=packed([a.floors.residual for a in asks]),
        parts=[
            CompactPart(len(r.p), len(r.residual), *((a.pack.pack.id, a.pack.context) if a.pack else ())) for a, r in zip(asks, reads)
        ],
    )


def _listed(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(v) else v for v in values.tolist()]
