"""Real services for the tests: Apache Kafka (KRaft, one node), Redis and Prometheus, on free loopback ports.

Each class keeps its port and its folder, so that a chaos test may `kill()` it and `start()` it again: see service.py.
"""

from __future__ import annotations

import struct
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from kafka_jars import KAFKA_VERSION, MissingRequirement, broker_jars, kafka_jars
from service import HOST, Service, exchange, free_port, hear_ctrl_c, need, wait_until

__all__ = [
    "HOST", "IMAGE", "Kafka", "MissingRequirement", "Prometheus", "Redis", "Service",
    "exchange", "free_port", "hear_ctrl_c", "need", "wait_until",
]  # fmt: skip

IMAGE = f"apache/kafka:{KAFKA_VERSION}"


class Kafka(Service):
    """One broker that is its own controller. `settings` adds to or replaces lines of server.properties."""

    name = "kafka"
    ready_seconds = 60.0
    cluster_id = "c3BpbmYtc3RyZWFtLXRlcw"

    def __init__(self, folder: Path, port: int | None = None, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, port)
        self.controller_port = free_port()
        self.settings = settings or {}
        self._jars: Path | None = None
        self._docker = False

    def properties(self, data: Path, listen: str = HOST) -> dict[str, object]:
        """server.properties: small, fast to form groups, quick to notice that somebody is gone."""
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "listeners": f"CLIENTS://{listen}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"CLIENTS://{self.address}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENTS",
            "log.dirs": data,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "broker.session.timeout.ms": 2000,  # after a kill the broker must wait for its own old session
            "broker.heartbeat.interval.ms": 500,
            "controlled.shutdown.enable": "false",
            "log.cleaner.dedupe.buffer.size": 8 * 2**20,
            "log.index.size.max.bytes": 2**20,
            **self.settings,
        }

    def prepare(self) -> None:
        self._jars = broker_jars()
        self._docker = self._jars is None
        data = self.folder / "data"
        properties = self.folder / "server.properties"
        inside = Path("/spinf/data") if self._docker else data
        lines = self.properties(inside, "0.0.0.0" if self._docker else HOST)  # inside its container; published on loopback
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        if self._docker:
            self.folder.chmod(0o777)  # the image's own user writes there
            subprocess.run(["docker", "pull", "-q", IMAGE], stdin=subprocess.DEVNULL, capture_output=True)
        elif not (data / "meta.properties").exists():
            format_ = [*self._java(), "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(properties)]
            done = subprocess.run(format_, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"kafka storage format failed: {(done.stdout + done.stderr).strip()[-500:]}")

    def command(self) -> Sequence[str]:
        if self._docker:
            mount = ["-v", f"{self.folder}:/spinf", "-p", f"{self.address}:{self.port}"]
            script = (
                "test -f /spinf/data/meta.properties || /opt/kafka/bin/kafka-storage.sh format"
                f" -t {self.cluster_id} -c /spinf/server.properties;"
                " exec /opt/kafka/bin/kafka-server-start.sh /spinf/server.properties"
            )
            return ["docker", "run", "--rm", "--name", self._container, *mount, "--entrypoint", "sh", IMAGE, "-c", script]
        return [*self._java(), "kafka.Kafka", str(self.folder / "server.properties")]

    def signal(self, number: int) -> None:
        if self._docker:
            subprocess.run(["docker", "kill", "-s", str(number), self._container], stdin=subprocess.DEVNULL, capture_output=True)
        super().signal(number)

    def ready(self) -> bool:
        """It answers an ApiVersions request: the listener opens early, requests are processed only once it has joined."""
        body = struct.pack(">hhih", 18, 0, 1, -1)  # key, version, correlation id, null client id
        answer = exchange(self.port, struct.pack(">i", len(body)) + body, 10)
        return len(answer) == 10 and answer[4:10] == struct.pack(">ih", 1, 0)

    @property
    def after_us(self) -> str:
        return (f"docker kill {self._container}; " if self._docker else "") + super().after_us

    @property
    def _container(self) -> str:
        return f"spinf-test-kafka-{self.port}"

    def _java(self) -> list[str]:
        return [
            "java", "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp", f"{self._jars or kafka_jars()}/*",
        ]  # fmt: skip


class Redis(Service):
    """Keeps nothing over a restart unless `options` say so (`["--appendonly", "yes"]`)."""

    name = "redis"

    def __init__(self, folder: Path, port: int | None = None, options: Sequence[str] = ()) -> None:
        super().__init__(folder, port)
        self.options = options

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def prepare(self) -> None:
        need("redis-server", "redis-server", " (or set SPINF_TEST_REDIS=redis://HOST:PORT/0)")

    def command(self) -> Sequence[str]:
        base = ["redis-server", "--port", str(self.port), "--bind", HOST, "--save", "", "--dir", str(self.folder)]
        return [*base, *self.options]

    def ready(self) -> bool:
        return exchange(self.port, b"PING\r\n", 7) in (b"+PONG\r\n", b"-NOAUTH")


class Prometheus(Service):
    """`config` is the text of prometheus.yml; written on every start, so a test may change it in between."""

    name = "prometheus"

    def __init__(self, folder: Path, config: str, port: int | None = None) -> None:
        super().__init__(folder, port)
        self.config = config

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def prepare(self) -> None:
        need("prometheus", "prometheus")
        (self.folder / "prometheus.yml").write_text(self.config, "utf-8")

    def command(self) -> Sequence[str]:
        return [
            "prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
            f"--web.listen-address={self.address}", "--log.level=warn",
        ]  # fmt: skip

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False
