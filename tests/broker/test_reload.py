"""SIGHUP under load: packs are exchanged, no record is lost, and every output names the version that scored it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeScorer
from kafka_io import Rec
from stage import Process, Stage, Topics, articles, ids, scores
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine.live import open_live
from spinf_stream.engine.runner import Runner
from spinf_stream.engine.scorer import Reloaded
from spinf_stream.packs.file import from_doc
from spinf_stream.records import Scores

pytestmark = pytest.mark.kafka


def pack(folder: Path, version: str, options: tuple[str, ...] = (" sport", " tech"), broken: str = "") -> str:
    """Writes it; its digest."""
    doc = {
        "pack": "t/a", "version": version, "calibrated": False, "contexts": {"main": "{X}"},
        "scoring": {"queries": [{"id": "s", "template": f"\n\nIn version {version} it is about:{{?}}", "options": list(options)}]},
        "reads": [{"id": "r", "query": "s", "kind": "option", "option": 0, "category": "c"}],
        "categories": {"c": {}}, "decision": {"mode": "max", "max": {}},
    }  # fmt: skip
    (folder / "a.json").write_text(json.dumps(doc) + broken)
    return "" if broken else from_doc(doc).digest


def p(o: Scores) -> list[float]:
    assert isinstance(o.scores, list)
    return [option.p for q in o.scores for c in q.combinations for option in c.options]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny(tmp_path / "tiny")


def settings(t: Topics, tmp_path: Path, model: Path, **more: Any) -> Settings:
    sources = {"packs": (PackEntry("t/a"),), "pack_sources": (str(tmp_path / "packs"),), "cache_dir": str(tmp_path / "cache")}
    return t.settings(model=str(model), token_budget=400, max_wait_ms=20, **sources, **more)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_packs_are_exchanged_under_load(kafka: str, redis_url: str, topics: Any, tmp_path: Path, model: Path, delivery: str) -> None:
    (tmp_path / "packs").mkdir()
    digests = {"1": pack(tmp_path / "packs", "1")}
    rng = random.Random(7)
    # every third text has been there before: answers remembered from the questions before a reload are none after it
    texts = [f"text {rng.randrange(10**9)}" for _ in range(600)]
    texts = [rng.choice(texts[:n]) if n % 3 == 2 else text for n, text in enumerate(texts)]
    records = [Rec(json.dumps({"id": f"a{n}", "text": text}).encode(), str(n).encode(), (), n % 2) for n, text in enumerate(texts)]

    async def main() -> None:
        t = Topics(kafka, topics, 2)
        s = settings(t, tmp_path, model, delivery=delivery, redis_url=redis_url, dedup_secret="x")
        live = open_live(s)
        runner = Runner(live.engine)
        asked = {"1": live.questions_digest}
        async with Stage(s, live=(live, runner)) as w:
            for version, block in enumerate(range(0, 600, 200), 1):
                if version > 1:
                    digests[str(version)] = pack(tmp_path / "packs", str(version))
                    w.reload.set()
                    if version == 2:  # in the middle of a block; the last one between two
                        await w.until(lambda: w.value("reloads_total", result="changed") == 1, 20)
                feeding = asyncio.create_task(t.fill(records[block : block + 200]))
                if version == 3:
                    await w.until(lambda: w.value("reloads_total", result="changed") == 2, 20)
                asked[str(version)] = live.questions_digest
                await feeding
                await w.until(lambda n=block: w.value("records_total") >= n + 100, 60)  # type: ignore[misc]
            pack(tmp_path / "packs", "4", broken="}")
            w.reload.set()
            await w.until(lambda: w.value("reloads_total", result="unchanged") == 1, 20)
            assert w.value("reload_kept_total") == 1
            await w.until(lambda: w.value("records_total") == 600, 60)
        await runner.close()
        out = [scores(r) for r in await t.out(600)]
        assert Counter(ids(await t.out(600))) == Counter(f"a{n}" for n in range(600)), "each once, none lost"
        for o in out:
            (said,) = o.packs
            version = said["version"]
            assert (said["digest"], o.questions_digest) == (digests[version], asked[version])
            assert [q.id for q in o.scores] == ["s"]
        versions = Counter(o.packs[0]["version"] for o in out)
        assert set(versions) == {"1", "2", "3"} and min(versions.values()) >= 50, versions
        of_text = {(texts[int(o.id[1:])], o.packs[0]["version"]): p(o) for o in out}
        for o in out:  # on a CPU two passes agree to 1e-5
            assert p(o) == pytest.approx(of_text[texts[int(o.id[1:])], o.packs[0]["version"]], abs=1e-5), "one text, one version, one answer"
        assert len({asked[v] for v in "123"}) == 3 and await t.dead() == []

    asyncio.run(main())


def test_sighup_reaches_a_worker_process(kafka: str, topics: Any, tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        (tmp_path / "packs").mkdir()
        pack(tmp_path / "packs", "1")
        t = Topics(kafka, topics)
        s = settings(t, tmp_path, model)
        async with Process(s) as w:
            await w.said("opened at")
            await t.fill(articles(["a"]))
            await t.out(1)
            pack(tmp_path / "packs", "2", options=(" politics", " tech"))
            w.signal(signal.SIGHUP)
            await w.said("reload: changed")
            await t.fill(articles(["b"]))
            out = [scores(r) for r in await t.out(2)]
            assert [o.packs[0]["version"] for o in out] == ["1", "2"]
            w.signal(signal.SIGTERM)
            assert await w.ended() == 0

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_sighup_under_load_loses_no_record_of_a_worker_process(kafka: str, topics: Any, tmp_path: Path, model: Path, delivery: str) -> None:
    """Signals from outside right behind a burst of records, which are in flight then; one of them finds a broken file."""
    burst = 160
    (tmp_path / "packs").mkdir()
    rng = random.Random(11)
    records = [Rec(json.dumps({"id": f"a{n}", "text": f"text {rng.randrange(10**9)}"}).encode(), str(n).encode(), (), n % 2) for n in range(5 * burst)]

    async def main() -> None:
        digests = {"1": pack(tmp_path / "packs", "1")}
        t = Topics(kafka, topics, 2)
        async with Process(settings(t, tmp_path, model, delivery=delivery)) as w:
            await w.said("opened at")
            sent = 0

            async def alone(before: int = 0) -> None:
                """Once all before it is out: a few by this version for certain."""
                nonlocal sent
                await t.fill(records[sent + before : sent + before + 5])
                sent += before + 5
                await t.out(sent, seconds=90)

            await alone()
            for turn, version in enumerate(("2", "broken", "3", "4")):
                if version == "broken":
                    pack(tmp_path / "packs", "5", broken="}")
                else:
                    digests[version] = pack(tmp_path / "packs", version)
                await t.fill(records[sent : sent + burst])
                w.signal(signal.SIGHUP)
                done = len(await t.out())
                assert done < sent + burst, "some were in flight or waiting when the signal came"
                before = time.monotonic()
                while w.output.count("reload: changed") + w.output.count("reload: nothing changed") <= turn:
                    assert time.monotonic() < before + 30, w.output[-2000:]
                    await asyncio.sleep(0.02)
                await alone(burst)
            assert w.output.count("reload: nothing changed") == 1 and "stays" in w.output
            await t.fill(records[sent:])
            await t.out(len(records), seconds=90)
            w.signal(signal.SIGTERM)
            assert await w.ended() == 0
        out = [scores(r) for r in await t.out()]
        assert Counter(o.id for o in out) == Counter(f"a{n}" for n in range(len(records))), "each once, none lost"
        assert await t.dead() == []
        named = {(o.packs[0]["version"], o.packs[0]["digest"]) for o in out}
        assert named == set(digests.items())
        assert len({(o.packs[0]["version"], o.questions_digest) for o in out}) == len({o.questions_digest for o in out}) == 4

    asyncio.run(main())


def test_a_scorer_that_cannot_reload_says_so_and_goes_on(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        async with Process(t.settings()) as w:
            await w.said("opened at")
            w.signal(signal.SIGHUP)
            await w.said("nothing here can be reloaded")
            await t.fill(articles(["a"]))
            assert ids(await t.out(1)) == ["a"]

    asyncio.run(main())


def test_a_reload_that_hangs_holds_up_no_drain(kafka: str, topics: Any) -> None:
    class Hanging(FakeScorer):
        def reload(self, run: Any) -> Reloaded:
            time.sleep(30)
            return Reloaded(True, [])

    async def main() -> float:
        t = Topics(kafka, topics)
        await t.fill(articles(["a"]))
        async with Stage(t.settings(drain_seconds=2.0), scorer=Hanging()) as w:
            w.reload.set()
            assert ids(await t.out(1)) == ["a"], "and no record"
            began = time.monotonic()
            assert await w.leave() == 0
        return time.monotonic() - began

    assert asyncio.run(main()) < 5.0


def test_a_signal_before_the_start_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model loads. SIGHUP by itself would end the process."""
    seen: dict[str, Any] = {}

    def loading(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return FakeScorer()

    async def serving(*_: Any, reload: asyncio.Event, **__: Any) -> int:
        seen["asked"] = reload.is_set()
        return 0

    monkeypatch.setattr("spinf_stream.engine.live.open_live", loading)
    monkeypatch.setattr("spinf_stream.stream.worker.serve", serving)
    before = signal.getsignal(signal.SIGHUP)
    try:
        assert main(["worker", "--questions", "q.json"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == {"asked": True}
