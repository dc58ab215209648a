"""What holds device memory, and who lets go of it: the GPU executor with the naive kernels on a CPU."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from slot_parts import GENERATED, QUERIES, TEXTS, Parts, endings

from spinf_stream.engine.gpu import executor as gpu
from spinf_stream.engine.gpu import ops
from spinf_stream.engine.gpu.buffers import Arena
from spinf_stream.engine.gpu.cache import Cache, Kept
from spinf_stream.engine.gpu.decode import GpuGrower
from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.seam import EngineFatal, OutOfMemory
from spinf_stream.engine.stack import LayerSpec

CPU = torch.device("cpu")
SPEC = LayerSpec(heads=2, kv_heads=1, head_dim=4, window=None, scale=1.0, rope=0)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return Parts(tmp_path_factory.mktemp("m"), "gemma4", QUERIES + GENERATED)


@pytest.fixture
def executor(parts):
    parts.executor = GpuExecutor(parts.stack, parts.encoder.starts_alnum())
    return parts.executor


def remembering():
    """The naive kernels with an attention that holds on to its keys, as a card's does through their descriptors."""
    naive = ops.naive_ops()
    keys: dict[int, torch.Tensor] = {}

    def attend(q, kv, *rest):
        keys[kv.data_ptr()] = kv
        naive.attention(q, kv, *rest)

    return naive._replace(attention=attend, forget_keys=keys.clear), keys


def test_triton_s_descriptors_are_forgotten(monkeypatch):
    from spinf_stream.kernels.attention import triton as attention
    from spinf_stream.kernels.gated import triton as gated
    from spinf_stream.kernels.head import triton as head

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(gated, "fits", lambda *of: False)
    monkeypatch.setattr(head, "stages", lambda device: 3)
    monkeypatch.setattr(attention, "forest_attention", lambda *of: None)
    made = ops.triton_ops(CPU, 64, 96)
    kv = torch.zeros(128, 512)
    held = weakref.ref(kv)
    made.attention(kv, kv, kv, kv, 256, 1, 1.0, kv)
    del kv
    gc.collect()
    assert held() is not None, "a descriptor holds its tensor: or this test tests nothing"
    made.forget_keys()
    gc.collect()
    assert held() is None


def test_outgrown_buffers_are_let_go():
    held = []
    arena = Arena(CPU, held.clear)
    cache = Cache([SPEC], torch.float32, CPU, held.clear)
    for grow, buffer in (
        (lambda n: arena.get("kv", n, 8, torch.float32), lambda: arena.of["kv"]),
        (lambda n: Kept(cache, n), lambda: cache.slots[0]),
        (lambda n: cache.reserve(n), lambda: cache.own[0]),
    ):
        kept = [grow(1000)]
        old = weakref.ref(buffer())
        held.append(buffer())
        kept.append(grow(5000))
        if isinstance(kept[0], torch.Tensor):
            kept.clear()
        assert held == [] and old() is None


def test_slots_and_passes_hold_no_buffers_but_their_own(parts):
    card, keys = remembering()
    executor = GpuExecutor(parts.stack, parts.encoder.starts_alnum(), ops=card)
    parts.executor = executor
    engine = PackedEngine(executor, 4000)
    for texts in (TEXTS[:1], TEXTS, TEXTS * 3):
        parts.run(texts, engine)
    own = {t.untyped_storage().data_ptr() for t in [*executor.forward.arena.of.values(), *executor.grower.forward.arena.of.values(), *executor.cache.slots]}
    assert keys and {t.untyped_storage().data_ptr() for t in keys.values()} <= own
    executor.forward.forget()
    assert keys == {}


def test_a_step_without_room_for_its_paths_keeps_no_range_that_others_get(parts, executor, monkeypatch):
    parts.run(TEXTS[1:2])
    cache, grower, take = executor.cache, executor.grower, executor.cache.take
    paths = grower.range[1]

    def full(length):
        if length > paths:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(length)

    monkeypatch.setattr(cache, "take", full)
    with pytest.raises(OutOfMemory, match="a decode step"):
        parts.run(TEXTS * 4)
    monkeypatch.undo()
    gc.collect()
    trunks = [Kept(cache, paths) for _ in range(4)]
    parts.run(TEXTS[1:2])
    first, slots = grower.range
    assert slots and all(t.start + paths <= first or first + slots <= t.start for t in trunks), "steps write into a kept trunk"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("Triton Error [CUDA]: out of memory")])
def test_a_step_that_does_not_fit_gives_back_what_both_need(parts, executor, error, monkeypatch):
    want = parts.run(TEXTS).trees
    grower, forward = executor.grower, executor.forward
    assert grower.head.arena.of and forward.arena.of and grower.forward.arena.of
    stored = ["of a chain whose next pass is to come"]

    def full(*of):
        forward.kept = stored
        raise error

    monkeypatch.setattr(grower.head, "_said", full)
    with pytest.raises(OutOfMemory, match=r"a decode step of .* does not fit"):
        parts.run(TEXTS)
    assert not grower.head.arena.of and not forward.arena.of and not grower.forward.arena.of and not grower.uploads and not grower.met
    assert forward.kept is stored
    monkeypatch.undo()
    for one, other in zip(want, parts.run(TEXTS).trees):
        assert [endings(one.slots, s) for s in range(4)] == [endings(other.slots, s) for s in range(4)]


def test_a_card_s_errors_are_fatal_whatever_their_class(parts, executor, monkeypatch):
    """Triton's are plain RuntimeErrors (DECISIONS 17); those of others stay what they are."""
    for error, wanted in (
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), EngineFatal),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), EngineFatal),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), OutOfMemory),
        (RuntimeError("shapes do not match"), RuntimeError),
    ):
        monkeypatch.setattr(executor.forward, "hidden", lambda *of, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(RuntimeError) as e:
            parts.run(TEXTS[:1])
        assert type(e.value) is wanted
    monkeypatch.undo()
    fetch = executor._on_device("a pass")
    with pytest.raises(EngineFatal), fetch:
        raise RuntimeError("CUDA error: unspecified launch failure")


def test_memory_of_slots_comes_back_when_none_are_asked_any_more(parts, executor, monkeypatch):
    monkeypatch.setattr(gpu, "IDLE", 3)
    first = parts.run(TEXTS).trees
    gc.collect()
    cache, engine = executor.cache, PackedEngine(executor, 4000)
    bare = engine.register(parts.questions.plan)
    batch = parts.batch(TEXTS, bare)._replace(copies=None)
    kept = Kept(cache, 10)
    for _ in range(4):
        engine.collect(engine.submit(batch))
    assert cache.room > 0, "a trunk is kept"
    del kept
    gc.collect()
    executor.unkept = 0
    for n in range(3):
        assert cache.room > 0, n
        engine.collect(engine.submit(batch))
    assert cache.room == cache.rows == 0 and executor.grower.range == (0, 0) and sum(t.numel() for t in [*cache.slots, *cache.own]) == 0
    for one, other in zip(first, parts.run(TEXTS).trees):
        assert [endings(one.slots, s)[:2] for s in range(4)] == [endings(other.slots, s)[:2] for s in range(4)]


class Graphs:
    """torch.cuda's part in a capture that fails."""

    def __init__(self, monkeypatch, error):
        self.error, self.pools = error, []
        monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
        monkeypatch.setattr(torch.cuda, "graph", self)

    def __call__(self, graph, pool, stream, capture_error_mode):
        self.pools.append(pool)
        return self

    def __enter__(self):
        if self.error:
            raise self.error

    def __exit__(self, *_):
        return False


@pytest.mark.parametrize(("error", "graphs"), [(torch.OutOfMemoryError("CUDA out of memory"), True), (RuntimeError("operation not permitted"), False)])
def test_a_capture_without_memory_is_tried_again_another_is_not(parts, executor, error, graphs, monkeypatch, caplog):
    grower = executor.grower
    assert isinstance(grower, GpuGrower)
    grower.padded = grower.graphs = True
    fake = Graphs(monkeypatch, error)
    want = parts.run(TEXTS).trees
    got = parts.run(TEXTS).trees
    assert fake.pools and grower.captured == {} and grower.graphs is graphs and (len(fake.pools) > 1) is graphs
    assert len(set(map(id, fake.pools))) == len(fake.pools), "a pool that no graph holds any more is not used again"
    assert ("no memory for a CUDA graph" if graphs else "without CUDA graphs") in caplog.text
    for one, other in zip(want, got):
        assert [endings(one.slots, s) for s in range(4)] == [endings(other.slots, s) for s in range(4)]
