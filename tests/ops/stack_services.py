"""Kafka and Prometheus as compose.yaml has them: its variables as settings, its flags, the address of its health checks.

Only ports, addresses and folders are this machine's.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import services
from ops_files import COMPOSE
from ops_files import services as compose_services

HOST = services.HOST


class Kafka(services.Kafka):
    """No setting but the service's. What its health check asks (kafka-broker-api-versions.sh) is what `ready` asks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.outside_port = services.free_port()
        self._env = {name: str(value) for name, value in compose_services()["kafka"]["environment"].items()}
        self.cluster_id = self._env["CLUSTER_ID"]
        self._ports = {"19092": self.port, "9092": self.outside_port, "9093": self.controller_port}
        script, *_, asked = compose_services()["kafka"]["healthcheck"]["test"][1:]
        assert script.endswith("/kafka-broker-api-versions.sh") and self._ports[asked.rpartition(":")[2]] == self.port

    @property
    def outside(self) -> str:
        """Where producers of the host go."""
        return f"{HOST}:{self.outside_port}"

    def properties(self, data: Path, listen: str = HOST) -> dict[str, object]:
        """KAFKA_A_B is a.b, as the image has it; two underscores would be one, which no name here has."""
        names = [name for name in self._env if name.startswith("KAFKA_")]
        assert not [name for name in names if "__" in name]
        mine = {name.removeprefix("KAFKA_").replace("_", ".").lower(): self._here(self._env[name], listen) for name in names}
        return {**mine, "log.dirs": data}

    def _here(self, value: str, listen: str) -> str:
        return re.sub(
            r"(//|kafka|127\.0\.0\.1):(19092|9092|9093)\b",
            lambda m: f"//{listen}:{self._ports[m[2]]}" if m[1] == "//" else f"{HOST}:{self._ports[m[2]]}",
            value,
        )


class Prometheus(services.Prometheus):
    """The service's flags, and its files but for the configuration, which the test writes."""

    def command(self) -> Sequence[str]:
        service = compose_services()["prometheus"]
        mounted = dict(reversed(v.split(":")[:2]) for v in service["volumes"] if v.startswith("."))
        places = {there: str((COMPOSE / here).resolve()) for there, here in mounted.items()}
        places |= {"/etc/prometheus/prometheus.yml": f"{self.folder}/prometheus.yml", "=/prometheus": f"={self.folder}/tsdb", "127.0.0.1:9090": self.address}
        flags = []
        for word in service["command"]:
            for there, here in places.items():
                word = word.removesuffix(there) + here if word.endswith(there) else word
            flags.append(word)
        return ["prometheus", *flags, f"--web.listen-address={self.address}", "--log.level=warn"]

    def ready(self) -> bool:
        check = compose_services()["prometheus"]["healthcheck"]["test"][-1]
        try:
            with urllib.request.urlopen(check.replace("127.0.0.1:9090", self.address), timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False
