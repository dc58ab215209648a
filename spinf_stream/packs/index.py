"""Folding scores records into daily series: each category's mean score and flagged share, with counts and 95 % bands.

The band of a mean score is +- 1.96 standard errors over the day's articles, that of a share is Wilson's. Both say how far
the day's articles may stray from the stream they are drawn from; neither knows how wrong the model is. A difference of two
categories is taken article by article, so what moves both of them cancels out of its band too.
"""

from __future__ import annotations

import bisect
import csv
import datetime as dt
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.figures import Z95, wilson
from spinf_stream.packs.file import Pack
from spinf_stream.packs.stored import StoredError, answers_of, decode_record

Clock = Literal["published_at", "scored_at", "timestamp"]
FIELDS = (
    "day", "pack", "version", "context", "category", "kind", "articles", "mean", "low", "high", "judged", "flagged", "share", "share_low", "share_high",
)  # fmt: skip


class Key(NamedTuple):
    pack: str
    context: str
    category: str
    version: str
    kind: str  # calibrated, or raw: the model's own probability


Scored = tuple[Key, float, bool | None]  # one article: its score, and whether it is flagged


class Cell:
    """Running mean and spread of one day of one series (B. P. Welford 1962)."""

    __slots__ = ("flagged", "judged", "mean", "n", "spread")

    def __init__(self) -> None:
        self.n = self.judged = self.flagged = 0
        self.mean = self.spread = 0.0

    def add(self, score: float, flagged: bool | None) -> None:
        self.n += 1
        step = score - self.mean
        self.mean += step / self.n
        self.spread += step * (score - self.mean)
        if flagged is not None:
            self.judged += 1
            self.flagged += flagged

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single article."""
        return math.sqrt(self.spread / (self.n - 1) / self.n) if self.n > 1 else math.nan


class Offsets:
    """A set of offsets kept as ranges: a topic read to its end is one range, not a million integers."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def add(self, offset: int) -> bool:
        """False when it is there already."""
        i = bisect.bisect_right(self._starts, offset)
        if i and offset < self._ends[i - 1]:
            return False
        before, after = i > 0 and self._ends[i - 1] == offset, i < len(self._starts) and self._starts[i] == offset + 1
        if before and after:
            self._ends[i - 1] = self._ends[i]
            del self._starts[i], self._ends[i]
        elif before:
            self._ends[i - 1] += 1
        elif after:
            self._starts[i] -= 1
        else:
            self._starts.insert(i, offset)
            self._ends.insert(i, offset + 1)
        return True


class Index:
    """Feed records in any order. Counts what it leaves out, and why."""

    def __init__(self, clock: Clock = "published_at", raw: Pack | None = None, *, duplicates: bool = True, differences: Sequence[str] = ()) -> None:
        """differences: UP-DOWN each, two categories of one pack."""
        self.clock, self.raw, self.duplicates = clock, raw, duplicates
        self.differences = {text: splits(text) for text in differences}
        self.cells: dict[tuple[Key, dt.date], Cell] = {}
        self.left_out: dict[str, int] = {}
        self.articles = 0
        self._seen: dict[tuple[str, int], Offsets] = {}
        self._evaluator = Evaluator(raw) if raw is not None else None

    def line(self, line: bytes) -> None:
        try:
            record = decode_record(line)
        except StoredError:
            return self._skip("unreadable")
        try:
            self.record(record)
        except StoredError as e:
            self._skip(f"it {e}")
        except (KeyError, TypeError, AttributeError):
            self._skip("unreadable")

    def record(self, record: dict[str, Any]) -> None:
        outcome = record.get("outcome")
        if outcome not in ("scored", "duplicate") or (outcome == "duplicate" and not self.duplicates):
            return self._skip(f"outcome {outcome}")
        origin = record.get("origin")
        if isinstance(origin, dict):
            # at least once may write a record twice; an article published twice has two origins and counts twice
            seen = self._seen.setdefault((origin["topic"], origin["partition"]), Offsets())
            if not seen.add(origin["offset"]):
                return self._skip("written twice")
        day = day_of(record, self.clock)
        if day is None:
            return self._skip(f"no {self.clock}")
        found = self._raw(record) if self.raw is not None else _judged(record)
        if not found:
            return self._skip("no category scores")
        self.articles += 1
        for key, score, flagged in found + self._differences(found):
            self.cells.setdefault((key, day), Cell()).add(score, flagged)

    def _differences(self, found: list[Scored]) -> list[Scored]:
        scores = {key: score for key, score, _ in found} if self.differences else {}
        out: list[Scored] = []
        for text, pairs in self.differences.items():
            for up, down in pairs:
                both = [(k, scores.get(k._replace(category=down))) for k in scores if k.category == up]
                out += [(k._replace(category=text), scores[k] - other, None) for k, other in both if other is not None]
        return out

    def without_figures(self) -> list[str]:
        """Differences that no record had both categories of."""
        there = {key.category for key, _ in self.cells}
        return [text for text in self.differences if text not in there]

    def _raw(self, record: dict[str, Any]) -> list[Scored]:
        assert self.raw is not None and self._evaluator is not None
        out: list[Scored] = []
        for s in answers_of(record, self.raw):
            shares = self._evaluator.raw(s.p[None])[0].tolist()
            out += [(Key(self.raw.id, s.context, c, self.raw.version, "raw"), v, None) for c, v in zip(self.raw.categories, shares)]
        return out

    def _skip(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def rows(self) -> list[dict[str, Any]]:
        """One a series and day: differences first, then in order of series and day."""
        out = []
        for (key, day), cell in sorted(self.cells.items(), key=lambda c: (c[0][0].category not in self.differences, c[0])):
            half = Z95 * cell.error
            share = wilson(cell.flagged, cell.judged)
            out.append({
                "day": day.isoformat(), "pack": key.pack, "version": key.version, "context": key.context, "category": key.category, "kind": key.kind,
                "articles": cell.n, "mean": cell.mean, "low": cell.mean - half, "high": cell.mean + half,
                "judged": cell.judged, "flagged": cell.flagged, "share": share.value, "share_low": share.low, "share_high": share.high,
            })  # fmt: skip
        return out


def splits(text: str) -> list[tuple[str, str]]:
    """UP-DOWN, wherever a dash may divide it: categories have dashes in their names too."""
    return [(text[:i], text[i + 1 :]) for i, c in enumerate(text) if c == "-" and 0 < i < len(text) - 1]


def _judged(record: dict[str, Any]) -> list[Scored]:
    out: list[Scored] = []
    for entry in record.get("packs") or ():
        for name, c in (entry.get("categories") or {}).items() if isinstance(entry, dict) else ():
            out.append((Key(entry["id"], entry["context"], name, entry["version"], "calibrated"), c["score"], c["flagged"]))
    return out


def day_of(record: dict[str, Any], clock: Clock) -> dt.date | None:
    """The UTC day. A time without an offset is read as UTC; None where there is no usable time."""
    if clock == "timestamp":
        origin = record.get("origin")
        ms = origin.get("timestamp") if isinstance(origin, dict) else None
        if isinstance(ms, bool) or not isinstance(ms, int) or ms < 0 or ms >= 253_402_300_800_000:
            return None
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).date()
    value = record.get(clock)
    if not isinstance(value, str):
        return None
    try:
        when = dt.datetime.fromisoformat(value)
        return (when if when.tzinfo is None else when.astimezone(dt.UTC)).date()
    except (ValueError, OverflowError):
        return None


def fold(lines: Iterable[bytes], index: Index, every: Callable[[int], None] | None = None) -> Index:
    """Feed all lines; `every` is told the count each thousand lines."""
    for n, line in enumerate(lines, 1):
        index.line(line)
        if every is not None and n % 1000 == 0:
            every(n)
    return index


def write_csv(rows: list[dict[str, Any]], to: IO[str]) -> None:
    """NaN, such as the band of a single article, is an empty cell."""
    writer = csv.DictWriter(to, FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: _cell(v) for k, v in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}"
    return value


def draw(rows: list[dict[str, Any]], path: Path, share: bool = False) -> None:
    """One panel a series; with `share` the flagged share instead of the mean score."""
    from spinf_stream.packs.plots import Series, daily

    value, low, high, n = ("share", "share_low", "share_high", "judged") if share else ("mean", "low", "high", "articles")
    by_series: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row[n]:
            by_series.setdefault((row["pack"], row["context"], row["category"], row["version"], row["kind"]), []).append(row)
    packs = {k[0] for k in by_series}
    series = []
    for key, days in by_series.items():
        name = key[2] if len(packs) == 1 else f"{key[0]} {key[2]}"
        x = [dt.date.fromisoformat(r["day"]) for r in days]
        series.append(Series(name, x, [r[value] for r in days], [r[low] for r in days], [r[high] for r in days], [r[n] for r in days]))
    if series:
        daily(series, path, f"{'share flagged' if share else 'mean score'} a day, 95 % bands, bars: articles ({', '.join(sorted(packs))})")
