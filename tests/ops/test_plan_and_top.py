"""`spinf-stream plan` rests on figures that are in bench/results; `spinf-stream top` shows what a worker exports."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest

from spinf_stream.cli import main
from spinf_stream.health import Server, State
from spinf_stream.metrics import Metrics
from spinf_stream.plan_cli import DAY, RATES, Load, plan, read
from spinf_stream.top_cli import Scrape, scrape, view

ROOT = Path(__file__).resolve().parents[2]
JOB = ["--articles-per-day", "5000000", "--questions", "74", "--tokens", "470"]


def test_each_rate_is_the_run_that_it_names() -> None:
    for rate in read(RATES).rates:
        runs = json.loads((ROOT / rate.result).read_text("utf-8"))["runs"]
        run = next(r for r in runs if r["engine"] == rate.engine)
        measured = run["tokens"] / run["wall_ms"] * 1000
        assert rate.tokens_per_second == pytest.approx(measured, rel=0.1), f"{rate.result}: measured {measured:.0f} tokens/s"


def test_plan_by_hand() -> None:
    rate = read(RATES).rates[0]
    load = Load(articles_per_day=DAY * 10, questions=50, tokens=500, question_tokens=10, peak=2, use=0.5, duplicates=0.5)
    p = plan(load, msgspec.structs.replace(rate, tokens_per_second=5000.0))
    # 10 articles/s, half of them copies, 1,000 tokens each, twice that in the busiest hour: 10,000 tokens/s over 2,500 usable
    assert (p.tokens_per_article, p.articles_per_second, p.tokens_per_second) == (1000, 5, 10_000)
    assert (p.gpus, p.partitions) == (4, 8)
    assert (p.busy_mean, p.busy_peak, p.most_per_day) == (0.25, 0.5, DAY * 10)


@pytest.mark.parametrize("factor", [1, 3, 17, 400])
def test_the_plan_carries_its_load(factor: int) -> None:
    rate = read(RATES).rates[0]
    p = plan(Load(1e6 * factor, 74, 470, 8.0, 2.0, 0.7, 0.0), rate)
    assert p.busy_peak <= 0.7 + 1e-9 and p.most_per_day >= 1e6 * factor * (1 - 1e-9)
    assert p.gpus == 1 or p.tokens_per_second > (p.gpus - 1) * rate.tokens_per_second * 0.7, "one GPU fewer would do"
    assert p.partitions >= 2 * p.gpus and p.partitions & (p.partitions - 1) == 0


def test_plan_prints_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *JOB, "--gpu", "h200", "--price", "2.5"]) == 0
    said = capsys.readouterr().out
    for words in ("GPUs         ", "partitions   ", "headroom     ", "bench/results/worker-nvidia-h200.json", "a million articles"):
        assert words in said


def test_the_capacity_page_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "compose" / "capacity.md").read_text("utf-8")
    (example,) = re.findall(r"^```json\n(.+?)^```$", page, re.M | re.S)
    (tmp_path / "rates.json").write_text(example)
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^    \$ spinf-stream (plan .+)\n((?:    .+\n?)+)", page, re.M)
    assert len(shown) == 2
    for command, printed in shown:
        assert main(command.split()) == 0
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


def test_plan_refuses_what_it_cannot_know(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", *JOB, "--gpu", "b300"]) == 2
    assert "no measured rate of 'b300'; there is h200" in capsys.readouterr().err
    assert main(["plan", *JOB, "--use", "1.5"]) == 2
    (tmp_path / "rates.json").write_text('{"rates": [{}]}')
    assert main(["plan", *JOB, "--rates", str(tmp_path / "rates.json")]) == 2
    assert "rates.json" in capsys.readouterr().err


def metrics(scored: int, dead: int, busy: float, partition: int = 0) -> Metrics:
    m = Metrics(2048)
    m.of_partition("articles", partition)
    m.records.labels("scored").inc(scored)
    m.records.labels("dead").inc(dead)
    m.dead_letters.labels("schema").inc(dead)
    m.engine_seconds.inc(busy)
    m.lag.labels("articles", str(partition)).set(7)
    m.lag_seconds.labels("articles", str(partition)).set(3.5 + partition)
    m.partitions.set(1)
    m.dependency_up.labels("kafka").set(1)
    m.dependency_up.labels("redis").set(0)
    m.blocked.set(1)
    m.batch_fill.observe(0.5)
    return m


async def _scraped(*all_metrics: Metrics) -> Scrape:
    servers = [Server("127.0.0.1", 0, m, lambda: State(True, "ok"), lambda: State(True, "ok")) for m in all_metrics]
    for s in servers:
        await s.start()
    try:
        return await asyncio.to_thread(scrape, [f"http://127.0.0.1:{s.port}" for s in servers] + ["http://127.0.0.1:9"])
    finally:
        for s in servers:
            await s.stop()


def test_top_shows_rates_between_two_scrapes() -> None:
    async def both() -> tuple[Scrape, Scrape]:
        return await _scraped(metrics(10, 0, 1.0), metrics(10, 0, 1.0, 1)), await _scraped(metrics(60, 1, 2.0), metrics(60, 1, 2.0, 1))

    before, now = asyncio.run(both())
    assert now.workers == 2 and now.away == ("http://127.0.0.1:9",)
    before, now = before._replace(at=0.0), now._replace(at=2.0)
    lines = "\n".join(view(before, now))
    assert "2 workers, 2 partitions   kafka ok   redis AWAY   2 BLOCKED" in lines
    assert "50.0 articles/s" in lines and "14 records" in lines and "4.5 s oldest" in lines
    assert "device busy    ############............  50%" in lines
    assert "scored 120" in lines and "schema 2" in lines and "no answer      http://127.0.0.1:9" in lines


def test_top_after_a_restart_has_no_negative_rate() -> None:
    async def both() -> tuple[Scrape, Scrape]:
        return await _scraped(metrics(1000, 5, 50.0)), await _scraped(metrics(1, 0, 0.1))

    before, now = asyncio.run(both())
    lines = "\n".join(view(before._replace(at=0.0), now._replace(at=1.0)))
    assert "-" not in lines.replace("spinf-stream", "")


def test_top_without_a_worker_is_a_dependency_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "127.0.0.1:9", "--once"]) == 3
    assert "no worker answers" in capsys.readouterr().err
