"""The stack of compose.yaml as processes: articles flow, and every expression of board and rules has an answer."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prom
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from ops_files import COMPOSE, alerts, metrics_in, panels, queries, rules, services
from stack import Stack
from stack_services import Kafka
from tiny import make_tiny

pytestmark = pytest.mark.kafka

# what a healthy stack with questions of its own has no series of, and why
EMPTY = {
    "panel Score drift": "a question file is no pack and has no baseline",
    "panel Device memory and power": "a CPU has none",
}

QUESTIONS = """
[[queries]]
id = "about"
template = " the {topic}{?}"
options = [" yes", " no"]
combinations = [{ topic = "sport" }, { topic = "world" }]
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str]]:
    """Everything up and scored: the stack, and Prometheus' address."""
    folder = tmp_path_factory.mktemp("stack")
    broker = Kafka(folder / "kafka")
    broker.start()
    (folder / "questions.toml").write_text(QUESTIONS, "utf-8")  # the sample's options are long in the tiny model's letters
    model = {"MODEL": str(make_tiny(folder / "model")), "FEED_RATE": "8"}
    s = Stack(folder, broker, model, {"/app/questions.toml": folder / "questions.toml"})
    prometheus = s.prometheus()
    try:
        s.start("redis")
        s.healthy("redis")
        s.run("topics")
        s.start("worker")
        s.start("feeder")
        prometheus.start()
        s.healthy("worker")
        s.healthy("feeder")
        prom.until(lambda: value(prometheus.url, 'spinf_stream_records_total{outcome="duplicate"}') > 0, 90, "a duplicate")
        prom.until(lambda: value(prometheus.url, 'spinf_stream_records_total{outcome="scored"}') > 8, 90, "the second edition")
        prom.until(lambda: prom.query(prometheus.url, "spinf_stream:questions:rate1m"), 30, "a rate of what the first answer began")
        prom.until(lambda: value(prometheus.url, "count_over_time(spinf_stream_dependency_up[1m])") > 10, 60, "some samples")
        yield s, prometheus.url
        assert broker.process is not None and broker.process.poll() is None
    finally:
        prometheus.stop()
        s.stop()
        broker.stop()


def value(url: str, expr: str) -> float:
    return sum(float(r["value"][1]) for r in prom.query(url, f"sum({expr})"))


def test_articles_flow(stack: tuple[Stack, str]) -> None:
    url = stack[1]
    assert value(url, 'spinf_stream_records_total{outcome="scored"}') > 8
    assert value(url, "spinf_stream_dead_letters_total") == 0
    assert value(url, "spinf_stream_dependency_up") == 2
    assert value(url, "spinf_stream_floors") > 0


def test_a_first_start_on_a_fresh_cluster_logs_nothing_bad(stack: tuple[Stack, str]) -> None:
    lines = [json.loads(line) for line in (stack[0].folder / "worker.log").read_text("utf-8").splitlines() if line.startswith("{")]
    assert any("opened at 0" in line["message"] for line in lines)
    assert [line for line in lines if line["level"] in ("warning", "error")] == []


def test_every_panel_and_recording_rule_has_data(stack: tuple[Stack, str]) -> None:
    """Each expression of each panel; an annotation marks an event and has data only around one."""
    events = ("alert ", "annotation ")
    nothing = {q.where for q in queries() if not prom.query(stack[1], q.expr) and not q.where.startswith(events)}
    assert nothing == EMPTY.keys()


def test_alerts_are_quiet_and_see_their_metrics(stack: tuple[Stack, str]) -> None:
    url = stack[1]
    assert prom.firing(url) == set()
    recorded = {r["record"] for r in rules() if "record" in r}
    for q in queries():
        if q.where.startswith("alert ") and q.where != "alert ScoreDrift":
            for name in metrics_in(q.expr) - recorded:
                assert prom.query(url, name), f"{q.where}: {name} has no series"


def test_runbook_links_lead_to_their_pages(stack: tuple[Stack, str]) -> None:
    base = prom.ask(stack[1], "status/flags")["web.external-url"]
    assert base == stack[1], "as compose.yaml sets it"
    for a in alerts():
        assert prom.page(a["annotations"]["runbook_url"].replace("{{ externalURL }}", base)).startswith(f"# {a['alert']}\n")


def test_kafka_runs_with_every_variable_of_its_service(stack: tuple[Stack, str]) -> None:
    """None is unknown to the broker, and a producer of the host reaches it by the address that it is given there."""
    kafka = stack[0].kafka
    given = kafka.properties(kafka.folder)

    async def ask() -> tuple[set[str], list[str]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.outside)
        await admin.start()
        try:
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])
            known = {config[0] for config in answer.resources[0][4]}
            return known, [f"{b['host']}:{b['port']}" for b in (await admin.describe_cluster())["brokers"]]
        finally:
            await admin.close()

    known, brokers = asyncio.run(ask())
    assert len(given) == sum(name.startswith("KAFKA_") for name in services()["kafka"]["environment"])
    assert set(given) - known == set()
    assert brokers == [kafka.outside]


def test_prometheus_loaded_every_rule(stack: tuple[Stack, str]) -> None:
    groups: list[dict[str, Any]] = prom.ask(stack[1], "rules")["groups"]
    loaded = [r for g in groups for r in g["rules"]]
    assert len(loaded) == len(rules())
    assert [r for r in loaded if r.get("lastError")] == []


def test_top_reads_the_live_worker(stack: tuple[Stack, str]) -> None:
    done = subprocess.run(
        ["spinf-stream", "top", f"127.0.0.1:{stack[0].port}", "--once", "--interval", "1"],
        env=stack[0].environment("worker"), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"1 worker, 8 partitions   kafka ok   redis ok", done.stdout), done.stdout
    assert re.search(r"scored [1-9]", done.stdout)


def test_board_is_drawn(stack: tuple[Stack, str], tmp_path: Path) -> None:
    """`make board` on the live Prometheus: every panel drawn, those without data said so."""
    png = Path(os.environ.get("SPINF_TEST_BOARD", tmp_path / "board.png"))
    done = subprocess.run(
        [sys.executable, str(COMPOSE / "board.py"), "--prometheus", stack[1], "--minutes", "2", "--out", str(png)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f": {len(panels())} panels, {len(EMPTY)} of them without data\n"), done.stdout
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 50_000


def test_the_worker_drains_and_leaves_within_its_grace(stack: tuple[Stack, str], tmp_path: Path) -> None:
    """The last test: SIGTERM ends the worker with 0, and starting it again goes on."""
    s = stack[0]
    assert s.end("worker") == 0, s.log("worker")
    s.start("worker")
    s.healthy("worker")
