"""Topics: what the broker says of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from spinf_stream.config import Settings
from spinf_stream.stream.kafka.common import CALL_SECONDS, CLIENT_ERRORS, Away, brief, connection
from spinf_stream.stream.kafka.producer import DEFAULT_MAX_BYTES
from spinf_stream.stream.settle import TopicFacts

log = logging.getLogger(__name__)


async def topic_facts(s: Settings, topics: Sequence[str]) -> dict[str, TopicFacts]:
    """Partitions and record limit of those that exist. Raises Away."""
    admin = AIOKafkaAdminClient(**connection(s), request_timeout_ms=int(1000 * CALL_SECONDS))
    try:
        await admin.start()
        found = {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics() if t["topic"] in topics}
        limits = await _limits(admin, list(found))
        return {name: TopicFacts(n, limits.get(name, DEFAULT_MAX_BYTES)) for name, n in found.items()}
    except CLIENT_ERRORS as e:
        raise Away(f"Kafka at {s.brokers}: {brief(e)}") from None
    finally:
        await admin.close()


async def _limits(admin: AIOKafkaAdminClient, topics: list[str]) -> dict[str, int]:
    name = "max.message.bytes"
    try:
        wanted = [ConfigResource(ConfigResourceType.TOPIC, t, {name: None}) for t in topics]
        answers = await admin.describe_configs(wanted)
        return {r[3]: int(c[1]) for a in answers for r in a.resources for c in r[4] if c[0] == name}
    except (*CLIENT_ERRORS, ValueError, IndexError, TypeError) as e:
        log.info("topic limits are unknown, %d bytes assumed: %s", DEFAULT_MAX_BYTES, brief(e))
        return {}
