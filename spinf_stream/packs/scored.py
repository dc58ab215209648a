"""What scores files say of one pack in one context, by article id, and the rows of labelled data that meet it there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.packs.file import Pack
from spinf_stream.packs.labels import LabelError, Row
from spinf_stream.packs.stored import StoredError, answers_of, decode_record
from spinf_stream.questions.plan import F64, Bool

SAME = 1e-4  # how far two records of one text may differ in p: a record that was written twice, or passes on a CPU


class Answered(NamedTuple):
    """Rows with the pack's answers."""

    rows: list[Row]
    p: F64  # [N, options]
    logprob: F64  # [N, options]

    def take(self, mask: Bool) -> Answered:
        return Answered([r for r, m in zip(self.rows, mask) if m], self.p[mask], self.logprob[mask])


class Scores(NamedTuple):
    by_id: dict[str, tuple[F64, F64]]
    model: str
    fingerprints: set[str]
    bad: int  # lines that could not be used
    why: str  # the first of them, "" where there is none
    day: str | None  # of the latest record
    made_by: set[tuple[str, str]]  # version and digest of the pack, where the records name them


def read_scores(lines: Iterable[bytes], pack: Pack, context: str | None = None, asked_as: str | None = None) -> Scores:
    """asked_as: the id that the records name the pack by, where it has another now. Raises StoredError when no record answers the pack, one id has two answers, or several models mix."""
    name, asked_as = context or pack.default_context, asked_as or pack.id
    by_id: dict[str, tuple[F64, F64]] = {}
    models: set[str] = set()
    fingerprints: set[str] = set()
    made_by: set[tuple[str, str]] = set()
    bad = 0
    first = day = ""
    for line in lines:
        try:
            record = decode_record(line)
            found = answers_of(record, pack, name, asked_as)
        except StoredError as e:
            bad, first = bad + 1, first or str(e)
            continue
        key = record.get("id")
        if not found or not isinstance(key, str):
            continue
        before = by_id.setdefault(key, (found[0].p, found[0].logprob))
        if not np.allclose(before[0], found[0].p, rtol=0.0, atol=SAME, equal_nan=True):
            raise StoredError(f"the id {key[:80]!r} has records with different answers of {pack.label}: ids must be one text's alone, scored one way")
        models.add(str(record.get("model")))
        fingerprints.add(str(record.get("system_fingerprint")))
        day = max(day, str(record.get("scored_at") or "")[:10])
        entries = [e for e in record.get("packs") or () if isinstance(e, dict)]
        made_by |= {(str(e.get("version")), str(e["digest"])) for e in entries if (e.get("id"), e.get("context")) == (asked_as, name) and "digest" in e}
    if not by_id:
        raise StoredError(f"no record answers {asked_as} in the context {name!r}" + (f" (first bad line: it {first})" if first else ""))
    if len(models) > 1:
        raise StoredError(f"the scores come from {len(models)} models ({', '.join(sorted(models))}): calibrate on one")
    return Scores(by_id, models.pop(), fingerprints, bad, first, day or None, made_by)


def together(parts: Sequence[Scores]) -> Scores:
    """What holds of all of them, with no answers. Raises StoredError when several models mix."""
    models = {s.model for s in parts}
    if len(models) > 1:
        raise StoredError(f"the scores come from {len(models)} models ({', '.join(sorted(models))}): calibrate on one")
    return Scores(
        {}, models.pop(), set().union(*(s.fingerprints for s in parts)), sum(s.bad for s in parts), next((s.why for s in parts if s.why), ""),
        max((s.day for s in parts if s.day), default=None), set().union(*(s.made_by for s in parts)),
    )  # fmt: skip


def join(rows: list[Row], scores: Scores, *, copies: bool = False) -> tuple[Answered, int]:
    """Rows that have scores, and how many have none. Without `copies` a text counts once: in a fit it would weigh double."""
    kept: dict[str, Row] = {}
    missing = 0
    for row in rows:
        if row.id in scores.by_id:
            kept.setdefault(row.id if copies else row.key, row)
        else:
            missing += 1
    found = list(kept.values())
    if not found:
        raise LabelError("no row of the data has scores: the ids of the two files do not meet")
    p, logprob = (np.array([scores.by_id[r.id][k] for r in found]) for k in (0, 1))
    return Answered(found, p, logprob), missing
