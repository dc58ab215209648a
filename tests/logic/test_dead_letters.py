"""Dead letters that fit, and the limits that stop a worker."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import msgspec
import pytest
from fakes import FakeScorer

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.dead_letters import Limits, dead_letter, usable
from spinf_stream.stream.delivery import Aborted
from spinf_stream.stream.flow import Headers, Outgoing, Record
from spinf_stream.stream.kafka import Away, PublishFailed, size
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.publisher import LimitReached, Publisher
from spinf_stream.stream.settle import Settle, TopicFacts


def record(key: bytes | None = b"k", value: bytes | None = b"v", headers: Headers = ()) -> Record:
    return Record("articles", 3, 77, 1_700_000_000_000, key, value, headers)


def made(r: Record, limit: int = 1_000_000, message: str = "why") -> Outgoing:
    return dead_letter(r, "schema", message, "dlq", "fp_x", 2, size, limit)


def test_everything_that_was_sent_and_everything_we_know() -> None:
    out = made(record(headers=(("a", b"1"), ("a", None), ("spinf.error.reason", b"old"))))
    assert (out.topic, out.key, out.value, out.timestamp, out.partition) == ("dlq", b"k", b"v", 1_700_000_000_000, None)
    assert out.headers[:2] == (("a", b"1"), ("a", None))
    ours = dict(out.headers[2:])
    assert len(ours) == len(out.headers) - 2, "a replayed record's old reason is gone"
    assert ours.pop("spinf.error.worker")
    assert ours == {
        "spinf.error.reason": b"schema", "spinf.error.message": b"why", "spinf.error.topic": b"articles",
        "spinf.error.partition": b"3", "spinf.error.offset": b"77", "spinf.error.timestamp": b"1700000000000",
        "spinf.error.attempts": b"2", "spinf.error.fingerprint": b"fp_x",
    }  # fmt: skip


def test_a_long_message_is_cut_between_characters() -> None:
    message = dict(made(record(), message="é" * 900).headers)["spinf.error.message"]
    assert message is not None and len(message) == 1000 and message.decode() == "é" * 500
    message = dict(made(record(), message="a" + "é" * 900).headers)["spinf.error.message"]
    assert message is not None and len(message) == 999


def test_headers_of_any_bytes_travel_as_base64() -> None:
    headers: Headers = ((b"\xff\xfe".decode("utf-8", "surrogateescape"), b"x"), ("fine", None))
    assert not usable(headers) and usable((("é", b""),))
    out = made(record(headers=headers))
    packed = base64.b64decode(dict(out.headers)["spinf.error.headers"] or b"")
    assert msgspec.msgpack.decode(packed) == [[b"\xff\xfe", b"x"], [b"fine", None]]
    assert all(usable(((k, v),)) for k, v in out.headers)


@pytest.mark.parametrize(("room", "left_behind"), [(3000, ""), (2200, "value"), (1300, "value headers"), (600, "value headers key")])
def test_what_does_not_fit_is_named_by_its_digest(room: int, left_behind: str) -> None:
    r = record(b"k" * 700, b"v" * 800, (("note", b"n" * 800),))
    out = made(r, limit=room)
    h = dict(out.headers)
    assert size(out.key, out.value, out.headers) <= room or room == 600
    assert {n for n in ("value", "headers", "key") if f"spinf.error.{n}_sha256" in h} == set(left_behind.split())
    if left_behind:
        assert out.value == b"" and h["spinf.error.value_length"] == b"800"
        assert h["spinf.error.value_sha256"] == hashlib.sha256(r.value or b"").hexdigest().encode()
    assert (out.key == r.key) == ("key" not in left_behind.split())


def test_a_record_of_nothing_can_still_be_sent() -> None:
    out = made(record(None, None))
    assert out.value == b"" and dict(out.headers)["spinf.error.value_null"] == b"1"
    assert made(record(b"k", None)).value is None


def test_a_run_trips_at_its_limit_and_a_good_record_ends_it() -> None:
    limits = Limits(3, 1.0)
    for dead in (True, True, False, True, True):
        limits.count(dead)
    assert limits.tripped is None
    limits.count(True)
    assert limits.tripped == "3 dead letters in a row (dlq_max_run)"


def test_a_ratio_counts_the_last_thousand_only() -> None:
    limits = Limits(10**6, 0.1)
    for i in range(999):
        limits.count(i < 500)
    assert limits.tripped is None, "the window is not full"
    limits = Limits(10**6, 0.1)
    for i in range(5000):
        limits.count(i % 10 == 0)
    assert limits.tripped is None, "exactly a tenth is allowed"
    for _ in range(2):
        limits.count(True)
    assert limits.tripped and "dlq_max_ratio 0.1" in limits.tripped


def test_a_unit_is_cut_at_the_record_that_trips_and_nothing_is_counted_by_looking() -> None:
    limits = Limits(3, 1.0)
    assert limits.fits([], [True, True, False, True]) == 4
    assert limits.fits([], [True, False, True, True, True, True]) == 5
    assert limits.fits([True, True], [True, True]) == 1, "another partition's are on their way"
    assert limits.fits([True, True, True], [False, True]) == 1, "too many are on their way, should they arrive"
    assert limits.tripped is None
    limits.count(True)
    assert limits.fits([], [True, True, True]) == 2 and limits.tripped is None


class Aborting:
    """A delivery whose first transactions of more than `most` records are aborted."""

    def __init__(self, aborts: int, most: int = 0) -> None:
        self.aborts, self.most = aborts, most
        self.sent: list[int] = []

    async def publish(self, p: Partition, out: list[Outgoing], after: int) -> None:
        if self.aborts and len(out) > self.most:
            self.aborts -= 1
            raise Aborted("a coordinator that moved")
        await asyncio.sleep(0.01)
        self.sent.append(len(out))

    async def tick(self, p: Partition) -> None:
        pass

    async def room(self, p: Partition, count: int) -> None:
        pass


def poisoned(number: int, count: int) -> Partition:
    settings = Settings()
    settle = Settle(settings, FakeScorer(), size, {"scores": TopicFacts(1, 10**6), "articles.dlq": TopicFacts(1, 10**6)})
    p = Partition("articles", number, 1)
    p.open(0, None)
    for offset in range(count):
        r = Record("articles", number, offset, -1, b"k", b"rubbish", ())
        p.see(r)
        p.settle(settle.dead(r, "not_json", "why"))
    return p


def publisher(delivery: Aborting, **limits: Any) -> Publisher:
    async def refresh() -> None:
        pass

    settings = Settings(**limits)
    settle = Settle(settings, FakeScorer(), size, {})
    return Publisher(settings, delivery, settle, Batcher(100, 1.0), Metrics(100), refresh, lambda done: None)  # type: ignore[arg-type]


def test_dead_letters_of_aborted_transactions_count_once() -> None:
    async def main() -> None:
        delivery = Aborting(3)
        pub = publisher(delivery, dlq_max_run=100)
        for _ in range(3):
            with pytest.raises(Aborted):
                await pub.run(poisoned(0, 60))
        p = poisoned(0, 60)
        running = asyncio.create_task(pub.run(p))
        while p.waiting and not running.done():
            await asyncio.sleep(0.01)
        assert delivery.sent == [60] and not running.done(), "60 of 100"
        p.close()
        await running
        with pytest.raises(LimitReached, match="100 dead letters in a row"):
            await pub.run(poisoned(0, 60))
        assert delivery.sent == [60, 40]

    asyncio.run(main())


def test_many_partitions_together_send_no_more_than_the_limit_and_a_few() -> None:
    async def main() -> None:
        delivery = Aborting(0)
        pub = publisher(delivery, dlq_max_run=100)
        done = await asyncio.gather(*(pub.run(poisoned(n, 200)) for n in range(8)), return_exceptions=True)
        assert all(isinstance(d, LimitReached) for d in done)
        assert sum(delivery.sent) <= 100 + 7, "one of each other partition"

    asyncio.run(main())


def test_what_was_held_back_goes_out_after_all_when_the_others_failed() -> None:
    async def main() -> None:
        delivery = Aborting(1, most=50)
        pub = publisher(delivery, dlq_max_run=100)
        p, q = poisoned(0, 100), poisoned(1, 60)
        aborted, running = asyncio.create_task(pub.run(p)), asyncio.create_task(pub.run(q))
        with pytest.raises(Aborted):
            await aborted
        while q.waiting and not running.done():
            await asyncio.sleep(0.01)
        assert sum(delivery.sent) == 60 and q.waiting == 0 and not running.done()
        q.close()
        await running

    asyncio.run(main())


@pytest.mark.parametrize("error", [PublishFailed("other", "a blip"), Away("a blip")])
def test_what_follows_a_part_that_did_not_go_out_does_not_go_out_either(error: Exception) -> None:
    """A unit is cut where the limit would trip, and its first part fails while the worker ends in trouble."""

    class Failing(Aborting):
        async def publish(self, p: Partition, out: list[Outgoing], after: int) -> None:
            if not p.silent:
                p.admitting, p.silent = False, True  # as Assignment.silence does
                raise error
            await super().publish(p, out, after)

    async def main() -> None:
        delivery = Failing(0)
        p = poisoned(0, 70)
        await publisher(delivery, dlq_max_run=40).run(p)
        assert p.offsets is not None
        assert delivery.sent == [] and p.offsets.point() == 0 and p.waiting == 70

    asyncio.run(main())
