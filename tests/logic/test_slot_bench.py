"""bench/slots.py cost on a cut random shape, and the recorded widths that it replays."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from tiny import make_tiny

sys.path.append(str(ROOT / "bench"))
import results
import shapes
import slot_beside
import slot_cost
import slot_widths
import slots

from spinf_stream.slots.build import SlotSet
from spinf_stream.slots.plan import BEAM

KINDS = ("number", "amount", "text", "copied number", "copied amount", "copied text")
OPENED = ("copied number, all opened", "copied amount, all opened")
TEXT = "It paid £1.2bn and $3.4m for 1,200 shops, 35 and 36 of them in 2004."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("slots") / "tiny") / "tokenizer.json"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The shape with the few tokens of the tiny tokenizer, short articles, few questions."""
    monkeypatch.setattr(shapes, "gemma3_270m", functools.partial(shapes.gemma3_270m, vocab=384))
    monkeypatch.setattr(slot_cost.Bench, "texts", lambda self, articles: [TEXT] * articles)
    monkeypatch.setattr(slot_cost, "QUESTIONS", 2)
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    yield


@pytest.fixture
def bench(tokenizer: Path) -> slot_cost.Bench:
    args = argparse.Namespace(model="demo", device="cpu", threads=1, shape="270m", layers=1, scheme="bf16", tokenizer=tokenizer, repeat=1)
    return slot_cost.Bench(*slot_cost.model(args), args)


def command(monkeypatch: pytest.MonkeyPatch, tokenizer: Path, folder: Path, *more: str) -> dict[str, Any]:
    words = f"slots.py cost --shape 270m --layers 2 --threads 1 --repeat 1 --slots 4 --tokenizer {tokenizer}".split()
    monkeypatch.setattr(sys, "argv", [*words, *more])
    assert slots.main() == 0
    (path,) = folder.glob("slots-cost-270m-*.json")
    return json.loads(path.read_text("utf-8"))


def stem(bench: slot_cost.Bench, kind: str) -> int:
    (query,) = bench.questions(1, kind).slots
    return len(query.tokens[0])


def test_the_command_measures_every_kind_alone_together_and_beside_passes(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path, tmp_path: Path, bench: slot_cost.Bench
) -> None:
    found = command(monkeypatch, tokenizer, tmp_path, "--beside", "--passes", "2")
    kinds = [*slot_cost.KINDS, "number, full beam", "text, full beam", *OPENED]
    assert list(found["equivalents"]) == [f"{kind}, {n} together" for kind in kinds for n in (4, 1)]
    assert list(found["beside_passes"]["kinds"]) == list(slot_cost.KINDS) and len(found["beside_passes"]["bare_ms"]) == 2
    for kind in KINDS:
        widths = slot_widths.Spread(bench.widths[kind])
        together, beside = found["equivalents"][f"{kind}, 4 together"], found["beside_passes"]["kinds"][kind]
        for count, told in ((4, together), (8, beside)):
            assert told["rows_a_slot"] == round(stem(bench, kind) + sum(sum(widths[n]) for n in range(count)) / count, 1), kind
        assert together["steps"] == max(len(widths[n]) for n in range(4)) and together["equivalents"] > 0, kind
    for kind in ("number", "text"):
        assert found["equivalents"][f"{kind}, full beam, 1 together"]["rows_a_slot"] == stem(bench, kind) + BEAM * slot_cost.MAX_TOKENS


def test_some_kinds_alone(monkeypatch: pytest.MonkeyPatch, tokenizer: Path, tmp_path: Path) -> None:
    found = command(monkeypatch, tokenizer, tmp_path, "--kinds", "copied-amount,number, full beam,copied-number-all-opened")
    assert [k.rsplit(", ", 1)[0] for k in found["equivalents"]][::2] == ["copied amount", "number, full beam", "copied number, all opened"]
    assert "beside_passes" not in found
    with pytest.raises(SystemExit, match="no kind figure; there is number; "):
        command(monkeypatch, tokenizer, tmp_path, "--kinds", "figure")
    model = argparse.Namespace(shape="model", kinds=None)
    assert not set(OPENED) & set(slot_cost.chosen(model)), "a model prunes"


@pytest.mark.parametrize("kind", [*KINDS, *OPENED])
def test_a_slot_takes_and_reads_the_rows_of_a_recorded_one(bench: slot_cost.Bench, kind: str) -> None:
    decoder, steps, programs = bench.engine.decoder, [], []
    grow, add = decoder.grower.grow, decoder.add
    decoder.grower.grow = lambda step: steps.append(step) or grow(step)
    decoder.add = lambda *a: programs.append(a[-1]) or add(*a)
    bench.slots(kind, 1)
    if kind in OPENED:
        (program,) = programs
        assert type(program).__name__ == "CopyNumbers"
        return
    lead, *rest = slot_widths.Spread(bench.widths[kind])[0]
    assert [s.rows for s in steps] == [stem(bench, kind) + lead, *rest]
    assert [len(s.read) for s in steps] == [1 + lead, *rest]
    picks = [np.diff(s.pick_ptr).tolist() for s in steps]
    if kind.startswith("copied"):
        assert {s.top for s in steps} == {0} and picks[0][0] >= (5 if kind == "copied text" else 1), "all that the article has"
        assert {n for step in (picks[0][1:], *picks[1:]) for n in step} == {1}
    else:
        assert {s.top for s in steps} == {BEAM} and not any(map(any, picks))
    deepest = max(steps[-1].path.shape[1] - stem(bench, kind), 1)
    assert deepest > len(rest) if kind in ("copied number", "copied amount") else deepest == len(rest)


def test_widths_are_told_by_what_was_asked(bench: slot_cost.Bench) -> None:
    rows = 0
    with slot_widths.Widths() as widths:
        for kind in KINDS:
            found = SlotSet(bench.questions(1, kind).slots, bench.words)
            index = bench.engine.register(bench.full, found.plan)
            rows += bench.engine.collect(bench.engine.submit(bench.batch([TEXT], index, found))).slot_rows - stem(bench, kind)
    assert sorted(widths.taken) == sorted(KINDS) and all(len(taken) == 1 for taken in widths.taken.values())
    assert sum(sum(taken[0]) for taken in widths.taken.values()) == rows
    assert {k for k, taken in widths.taken.items() if taken[0][0]} == {"copied number", "copied amount"}


def test_the_recorded_file_has_every_kind() -> None:
    found = json.loads(slot_widths.FILE.read_text("utf-8"))
    assert set(found) == set(KINDS)
    for kind, taken in found.items():
        assert len(taken) == (80 if "text" in kind else 40)
        assert all(all(steps[1:]) and bool(steps[0]) == (kind in ("copied number", "copied amount")) for steps in taken)


def test_few_recorded_slots_stand_for_all() -> None:
    widths = [[0, n] for n in np.random.default_rng(0).permutation(40).tolist()]
    spread = slot_widths.Spread(widths)
    assert spread[0] == [0, 20]
    assert abs(np.mean([sum(spread[n]) for n in range(8)]) - 19.5) < 2 and {sum(spread[n]) for n in range(400)} == set(range(40))


def test_slots_lie_evenly_on_articles() -> None:
    assert [slot_cost.spread(n) for n in (1, 4, 6, 8, 48)] == [1, 1, 1, 2, 12]
    assert [slot_cost.spread(n, 2) for n in (1, 8, 48)] == [1, 2, 2] and slot_cost.spread(48, 24) == 12


@pytest.mark.parametrize("budget, most", [(0, 3), (250, 4), (10_000, 40)])
def test_passes_that_only_decode_give_up_their_places_within_the_budget(monkeypatch: pytest.MonkeyPatch, budget: int, most: int) -> None:
    seen = []

    class Decoding:
        def __init__(self, engine: Any) -> None:
            self.out = 0

        async def run(self, batch: Any, read: Any) -> None:
            self.out += 1
            seen.append(self.out)
            read()
            for _ in range(30 + 17 * len(seen) % 60):
                await asyncio.sleep(0)
            self.out -= 1

        async def close(self) -> None:
            pass

    monkeypatch.setattr(slot_beside, "Runner", Decoding)
    engine = SimpleNamespace(executor=SimpleNamespace(default_budget=budget))
    assert len(slot_beside.run(SimpleNamespace(engine=engine), SimpleNamespace(ids=range(100)), 40)) == 40
    assert max(seen) == max(seen[20:]) == most
