"""compose.yaml's services as processes of this machine: their own commands, environment and health checks.

Only what a container would have given is put in: addresses of the other services, places of mounted files, a free port.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import services
import yaml
from ops_files import COMPOSE
from ops_files import services as compose_services
from stack_services import Kafka, Prometheus

SECRETS = {"REDIS_PASSWORD": "a test's password", "DEDUP_SECRET": "a test's secret", "GRAFANA_PASSWORD": "unused"}


class Stack:
    """`kafka` is started by the test. Call `stop` at the end."""

    def __init__(self, folder: Path, kafka: Kafka, env: dict[str, str], mounts: dict[str, Path]) -> None:
        """`mounts`: other files at a container's path, instead of those that compose.yaml mounts there."""
        self.folder, self.kafka = folder, kafka
        self._mounts = mounts
        self.redis_port, self.port = services.free_port(), services.free_port()
        self._env = {**dict(re.findall(r"^([A-Z_]+)=(.*)$", (COMPOSE / ".env.example").read_text("utf-8"), re.M)), **SECRETS, **env}
        self._places = {
            "kafka:19092": kafka.address, "redis:6379": f"127.0.0.1:{self.redis_port}", "0.0.0.0": "127.0.0.1",
            "127.0.0.1:9464": f"127.0.0.1:{self.port}", "/cache": str(folder / "cache"), "/tmp/fed": str(folder / "fed"),
        }  # fmt: skip
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        bin = str(Path(sys.executable).parent)
        self._base = {k: v for k, v in os.environ.items() if not k.startswith("SPINF_STREAM_")} | {"PATH": f"{bin}:{os.environ['PATH']}"}

    def command(self, name: str) -> list[str]:
        s = compose_services()[name]
        words = [self._here(name, w) for w in s["command"]]
        if name == "redis":  # a shell line: the container's port and folder are added at its end
            words[-1] += f" --port {self.redis_port} --bind 127.0.0.1 --dir {self.folder}"
        return words

    def environment(self, name: str) -> dict[str, str]:
        own = {k: self._here(name, str(v)) for k, v in compose_services()[name].get("environment", {}).items()}
        if name == "worker":
            own["SPINF_STREAM_PORT"] = str(self.port)
        return {**self._base, **own}

    def start(self, name: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                self.command(name), env=self.environment(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, name: str) -> None:
        """A job: it must end with 0."""
        self.start(name)
        assert self._running.pop(name).wait(60) == 0, self.log(name)

    def healthy(self, name: str, seconds: float = 120.0) -> float:
        """Wait until the service's own health check passes; how long it took."""
        kind, *test = compose_services()[name]["healthcheck"]["test"]
        words = [self._here(name, w) for w in test]
        if name == "redis":
            words[-1] = words[-1].replace("redis-cli", f"redis-cli -p {self.redis_port}")
        began = time.monotonic()
        while True:
            done = subprocess.run(["sh", "-c", words[0]] if kind == "CMD-SHELL" else words, env=self.environment(name), capture_output=True, timeout=60)
            if done.returncode == 0:
                return time.monotonic() - began
            assert self._running[name].poll() is None, f"{name} ended: {self.log(name)}"
            assert time.monotonic() - began < seconds, f"{name} is not healthy after {seconds:g} s: {done.stderr[-300:]!r} {self.log(name)}"
            time.sleep(0.5)

    def end(self, name: str) -> int:
        """SIGTERM to the container's first process, as `docker stop` does; the exit code."""
        process = self._running.pop(name)
        if process.poll() is not None:
            return process.returncode
        os.killpg(process.pid, signal.SIGTERM)
        try:
            return process.wait(45)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            self.end(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")[-2000:]

    def prometheus(self) -> Prometheus:
        """Debian's Prometheus with the stack's own files, not started. Scrapes every second, so that a test is short."""
        return prometheus(self.folder / "prometheus", [f"127.0.0.1:{self.port}"], (COMPOSE / "prometheus" / "rules.yml").read_text("utf-8"), "1s")

    def _here(self, name: str, text: str) -> str:
        for volume in compose_services()[name].get("volumes", []):
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                text = text.replace(target, str(self._mounts.get(target, (COMPOSE / source).resolve())))
        text = re.sub(r"\$\{([A-Z_]+)(?::[-?][^}]*)?\}", lambda m: self._env[m[1]], text)
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text.replace("$$", "$")


def prometheus(folder: Path, targets: list[str], rules: str, interval: str) -> Prometheus:
    """The stack's own configuration and flags, with these targets and this rhythm."""
    config: dict[str, Any] = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": targets}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yml").write_text(rules, "utf-8")
    return Prometheus(folder, yaml.safe_dump(config))
