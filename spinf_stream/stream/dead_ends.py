"""Damaged batches: step over them where the operator said so, else end in good order.

Nobody but the operator may decide to lose records. The worker stops, but only once everything that was read of the
partition before the damage is published and committed: where a pass takes longer than reading a damaged batch again, it
would otherwise never get that far, however often it is started.
"""

from __future__ import annotations

import logging

from spinf_stream.metrics import Metrics
from spinf_stream.stream.kafka import Consumer, Damaged
from spinf_stream.stream.partitions import Partition

log = logging.getLogger(__name__)


class DeadEnds:
    """`p in dead_ends`: nothing more of that partition can be read."""

    def __init__(self, skip: bool, consumer: Consumer, metrics: Metrics) -> None:
        self._skip = skip
        self._consumer = consumer
        self._metrics = metrics
        self._why: dict[Partition, str] = {}
        self._skipped: dict[Partition, int] = {}  # to where; nothing has come from there yet

    def __contains__(self, p: Partition) -> bool:
        return p in self._why

    def damaged(self, p: Partition, e: Damaged) -> None:
        if self._skip and e.end is not None:
            self._metrics.corrupt.labels("skipped").inc()
            log.error("%s; it is skipped (corrupt_batches = skip)", e)
            self._skipped[p] = e.end
            self._consumer.seek(p.number, e.end)
            return
        self._metrics.corrupt.labels("stopped").inc()
        self._end(p, f"{e}. Nothing after it is read: {self._advice(e)}")

    def gone_back(self, p: Partition, offset: int) -> bool:
        """Whether this record comes from before the place that a skip of ours led to: reading on would repeat records."""
        end = self._skipped.get(p)
        if end is None or offset >= end:
            self._skipped.pop(p, None)
            return False
        self._end(p, f"{p.place}: a damaged batch was skipped up to offset {end}, then the broker went back to {offset}: was the topic cut?")
        return True

    def due(self) -> str | None:
        """Why the worker is to stop now."""
        # a closed one is somebody else's by now, or read again in another epoch
        self._why = {p: why for p, why in self._why.items() if p.alive}
        self._skipped = {p: end for p, end in self._skipped.items() if p.alive}
        return next((why for p, why in self._why.items() if not p.exposed), None)

    def _end(self, p: Partition, why: str) -> None:
        self._why[p] = why
        if p.exposed:
            log.warning("%s: the worker stops once the %d records read before are published and committed", why.split(". ")[0], p.exposed)

    def _advice(self, e: Damaged) -> str:
        mend = "mend or move the partition's replica, or "
        if e.end is not None:
            return mend + "lose its records with corrupt_batches = skip"
        no = "cannot be skipped" if self._skip else "could not be skipped either"
        return (
            f"where it ends cannot be known, so it {no}; {mend}lose records by setting the group's offset to one that can "
            f"be read (kafka-consumer-groups --reset-offsets)"
        )
