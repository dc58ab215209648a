"""TLS and SASL towards Kafka, TLS and an ACL user towards Redis: they work, and a wrong secret says so without being said."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import conftest
import pytest
import services
from fakes import FakeScorer
from stage import Stage, Topics, articles, burst, ids

from spinf_stream.config import Settings

pytestmark = pytest.mark.kafka

PASSWORD = "not-to-be-printed"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Secure(NamedTuple):
    kafka: services.Kafka
    address: str  # of the listener with TLS and SASL
    ca: Path
    cert: Path
    key: Path


class WithUsers(services.Kafka):
    """SCRAM credentials are written when the log folder is formatted: there is no user yet who could ask for it later."""

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "format.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self.properties(self.folder / "data").items()), "utf-8")
        users = [a for m in MECHANISMS[1:] for a in ("--add-scram", f"{m}=[name=alice,password={PASSWORD}]")]
        format_ = [*self._java(), "kafka.tools.StorageTool", "format", "-t", "c3BpbmYtc3RyZWFtLXRlcw", "-c", str(properties), *users]
        done = subprocess.run(format_, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, (done.stdout + done.stderr)[-1000:]
        super().prepare()


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """ca, and a certificate for 127.0.0.1 with its key, that it signed."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)

    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test ca")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "csr", "-subj", "/CN=127.0.0.1")
    openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "cert.pem", "-days", "2", "-extfile", "ext")
    return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("secure")
    ca, cert, key = certificates(folder)
    (folder / "keystore.pem").write_text(key.read_text() + cert.read_text())
    port = services.free_port()
    kafka = WithUsers(folder / "kafka")
    login = "org.apache.kafka.common.security"
    kafka.settings = {
        "listeners": f"CLIENTS://{kafka.address},SECURE://{services.HOST}:{port},CONTROLLER://{services.HOST}:{kafka.controller_port}",
        "advertised.listeners": f"CLIENTS://{kafka.address},SECURE://{services.HOST}:{port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": folder / "keystore.pem",
        "listener.name.secure.plain.sasl.jaas.config": f'{login}.plain.PlainLoginModule required user_alice="{PASSWORD}";',
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
    }
    kafka.start()
    try:
        yield Secure(kafka, f"{services.HOST}:{port}", ca, cert, key)
    finally:
        kafka.stop()


def topics_of(s: Secure, **more: Any) -> Topics:
    t = Topics(s.kafka.address, conftest.topics.__wrapped__(s.kafka.address), 2, **more)  # type: ignore[attr-defined]
    t.fixed |= {
        "brokers": s.address, "kafka_security": "sasl_ssl", "kafka_username": "alice", "kafka_password": PASSWORD, "kafka_ca_file": str(s.ca),
    }  # fmt: skip
    return t


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_over_tls_and_sasl(secure: Secure, mechanism: str, delivery: str) -> None:
    async def main() -> None:
        t = topics_of(secure, kafka_sasl_mechanism=mechanism, delivery=delivery)
        names = [f"s{i}" for i in range(20)]
        await t.fill(articles(names, partitions=2))
        await burst(t.settings(), scorer=FakeScorer(100))
        assert sorted(ids(await t.out())) == sorted(names)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["password", "authority"])
def test_a_wrong_secret_is_one_clear_line(secure: Secure, wrong: str, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async def main() -> None:
        t = topics_of(secure)
        other = {"kafka_password": PASSWORD + "-no"}
        if wrong == "authority":
            other = {"kafka_ca_file": str(certificates(tmp_path)[0])}
        async with Stage(t.settings(**other), ready=False) as w:
            assert await w.ended(60) == 3
        assert PASSWORD not in caplog.text
        ours = [r for r in caplog.records if r.name.startswith("spinf_stream") and r.levelname == "ERROR"]
        assert ours and secure.address in ours[-1].getMessage()

    asyncio.run(main())


def test_redis_over_tls_with_an_acl_user(kafka: str, topics: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ca, cert, key = certificates(tmp_path)
    server = services.Redis(tmp_path / "redis")
    tls = services.free_port()
    server.options = [
        "--tls-port", str(tls), "--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(ca),
        "--tls-auth-clients", "no", "--user", "alice", "on", f">{PASSWORD}", "~spinf:*", "+@read", "+@write", "+@connection", "--user", "default", "off",
    ]  # fmt: skip
    url = f"rediss://alice@{services.HOST}:{tls}/0?ssl_ca_certs={ca}"

    async def main(password: str) -> Stage:
        t = Topics(kafka, topics, 1, redis_url=url, redis_password=password, redis_timeout_ms=1000)
        await t.fill(articles(["a", "b"]))
        await burst(t.settings())
        await t.rewind({0: 0})
        return await burst(t.settings())

    server.start()
    try:
        again = asyncio.run(main(PASSWORD))
        assert again.runner.passes == [] and again.value("records_total", outcome="duplicate") == 2
        wrong = asyncio.run(main("no"))
        assert wrong.value("redis_errors_total") > 0 and len(wrong.runner.passes) == 1, "it goes on scoring"
        assert PASSWORD not in caplog.text and PASSWORD not in repr(Settings(redis_url=url, redis_password=PASSWORD, dedup_secret="x"))
    finally:
        server.stop()
