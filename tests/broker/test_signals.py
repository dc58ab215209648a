"""The worker as a process: SIGTERM drains, a second signal aborts, logs are JSON without a word of an article."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest
import services
from kafka_io import Rec
from stage import Process, Stage, Topics, articles, burst, ids, page

from spinf_stream.stream.worker import check, serve

pytestmark = pytest.mark.kafka


def test_sigterm_drains_and_leaves_with_0(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2)
        names = [f"t{i:04d}" for i in range(2000)]
        await t.fill(articles(names, partitions=2))
        async with Process(t.settings(), budget=300, seconds=0.1) as w:
            await w.said("opened at")
            await t.out(20)
            w.signal(signal.SIGTERM)
            assert await w.ended() == 0
            await w.said("scored, 0 duplicates")
        out = ids(await t.out())
        assert 20 <= len(out) == len(set(out)) == sum((await t.committed()).values())  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_second_signal_aborts_with_130(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill(articles(["a", "b"]))
        async with Process(t.settings(drain_seconds=25.0), seconds=20.0) as w:
            await w.said("opened at")
            await asyncio.sleep(0.5)
            w.signal(signal.SIGTERM)
            await w.said("stopping: no more is read")
            w.signal(signal.SIGINT)
            assert await w.ended(8) == 130
        assert await t.out() == []
        await burst(t.settings())
        assert sorted(ids(await t.out())) == ["a", "b"]

    asyncio.run(main())


def test_five_aborted_workers_do_not_make_their_text_dead(kafka: str, topics: Any, redis_url: str) -> None:
    """A second signal says nothing about the engine."""

    async def main() -> None:
        t = Topics(kafka, topics, redis_url=redis_url, drain_seconds=25.0)
        await t.fill(articles([name := f"aborted-{time.time_ns()}"]))
        for _ in range(5):
            async with Process(t.settings(), seconds=20.0) as w:
                await w.said("opened at")
                await asyncio.sleep(0.5)
                w.signal(signal.SIGTERM)
                await w.said("stopping: no more is read")
                w.signal(signal.SIGINT)
                assert await w.ended(8) == 130
        w = await burst(t.settings())
        assert ids(await t.out()) == [name] and await t.dead() == [] and len(w.runner.passes) == 1

    asyncio.run(main())


def test_logs_are_json_with_places_and_without_text_at_debug_level(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill([Rec(b'{"text": "SECRETWORD one"}', b"k1"), Rec(b'{"text": "SECRETWORD', b"k2"), Rec(b'{"text": 5, "title": "SECRETWORD"}')])
        async with Process(t.settings(), log_level="debug", burst=True) as w:
            assert await w.ended() == 0
            lines = [json.loads(line) for line in w.output.splitlines()]
        assert "SECRETWORD" not in w.output
        assert [(x["place"], x["reason"]) for x in lines if "place" in x] == [
            (f"{t.source}-0-1", "not_json"), (f"{t.source}-0-2", "schema"),
        ]  # fmt: skip
        assert lines[-1]["message"].startswith("1 scored, 0 duplicates, 2 dead, 0 others in ")

    asyncio.run(main())


def test_health_and_metrics_on_one_port(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2)
        await t.fill([*articles(["a", "b"], partitions=2), Rec(b"{", b"k")])
        port = services.free_port()
        async with Stage(t.settings(port=port), seconds=0.05) as w:
            await t.out(2)
            await w.until(lambda: w.value("records_total") == 3)
            ask = lambda path: asyncio.to_thread(page, port, path)  # noqa: E731
            assert await ask("/healthz") == (200, "ok\n")
            assert await ask("/readyz") == (200, "2 partitions\n")
            status, text = await ask("/metrics")
            assert status == 200
            assert 'spinf_stream_records_total{outcome="scored"} 2.0' in text
            assert 'spinf_stream_dead_letters_total{reason="not_json"} 1.0' in text
            assert 'spinf_stream_dead_letters_total{reason="nonfinite"} 0.0' in text, "known label values begin at 0"
            assert f'spinf_stream_lag_records{{partition="0",topic="{t.source}"}}' in text
            for path, code in (("/nothing", 404), ("/readyz?x=1", 200)):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert (await reader.read()).startswith(f"HTTP/1.1 {code} ".encode())
                writer.close()

    asyncio.run(main())


def test_a_port_in_use_is_said_in_one_line(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        blocker = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = blocker.sockets[0].getsockname()[1]
        async with Stage(t.settings(port=port), ready=False) as w:
            assert await w.ended() == 3
        assert f"port {port} at 127.0.0.1" in caplog.text
        blocker.close()

    asyncio.run(main())


def test_a_broker_that_is_away_is_waited_for_and_then_named(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics("127.0.0.1:1", lambda n, name: name)
        w = Stage(t.settings(), ready=False)


        code = await serve(w.settings, w.scorer, w.runner, stop=w.stop, metrics=w.metrics, start_seconds=1.5)
        assert code == 3
        assert "Kafka at 127.0.0.1:1" in caplog.text and "tried again" in caplog.text

    asyncio.run(main())


def test_check_has_a_line_for_each_dependency(kafka: str, topics: Any, redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    t = Topics(kafka, topics, 3)
    assert asyncio.run(check(t.settings(redis_url=redis_url))) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 and all(line.startswith("ok ") for line in lines)
    assert f"topic {t.source}: 3 partitions, records up to 1048588 bytes" in lines[1]
    wrong = t.settings(dlq_topic="none-such", redis_url="redis://:hidden@127.0.0.1:1/0")
    assert asyncio.run(check(wrong)) == 3
    failed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 2 and "none-such" in failed[0] and "Redis" in failed[1] and "hidden" not in failed[1]
    assert asyncio.run(check(t.settings(brokers="127.0.0.1:1"))) == 3
