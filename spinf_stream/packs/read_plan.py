"""The reads of a pack compiled into index arrays: from option probabilities to categories without Python per question.

For p_i = max(answer_i, 1e-9) of a prompt with n options, l_i = ln(p_i / sum p), a_i = l_i - mu_i:

    pair     a = p_0 / (p_0 + p_1), clipped to [1e-6, 1 - 1e-6];  sign * ln(a / (1 - a))
    option   l_option - mu
    any      logsumexp(a_1 .. a_{n-1}) - a_0
    set      logsumexp(a over `unsafe`, ascending) - logsumexp(a over the rest, ascending)

z = (value - mean) / sd; a category's macro is the mean z, or with `aggregate: "views"` the mean of the means of its views.

Two choices keep the bits of a plain loop, which is how the peer computes: sums run in order through np.bincount (reduceat
adds pairwise from eight terms on, and sum() of Python 3.12 compensates), and log and exp are the C library's (numpy's
vector forms differ in the last bit from one CPU to the next). Everything is float64, one row an article.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.packs.file import Category, Pack, Read
from spinf_stream.questions.plan import F64, I64

FLOOR = 1e-9
EDGE = 1e-6


class Groups(NamedTuple):
    """Items in order of a non-decreasing group column; every group has at least one item."""

    of: I64  # [items]
    starts: I64  # [groups]

    @property
    def size(self) -> int:
        return len(self.starts)

    @classmethod
    def from_sizes(cls, sizes: Sequence[int]) -> Groups:
        counts = np.asarray(sizes, np.int64)
        return cls(np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts)

    def total(self, x: F64) -> F64:
        """[A, items] -> [A, groups], each sum in item order."""
        rows = np.arange(len(x))[:, None] * self.size + self.of
        flat = np.bincount(rows.ravel(), x.ravel(), len(x) * self.size)
        return np.asarray(flat, np.float64).reshape(len(x), self.size)

    def mean(self, x: F64) -> F64:
        return self.total(x) / np.bincount(self.of, minlength=self.size)

    def logsumexp(self, x: F64) -> F64:
        if not self.size:
            return np.empty((len(x), 0))
        top = np.maximum.reduceat(x, self.starts, axis=1)
        return top + log(self.total(exp(x - top[:, self.of])))


class ReadPlan(NamedTuple):
    """R reads, M columns = options of the prompts that option, any and set reads use, once for each such read."""

    reads: int
    pair: I64  # [pairs] read index
    pair_first: I64  # [pairs] first option; the second follows
    sign: F64  # [pairs]
    column: I64  # [M] option
    column_read: Groups  # M -> share reads
    mu: F64  # [M]
    one: I64  # [option reads] read index
    one_at: I64  # [option reads] index into M
    side: I64  # [K] index into M
    sides: Groups  # K -> 2 for each any / set read: the lower side, then the upper
    two: I64  # [any, set reads] read index
    mean: F64  # [R]
    sd: F64  # [R]
    used: I64  # [U] reads that a category counts, view by view
    views: Groups  # U -> views
    category: Groups  # views -> categories

    def values(self, p: F64) -> F64:
        """[A, options] -> [A, R]"""
        p = np.maximum(p, FLOOR)
        out = np.empty((len(p), self.reads))
        a = _first_share(p, self.pair_first)
        out[:, self.pair] = self.sign * log(a / (1.0 - a))
        a = log(self._shares(p)) - self.mu
        out[:, self.one] = a[:, self.one_at]
        sides = self.sides.logsumexp(a[:, self.side])
        out[:, self.two] = sides[:, 1::2] - sides[:, 0::2]
        return out

    def z(self, values: F64) -> F64:
        return (values - self.mean) / self.sd

    def macros(self, z: F64) -> F64:
        """[A, R] -> [A, categories]"""
        return self.category.mean(self.views.mean(z[:, self.used]))

    def raw(self, p: F64) -> F64:
        """[A, options] -> [A, categories]: the model's own probability, before any fitted constant.

        The mean over the category's reads of the share that speaks for it: of the first option (or, with sign -1, the
        second), of `option`, of all but option 0, of `unsafe`.
        """
        p = np.maximum(p, FLOOR)
        out = np.empty((len(p), self.reads))
        a = _first_share(p, self.pair_first)
        out[:, self.pair] = np.where(self.sign > 0, a, 1.0 - a)
        share = self._shares(p)
        out[:, self.one] = share[:, self.one_at]
        out[:, self.two] = self.sides.total(share[:, self.side])[:, 1::2]
        return self.macros(out)

    def _shares(self, p: F64) -> F64:
        x = p[:, self.column]
        return x / self.column_read.total(x)[:, self.column_read.of]


def compile_reads(pack: Pack) -> ReadPlan:
    """Constants that a draft lacks are neutral: mu 0, mean 0, sd 1."""
    where = answer_places(pack)
    pair: list[int] = []
    pair_first: list[int] = []
    sign: list[float] = []
    columns: list[int] = []
    sizes: list[int] = []
    mus: list[float] = []
    one: list[int] = []
    one_at: list[int] = []
    two: list[int] = []
    side: list[int] = []
    side_sizes: list[int] = []
    for r, read in enumerate(pack.reads):
        first, n = where[read.query, read.F]
        if read.kind == "pair":
            pair.append(r)
            pair_first.append(first)
            sign.append(read.sign)
            continue
        at = len(columns)
        columns += range(first, first + n)
        sizes.append(n)
        mus += _mu(read, n)
        if read.kind == "option":
            assert read.option is not None
            one.append(r)
            one_at.append(at + read.option)
            continue
        upper = set(range(1, n) if read.kind == "any" else read.unsafe)
        two.append(r)
        side += [at + i for i in range(n) if i not in upper] + [at + i for i in sorted(upper)]
        side_sizes += [n - len(upper), len(upper)]
    used, view_sizes, category_sizes = _views(pack)
    return ReadPlan(
        len(pack.reads), _i(pair), _i(pair_first), np.array(sign, np.float64), _i(columns), Groups.from_sizes(sizes),
        np.array(mus, np.float64), _i(one), _i(one_at), _i(side), Groups.from_sizes(side_sizes), _i(two),
        np.array([0.0 if r.mean is None else r.mean for r in pack.reads], np.float64),
        np.array([1.0 if r.sd is None else r.sd for r in pack.reads], np.float64),
        _i(used), Groups.from_sizes(view_sizes), Groups.from_sizes(category_sizes),
    )  # fmt: skip


def answer_places(pack: Pack) -> dict[tuple[str, str | None], tuple[int, int]]:
    """(query, F) -> (first option, options). Among combinations with the same F the last one answers."""
    return {(p.query, p.values.get("F")): (p.first, len(p.options)) for p in pack.prompts}


def _views(pack: Pack) -> tuple[list[int], list[int], list[int]]:
    """Reads in order of category, then view in order of appearance; a category without views is one view."""
    by_category: dict[str, list[tuple[int, Read]]] = {name: [] for name in pack.categories}
    for r, read in enumerate(pack.reads):
        by_category[read.category].append((r, read))
    used: list[int] = []
    view_sizes: list[int] = []
    category_sizes: list[int] = []
    for name, members in by_category.items():
        groups: dict[str | None, list[int]] = {}
        views = _has_views(pack.categories[name])
        for r, read in members:
            if not views or read.view is not None:
                groups.setdefault(read.view if views else None, []).append(r)
        for group in groups.values():
            used += group
            view_sizes.append(len(group))
        category_sizes.append(len(groups))
    return used, view_sizes, category_sizes


def _has_views(category: Category) -> bool:
    return category.aggregate == "views"


def _mu(read: Read, n: int) -> list[float]:
    """mu of each option; an `option` read has one number, which only its own option's column meets."""
    if read.mu is None:
        return [0.0] * n
    return list(read.mu) if isinstance(read.mu, tuple) else [float(read.mu)] * n


def _first_share(p: F64, first: I64) -> F64:
    a, b = p[:, first], p[:, first + 1]
    return np.clip(a / (a + b), EDGE, 1.0 - EDGE)


def log(x: F64) -> F64:
    return np.fromiter(map(math.log, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def exp(x: F64) -> F64:
    return np.fromiter(map(math.exp, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _i(values: Sequence[int]) -> I64:
    return np.asarray(values, np.int64)
