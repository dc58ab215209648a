"""A drift baseline recorded from scores that were published: for drafts, and for traffic other than the calibration's.

    scores records -> by category: its score, or the model's own probability (raw, which a draft has too) -> a file
    the file -> `drift_baseline` -> drift.py, in place of the packs' own quantiles

A record that was written twice counts once; duplicates of a text do not count, as they do not in the live figure.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from spinf_stream.errors import UsageError
from spinf_stream.files import lines, sink
from spinf_stream.packs.drift import LEAST, Baseline, Key, Recorded, from_scores
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack
from spinf_stream.packs.index import Offsets
from spinf_stream.packs.stored import StoredError, answers_of, decode_record

SCHEMA: Final = "spinf-stream/drift-baseline/1"


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pack: str
    context: str
    category: str
    kind: Literal["score", "raw"]
    articles: int
    edges: list[float]
    shares: list[float]


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal["spinf-stream/drift-baseline/1"]
    system_fingerprints: list[str]  # of the records it was made from
    series: list[Series]


class Made(NamedTuple):
    file: File
    few: dict[str, int]  # categories with too few articles, and how many they have
    left_out: Counter[str]  # records, by why


def record(records: Iterable[bytes], raw: Sequence[Pack] = ()) -> Made:
    """`raw`: packs of which the model's own probabilities are taken instead of their scores."""
    evaluators = [(pack, Evaluator(pack)) for pack in raw]
    scores: dict[tuple[Key, str], list[float]] = {}
    left_out: Counter[str] = Counter()
    fingerprints: set[str] = set()
    seen: dict[tuple[Any, Any], Offsets] = {}
    for line in records:
        try:
            r = decode_record(line)
            if r.get("outcome") != "scored":
                left_out[f"outcome {r.get('outcome')}"] += 1
                continue
            origin = r.get("origin") or {}
            if origin and not seen.setdefault((origin["topic"], origin["partition"]), Offsets()).add(origin["offset"]):
                left_out["written twice"] += 1
                continue
            found = _figures(r, evaluators)
        except (StoredError, KeyError, TypeError, AttributeError):
            left_out["unreadable"] += 1
            continue
        if not found:
            left_out["no category scores"] += 1
            continue
        fingerprints.add(str(r.get("system_fingerprint")))
        for key, kind, value in found:
            scores.setdefault((key, kind), []).append(value)
    series, few = [], {}
    for (key, kind), values in sorted(scores.items()):
        baseline = from_scores(values)
        if baseline is None:
            few[" ".join(key)] = len(values)
        else:
            series.append(Series(*key, kind, len(values), baseline.edges.tolist(), baseline.shares.tolist()))  # type: ignore[arg-type]
    return Made(File(SCHEMA, sorted(fingerprints), series), few, left_out)


def _figures(r: dict[str, Any], evaluators: Sequence[tuple[Pack, Evaluator]]) -> list[tuple[Key, str, float]]:
    taken = {pack.id for pack, _ in evaluators}
    out = [
        (Key(entry["id"], entry["context"], name), "score", float(category["score"]))
        for entry in r.get("packs") or ()
        if entry["id"] not in taken
        for name, category in (entry.get("categories") or {}).items()
    ]
    for pack, evaluator in evaluators:
        for s in answers_of(r, pack):
            values = evaluator.raw(s.p[None])[0].tolist()
            out += [(Key(pack.id, s.context, name), "raw", value) for name, value in zip(pack.categories, values)]
    return out


def record_file(source: str, out: str, raw: Sequence[Pack]) -> int:
    """The command: exit code 1 when there is nothing to record."""
    for pack in raw:
        if not pack.categories:
            raise UsageError(f"{pack.label} is a question set alone: it has no categories to follow")
    with lines(source) as records:
        made = record(records, raw)
    if made.few:
        names = ", ".join(list(made.few)[:3]) + (f" and {len(made.few) - 3} more" if len(made.few) > 3 else "")
        print(f"too few articles for {len(made.few)} categories, at least {LEAST} are needed and {max(made.few.values())} are there: {names}", file=sys.stderr)
    why = "".join(f", {n} records left out ({reason})" for reason, n in sorted(made.left_out.items()))
    if not made.file.series:
        hint = "" if made.few else "; a draft has no scores: --raw PACK takes the model's own probabilities" if not raw else f"; no record asks {' or '.join(p.label for p in raw)}"
        print(f"nothing to record{why}{hint}", file=sys.stderr)
        return 1
    with sink(out) as to:
        to.write(msgspec.json.format(msgspec.json.encode(made.file), indent=1) + b"\n")
    print(f"{len(made.file.series)} categories{why}", file=sys.stderr)
    return 0


def read(path: str) -> dict[Key, Recorded]:
    """Of the setting `drift_baseline`; "" = none. Raises UsageError."""
    if not path:
        return {}
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=File)
    except OSError as e:
        raise UsageError(f"drift_baseline: {path}: {e.strerror or e}") from None
    except msgspec.MsgspecError as e:
        raise UsageError(f"drift_baseline: {path}: {e}; make it with `spinf-stream packs baseline`") from None
    out: dict[Key, Recorded] = {}
    for i, s in enumerate(file.series):
        edges, shares = np.array(s.edges), np.array(s.shares)
        good = len(shares) == len(edges) + 1 >= 2 and (np.diff(edges) > 0).all() and (shares >= 0).all() and abs(shares.sum() - 1) < 1e-6
        key = Key(s.pack, s.context, s.category)
        if not good or key in out:
            what = "stands there twice" if good else "needs ascending edges, and shares that are one more and sum to 1"
            raise UsageError(f"drift_baseline: {path}: $.series[{i}] ({' '.join(key)}) {what}")
        out[key] = Recorded(Baseline(edges, shares), s.kind == "raw")
    return out


def unasked(recorded: Mapping[Key, Recorded], packs: Sequence[tuple[Pack, str]]) -> list[Key]:
    """Series of what is not asked here."""
    asked = {Key(pack.id, context, name) for pack, context in packs for name in pack.categories}
    return sorted(recorded.keys() - asked)
