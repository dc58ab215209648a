"""`packs evaluate`: stored scores in, the same records with one pack's decisions taken again out. No forward pass."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import msgspec

from spinf_stream.files import sink, source
from spinf_stream.packs.decide import overrides
from spinf_stream.packs.diff import diff
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack
from spinf_stream.packs.problems import PackError, Problem
from spinf_stream.packs.stored import StoredError, answers_of, decode_record


class Reevaluator:
    """Holds what does not change from record to record, and counts what did."""

    def __init__(self, pack: Pack, call: dict[str, Any] | None = None, context: str | None = None, name: str | None = None) -> None:
        """name: the id that the records name the pack by, where it has another now."""
        self.pack = pack
        self.name = name or pack.id
        self.context = context
        self.change = overrides(pack, call)
        self.counts: Counter[str] = Counter()
        self.made_by: Counter[tuple[str, str]] = Counter()  # version and digest that stored records name
        self._bound: dict[tuple[str, str], Evaluator] = {}

    def record(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with this pack's entries taken again. Raises StoredError."""
        self.counts["records"] += 1
        stored = answers_of(record, self.pack, self.context, self.name)
        if not stored:
            self.counts["without this pack"] += 1
            return record
        entries = [e for e in record.get("packs") or () if isinstance(e, dict)]
        for s in stored:
            new = self._evaluator(s.context, str(record.get("model"))).evaluate(s.p, s.logprob)
            at = next((i for i, e in enumerate(entries) if (e.get("id"), e.get("context")) == (self.pack.id, s.context)), None)
            self._count(None if at is None else entries[at], new)
            if at is None:
                entries.append(new)
            else:
                entries[at] = new
        return {**record, "packs": entries}

    def _evaluator(self, context: str, model: str) -> Evaluator:
        key = (context, model)
        if key not in self._bound:
            self._bound[key] = Evaluator(self.pack, context, (model,), self.change)
        return self._bound[key]

    def _count(self, old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        self.counts["evaluated"] += 1
        if old is not None:
            self.made_by[str(old.get("version")), str(old.get("digest"))] += 1
        before = ((old or {}).get("decision") or {}).get("unsafe")
        after = (new["decision"] or {}).get("unsafe")
        if after is None:
            self.counts["without a decision"] += 1
        elif after:
            self.counts["unsafe"] += 1
        if None not in (before, after) and before != after:
            self.counts["newly unsafe" if after else "no longer unsafe"] += 1


def evaluate_file(
    pack: Pack, name: str, out: str, call: dict[str, Any], origin: Pack | None, context: str | None, *, quiet: bool = False
) -> int:
    """Exit code 1 when a line could not be used; the others are written all the same."""
    if origin is not None:
        same_questions(origin, pack)
    work = Reevaluator(pack, call, context, origin.id if origin else None)
    bad = 0
    with source(name) as (records, _), sink(out) as to:
        for n, line, _ in records:
            try:
                to.write(msgspec.json.encode(work.record(decode_record(line))) + b"\n")
            except (StoredError, ValueError) as e:
                bad += 1
                if bad <= 10:
                    print(f"line {n}: {e}", file=sys.stderr)
    if not quiet:
        print(f"{pack.label}: " + ", ".join(f"{v} {k}" for k, v in work.counts.items()) + (f", {bad} bad lines" if bad else ""), file=sys.stderr)
        for (version, digest), n in work.made_by.items():
            if digest != pack.digest and origin is None:
                print(
                    f"note: {n} entries were made by {pack.id}@{version} ({digest[:19]}). Options and values are the same here; "
                    "--from that version compares the questions' words and contexts too",
                    file=sys.stderr,
                )
    return 1 if bad else 0


def same_questions(origin: Pack, pack: Pack) -> None:
    """Raises PackError where stored answers to `origin` do not answer `pack`."""
    found = diff(origin, pack)
    problems = [
        Problem(c.path, f"differs from {origin.label}: the old answers are to another question")
        for c in found.changes
        if c.cost == "score" and not (c.before is None and c.path.startswith(("$.contexts.", "$.scoring.queries[")))
    ]
    if problems:
        raise PackError(pack.label, problems)
