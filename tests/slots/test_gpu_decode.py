"""Decode steps of the GPU executor, with the naive kernels on a CPU: they equal the reference, whatever is beside them."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch
from slot_parts import GENERATED, QUERIES, TEXTS, Parts, check, endings, tolerance

from spinf_stream.engine.gpu import decode, steps
from spinf_stream.engine.gpu.cache import FIRST, TRASH, Cache, Kept
from spinf_stream.engine.gpu.decode import Captured
from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.grow import Grower, Step
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.stack import LayerSpec
from spinf_stream.kernels.gather.naive import move_rows

SPEC = LayerSpec(heads=2, kv_heads=1, head_dim=4, window=None, scale=1.0, rope=0)


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def parts(request, tmp_path_factory):
    made = Parts(tmp_path_factory.mktemp("m"), request.param, QUERIES + GENERATED)
    made.executor = GpuExecutor(made.stack, made.encoder.starts_alnum())
    return made


@pytest.mark.parametrize("padded", [False, True])
def test_every_slot_equals_the_reference(parts, padded):
    assert isinstance(parts.executor, Grower)
    parts.executor.grower.padded = padded  # the fixed shapes of CUDA graphs, without graphs
    many = sum(check(parts, text, tree) for text, tree in zip(TEXTS, parts.run(TEXTS).trees))
    assert many > 60


def test_company_changes_nothing(parts):
    together = parts.run(TEXTS * 2).trees
    for i, text in enumerate(TEXTS):
        alone = parts.run([text]).trees[0].slots
        for other in together[i :: len(TEXTS)]:
            for slot in range(len(parts.slots.places)):
                for a, b in zip(endings(alone, slot), endings(other.slots, slot), strict=True):
                    assert a[:3] == b[:3] and abs(a[3] - b[3]) <= tolerance(len(a[0]))


def test_a_trunk_over_the_budget_decodes_too(parts):
    whole = parts.run(TEXTS).trees
    for one, other in zip(whole, parts.run(TEXTS, PackedEngine(parts.executor, 40)).trees):
        for slot in range(len(parts.slots.places)):
            assert [e[:3] for e in endings(one.slots, slot)] == [e[:3] for e in endings(other.slots, slot)]


def test_a_trunk_s_room_comes_free_when_its_slots_are_done(parts):
    cache = parts.executor.cache
    parts.run(TEXTS)
    room = cache.room
    for _ in range(5):
        parts.run(TEXTS)
    gc.collect()
    cache.take(0)  # takes up what was given back
    held = parts.executor.grower.range[1]
    assert cache.room == room and sum(n for _, n in cache.free) == room - held


def test_a_shape_that_comes_back_is_captured_and_replayed_until_something_moves(parts, monkeypatch):
    """With a stand-in for CUDA graphs, which runs the same again over the arrays that it was captured with."""
    executor = GpuExecutor(parts.stack, parts.encoder.starts_alnum())
    grower, replays = executor.grower, []

    class Graph:
        def __init__(self, ix, addresses):
            self.ix, self.addresses = ix, addresses

        def replay(self):
            assert grower._addresses(self.ix) == self.addresses
            grower._plain(self.ix)
            replays.append(self)

    def capture(shape, ix, addresses):
        grower.captured[shape] = Captured(Graph(ix, addresses), grower._plain(ix), addresses)

    monkeypatch.setattr(grower, "_capture", capture)
    want = parts.run(TEXTS, PackedEngine(executor, 4000)).trees
    grower.padded = grower.graphs = True

    def same():
        for one, other in zip(want, parts.run(TEXTS, PackedEngine(executor, 4000)).trees):
            for slot in range(len(parts.slots.places)):
                for a, b in zip(endings(one.slots, slot), endings(other.slots, slot), strict=True):
                    assert a[:3] == b[:3] and abs(a[3] - b[3]) <= tolerance(len(a[0]))

    same()
    same()
    assert len(grower.captured) > 1 and len(replays) > 5, "shapes take turns, each is captured"
    before, old = len(replays), [c.graph for c in grower.captured.values()]
    executor.cache.reserve(5 * executor.cache.rows)  # everything moves
    same()
    same()
    assert len(replays) > before and not set(replays[before:]) & set(old)


def test_a_shape_that_keeps_coming_back_keeps_its_graph_whatever_comes_between(parts, monkeypatch):
    """With trunks a mixed load has 148 shapes, and forgetting all of them at the 65th left half of its steps without a graph."""
    monkeypatch.setattr(decode, "GRAPHS", 4)
    grower = GpuExecutor(parts.stack, parts.encoder.starts_alnum()).grower
    often = steps.Shape(64, 2048, 4)
    for n in range(20):
        for shape in (often, steps.Shape(128, 2048 * n, 8), None):
            grower._sent({"token": np.zeros(8, np.int32)}, shape)
            if shape is not None and shape not in grower.captured:
                assert shape != often or n == 0
                grower.pool = grower.pool or object()
                grower.captured[shape], grower.met[shape] = object(), ()
    assert set(grower.captured) == set(grower.met) == set(grower.uploads) - {None} and len(grower.uploads) == 4
    for n in range(6):
        grower._sent({"token": np.zeros(8, np.int32)}, steps.Shape(192, 2048 * n, 8))
    assert not grower.captured and grower.pool is None, "a pool that no graph holds any more is not used again"


def step(rows, trunk_lengths=(10, 70)):
    """rows: (trunk, own rows of the path)."""
    length = np.array([len(p) for _, p in rows])
    path = np.full((len(rows), int(length.max())), -1, np.int64)
    for i, (_, p) in enumerate(rows):
        path[i, : len(p)] = p
    trunk = np.array([t for t, _ in rows], np.int32)
    base = np.array(trunk_lengths, np.int32)
    every = np.arange(len(rows), dtype=np.int64)
    return Step(
        tuple(range(len(base))), base, trunk, np.zeros(len(rows), np.int32), (base[trunk] + length - 1).astype(np.int32), path, every, (),
        np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32), np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int32), 0,
    )  # fmt: skip


def test_a_path_lies_as_in_a_pass_and_rows_above_share_it():
    stem = list(range(20))
    rows = [(0, stem[: n + 1]) for n in range(20)]  # a template, all of it in this step
    rows += [(0, [*stem, 30]), (0, [*stem, 30, 31]), (0, [*stem, 40]), (1, list(range(100, 135))), (1, [200]), (1, [201, 202])]
    got = steps.paths(step(rows))
    for (_, path), first in zip(rows, got.first.tolist()):
        assert got.source[first : first + len(path)].tolist() == [p + FIRST for p in path]
        assert first % 16 == 0
        assert first % 64 == 0 if len(path) > 32 else first // 32 == (first + len(path) - 1) // 32
    of = dict(zip([tuple(p) for _, p in rows], got.first.tolist()))
    assert len({of[tuple(stem[: n + 1])] for n in range(20)}) == 1 and of[*stem, 30] == of[*stem, 30, 31] != of[*stem, 40]
    others = [first for (t, _), first in zip(rows, got.first.tolist()) if t == 1]
    assert min(others) % 64 == 0 and min(others) >= 64 and len(got.source) % 64 == 0
    used = sum(len(p) for p in ([*stem, 30, 31], [*stem, 40], range(35), [200], [201, 202]))
    assert (got.source > 0).sum() == used, "a path above another's is stored once"


def test_a_padded_step_holds_the_same_rows():
    one = step([(0, [0]), (0, [0, 1]), (1, [5])])
    of = steps.paths(one)
    shape = steps.shape(one, of)
    assert shape == steps.Shape(64, 2048, 4)
    layers = [SPEC, LayerSpec(heads=2, kv_heads=1, head_dim=4, window=8, scale=1.0, rope=0)]
    plain, padded = (steps.arrays(one, of, [0, 64], 192, layers, lambda d, g: (2, 32), s) for s in (None, shape))
    assert plain.keys() == padded.keys()
    for name, values in plain.items():
        assert np.array_equal(padded[name][: len(values)], values), name
        rest = padded[name][len(values) :]
        if name == "slot_row":
            assert len(rest) == 61
        else:
            assert (rest == (TRASH if name == "own" else 0)).all(), name
    assert plain["own"].tolist() == [FIRST, FIRST + 1, FIRST + 5] and plain["rows:None"][:, :2].tolist() == [[0, 10], [0, 10], [64, 134]]
    assert plain["rows:8"][1].tolist() == [4, 10, 192, 194]  # at position 11 a window of 8 sees positions 4 to 11
    assert steps.shape(step([(0, [i]) for i in range(1025)]), of) is None


def test_ranges_are_given_out_again_and_growing_keeps_what_is_there():
    cache = Cache([SPEC], torch.float32, torch.device("cpu"))
    trunks = [Kept(cache, n) for n in (1, 64, 65, 500)]
    assert [t.start % 64 for t in trunks] == [0] * 4
    spans = sorted((t.start, t.start + -(-t.length // 64) * 64) for t in trunks)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    kv = torch.randn(640, 8)
    moves = cache.moves(trunks, np.full(len(trunks), 64))
    move_rows(kv, torch.from_numpy(moves["keep:from"]), cache.slots[0], torch.from_numpy(moves["keep:to"]))
    cache.reserve(3)
    cache.own[0][FIRST + 2] = 7.0
    moved = cache.moved
    more = [Kept(cache, 900), Kept(cache, 5000)]
    cache.reserve(4000)
    assert cache.moved > moved and cache.own[0][FIRST + 2].tolist() == [7.0] * 8
    for t in trunks:
        n = -(-t.length // 64) * 64
        assert torch.equal(cache.slots[0][t.start : t.start + n], kv[64 : 64 + n])
    room = cache.room
    del trunks, more, t
    gc.collect()
    assert cache.take(room) == 0 and cache.room == room, "all of it is one range again"


def test_growing_that_fails_midway_can_be_tried_again(monkeypatch):
    cache = Cache([SPEC, SPEC], torch.float32, torch.device("cpu"))
    made = cache._made
    calls = []

    def failing(rows, width):
        calls.append(rows)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("full")
        return made(rows, width)

    monkeypatch.setattr(cache, "_made", failing)
    with pytest.raises(torch.OutOfMemoryError):
        Kept(cache, 100)
    first, second = Kept(cache, 100), Kept(cache, 100)
    assert {len(s) for s in cache.slots} == {cache.room} and abs(first.start - second.start) >= 128
