"""The Kafka client: this folder alone knows which one. Bytes in, bytes out."""

from spinf_stream.stream.kafka.admin import topic_facts
from spinf_stream.stream.kafka.common import CALL_SECONDS, Away, Damaged, PublishFailed, Rebalanced, brief, connection
from spinf_stream.stream.kafka.consumer import Consumer
from spinf_stream.stream.kafka.producer import Producer, size

__all__ = [
    "CALL_SECONDS", "Away", "Consumer", "Damaged", "Producer", "PublishFailed", "Rebalanced", "brief", "connection", "size", "topic_facts",
]  # fmt: skip
