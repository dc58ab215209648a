"""The services themselves: they answer, they keep their port and data over a kill, and they never outlive their starter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import kafka_io
import pytest
import requirements
import services
from kafka_io import RawKey, Rec

pytestmark = pytest.mark.kafka
TESTS = Path(__file__).resolve().parents[1]


def test_records_go_in_and_come_out(kafka: str, topics) -> None:
    topic = topics(3)
    sent = [Rec(b"v%d" % i, b"k%d" % i, [("h", b"1"), ("h", None)], partition=i % 3) for i in range(30)]
    offsets = kafka_io.run(kafka_io.produce(kafka, topic, sent))
    assert sorted(offsets) == [(p, o) for p in range(3) for o in range(10)]
    back = kafka_io.run(kafka_io.read_all(kafka, topic))
    assert sorted(r.value for r in back) == sorted(r.value for r in sent)
    assert back[0].headers == (("h", b"1"), ("h", None))


def test_a_raw_header_key_reaches_the_log_and_breaks_only_a_client_that_decodes(kafka: str, topics) -> None:
    topic = topics(1)
    batch = [Rec(b"good"), Rec(b"bad", headers=[(RawKey.of(b"\xff\xfe"), b"x")]), Rec(b"good too")]
    assert kafka_io.run(kafka_io.produce_batch(kafka, topic, batch)) == 0
    with pytest.raises(UnicodeDecodeError):
        kafka_io.run(kafka_io.read_all(kafka, topic, seconds=5))


def test_committed_reads_leave_out_an_aborted_transaction(kafka: str, topics) -> None:
    from aiokafka import AIOKafkaProducer

    topic = topics(1)

    async def two_transactions() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=topic)
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"dropped")
        await producer.abort_transaction()
        await producer.stop()

    kafka_io.run(two_transactions())
    assert [r.value for r in kafka_io.run(kafka_io.read_all(kafka, topic))] == [b"kept"]
    assert [r.value for r in kafka_io.run(kafka_io.read_all(kafka, topic, committed=False))] == [b"kept", b"dropped"]


def test_a_killed_broker_comes_back_on_its_port_with_its_records(tmp_path: Path) -> None:
    broker = services.Kafka(tmp_path / "kafka")
    broker.start()
    try:
        kafka_io.run(kafka_io.create(broker.address, {"t": 1}))
        kafka_io.run(kafka_io.produce(broker.address, "t", [Rec(b"1"), Rec(b"2")]))
        before = broker.pid
        broker.restart(hard=True)
        assert broker.pid != before
        assert [r.value for r in kafka_io.run(kafka_io.read_all(broker.address, "t"))] == [b"1", b"2"]
    finally:
        broker.stop()
    assert services.exchange(broker.port, b"", 1) == b""


def test_redis_answers_restarts_and_pauses(tmp_path: Path) -> None:
    server = services.Redis(tmp_path / "redis")
    server.start()
    try:
        assert services.exchange(server.port, b"SET a 1\r\nGET a\r\n", 12) == b"+OK\r\n$1\r\n1\r\n"
        server.pause()
        assert not server.ready()
        server.resume()
        assert server.ready()
        server.restart(hard=True)
        assert services.exchange(server.port, b"GET a\r\n", 5) == b"$-1\r\n"
    finally:
        server.stop()


def test_a_service_dies_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time, services; s = services.Redis(pathlib.Path(sys.argv[1])); s.start();"
        "print(s.pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "r")], cwd=TESTS, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    os.kill(pid, 0)
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    services.wait_until(lambda: not _alive(pid), 5, f"the end of process {pid}")


def test_what_is_missing_is_one_line_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for service in (services.Kafka(tmp_path / "k"), services.Redis(tmp_path / "r"), services.Prometheus(tmp_path / "p", "")):
        with pytest.raises(services.MissingRequirement, match=r"is missing: `apt-get install -y [a-z0-9 -]+`") as said:
            service.start()
        assert "\n" not in str(said.value)


def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """One that has these programs alone, each a shell script, and no jars yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SPINF_TEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPINF_TEST_KAFKA", raising=False)


JAVA = "echo 'openjdk version \"{}.0.2\" 2024' >&2"


@pytest.mark.parametrize("java", [{}, {"java": JAVA.format(11)}, {"java": JAVA.format(17)}], ids=["none", "11", "17 without Maven"])
@pytest.mark.parametrize("docker", [{}, {"docker": "exit 0"}, {"docker": "exit 1"}], ids=["none", "answers", "does not answer"])
def test_requirements_and_the_broker_agree_on_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: dict[str, str], docker: dict[str, str]
) -> None:
    _machine(tmp_path, monkeypatch, **java, **docker)
    lacks = [line for line in requirements.missing() if re.match("Java|Maven", line)]
    broker = services.Kafka(tmp_path / "kafka")
    broker.folder.mkdir()
    if docker == {"docker": "exit 0"}:
        broker.prepare()
        assert lacks == [] and broker.command()[0] == "docker"
    else:
        with pytest.raises(services.MissingRequirement) as said:
            broker.prepare()
        assert lacks == [str(said.value)]
        assert str(said.value).startswith("Maven" if "17" in java.get("java", "") else "Java 17")


def test_without_java_a_docker_engine_runs_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command alone: no engine is at hand where this suite runs."""
    _machine(tmp_path, monkeypatch, docker=f'echo "$@" >> {tmp_path}/calls')
    broker = services.Kafka(tmp_path / "kafka")
    broker.folder.mkdir()
    broker.prepare()
    command = " ".join(broker.command())
    assert f"-p 127.0.0.1:{broker.port}:{broker.port} " in command
    assert f"-v {broker.folder}:/spinf " in command
    assert f" {services.IMAGE} " in command
    properties = (broker.folder / "server.properties").read_text()
    assert f"listeners=CLIENTS://0.0.0.0:{broker.port},CONTROLLER://127.0.0.1:" in properties
    assert f"advertised.listeners=CLIENTS://127.0.0.1:{broker.port}\n" in properties
    assert "log.dirs=/spinf/data\n" in properties
    broker.signal(signal.SIGTERM)
    assert (tmp_path / "calls").read_text().splitlines()[-1] == f"kill -s 15 spinf-test-kafka-{broker.port}"


def test_a_service_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = services.Redis(tmp_path / "redis", options=["--no-such-option", "1"])
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="no-such-option"):
        server.start()
    assert time.monotonic() - began < 5


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
