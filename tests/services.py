"""Real services for the tests: Apache Kafka (KRaft, one node), Redis and Prometheus, on free loopback ports.

Each class keeps its port and its folder, so that a chaos test may `kill()` it and `start()` it again. A service has a
session of its own (Ctrl-C reaches pytest only) and a watchdog that kills it when the process that started it is gone,
however that went. The watchdog waits on a pipe: PR_SET_PDEATHSIG fires when the starting *thread* ends, which is too early.
"""

from __future__ import annotations

import abc
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from kafka_jars import KAFKA_VERSION, MissingRequirement, docker_answers, java17, kafka_jars

HOST = "127.0.0.1"
IMAGE = f"apache/kafka:{KAFKA_VERSION}"


def free_port() -> int:
    """A port below the ephemeral range: nothing takes it while its service is down between two starts.

    (A client that keeps connecting to a closed port inside the range can also end up connected to itself.)
    """
    for _ in range(500):
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free loopback port between 15000 and 32000")


class Service(abc.ABC):
    """One child process in a folder. Subclasses give its command and say when it is ready."""

    name: ClassVar[str]
    ready_seconds: ClassVar[float] = 30.0

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def after_us(self) -> str:
        """Shell: how the watchdog ends the service, $0 = its process group."""
        return 'kill -9 "-$0"'

    @abc.abstractmethod
    def command(self) -> Sequence[str]: ...

    @abc.abstractmethod
    def ready(self) -> bool: ...

    @abc.abstractmethod
    def prepare(self) -> None:
        """Bring what must be there before the process starts. Raises MissingRequirement."""

    def start(self) -> None:
        """Start and wait until it answers. Raises MissingRequirement, or RuntimeError with the end of its log."""
        assert self.process is None, f"{self.name} is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", f"read _; {self.after_us}", str(self.process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            wait_until(self._alive_and_ready, self.ready_seconds, f"{self.name} at {self.address}")
        except BaseException as e:
            self.kill()
            raise RuntimeError(f"{self.name} did not start: {e}; end of its log: {self._log_end()}") from None

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, and SIGKILL after `timeout` seconds."""
        if self.process is None:
            return
        self.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no goodbye to anybody."""
        if self.process is None:
            return
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.process = None
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None

    def restart(self, hard: bool = False) -> None:
        """Down and up again on the same port and folder; `hard` = SIGKILL."""
        self.kill() if hard else self.stop()
        self.start()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _alive_and_ready(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"it ended with status {self.process and self.process.returncode}")
        return self.ready()

    def _log_end(self) -> str:
        return " | ".join(self.log.read_text("utf-8", "replace").splitlines()[-8:])


class Kafka(Service):
    """One broker that is its own controller. `settings` adds to or replaces lines of server.properties."""

    name = "kafka"
    ready_seconds = 60.0

    def __init__(self, folder: Path, port: int | None = None, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, port)
        self.controller_port = free_port()
        self.settings = settings or {}
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
        self._docker = not java17() and docker_answers()
        data = self.folder / "data"
        properties = self.folder / "server.properties"
        inside = Path("/spinf/data") if self._docker else data
        lines = self.properties(inside, "0.0.0.0" if self._docker else HOST)  # inside its container; published on loopback
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        if self._docker:
            self.folder.chmod(0o777)  # the image's own user writes there
            subprocess.run(["docker", "pull", "-q", IMAGE], stdin=subprocess.DEVNULL, capture_output=True)
        elif not (data / "meta.properties").exists():
            format_ = [*self._java(), "kafka.tools.StorageTool", "format", "-t", "c3BpbmYtc3RyZWFtLXRlcw", "-c", str(properties)]
            done = subprocess.run(format_, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"kafka storage format failed: {(done.stdout + done.stderr).strip()[-500:]}")

    def command(self) -> Sequence[str]:
        if self._docker:
            mount = ["-v", f"{self.folder}:/spinf", "-p", f"{self.address}:{self.port}"]
            script = (
                "test -f /spinf/data/meta.properties || /opt/kafka/bin/kafka-storage.sh format"
                " -t c3BpbmYtc3RyZWFtLXRlcw -c /spinf/server.properties;"
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
        jars = kafka_jars()
        return [
            "java", "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp", f"{jars}/*",
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


def need(program: str, package: str, instead: str = "") -> None:
    if shutil.which(program) is None:
        raise MissingRequirement(f"{program} is missing: `apt-get install -y {package}`{instead}")


def exchange(port: int, request: bytes, size: int) -> bytes:
    """The first `size` bytes of the answer; fewer when nobody answers within 2 s."""
    answer = b""
    try:
        with socket.create_connection((HOST, port), 2) as s:
            s.settimeout(2)
            s.sendall(request)
            while len(answer) < size and (more := s.recv(size - len(answer))):
                answer += more
    except OSError:
        pass
    return answer


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll every 50 ms. Raises TimeoutError naming `what`."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
