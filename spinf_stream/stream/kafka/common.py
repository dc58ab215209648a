"""What every client of the broker shares: how to connect, how long to wait, what can go wrong."""

from __future__ import annotations

from typing import Any, Literal

from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from spinf_stream.config import Settings

CALL_SECONDS = 15.0  # for one look-up at the broker, retries of the client included
READY_SECONDS = 5.0  # for the metadata of a topic that is about to be written
# The client asserts what a broker that is just coming back breaks ("Did we not perform bootstrap?": it named no broker).
CLIENT_ERRORS = (KafkaError, OSError, TimeoutError, AssertionError)


class Away(Exception):
    """The broker did not answer, or refused for now. What was asked may or may not have happened."""


class Rebalanced(Exception):
    """The group has moved on: this member may no longer commit."""


class Damaged(Exception):
    """Records on the broker cannot be read, however often it is tried; `end` is where reading can go on, where known."""

    def __init__(self, topic: str, partition: int, offset: int, end: int | None, why: str) -> None:
        of = f"of offsets {offset} to {end - 1}" if end is not None else f"from offset {offset}"
        super().__init__(f"{topic}-{partition}: the record batch {of} cannot be read: {why}")
        self.partition, self.offset, self.end = partition, offset, end


class PublishFailed(Exception):
    """At least one record was not acknowledged; others may be in the topic. The producer is not to be used again."""

    def __init__(self, kind: Literal["too_large", "timestamp", "other"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


def connection(s: Settings) -> dict[str, Any]:
    """Arguments every client takes: addresses, TLS, SASL."""
    out: dict[str, Any] = {"bootstrap_servers": s.brokers.split(","), "client_id": "spinf-stream"}
    out["security_protocol"] = s.kafka_security.upper()
    if "ssl" in s.kafka_security.split("_"):
        out["ssl_context"] = create_ssl_context(
            cafile=s.kafka_ca_file or None, certfile=s.kafka_cert_file or None, keyfile=s.kafka_key_file or None
        )
    if s.kafka_security.startswith("sasl"):
        out["sasl_mechanism"] = s.kafka_sasl_mechanism
        out["sasl_plain_username"], out["sasl_plain_password"] = s.kafka_username, s.kafka_password
    return out


def brief(e: BaseException | None) -> str:
    """One line for a log or a message."""
    return f"{type(e).__name__}: {e}".splitlines()[0].strip()[:200] if str(e) else type(e).__name__
