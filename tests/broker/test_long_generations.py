"""Long generations in the worker: articles that come later are scored meanwhile, and what waits is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import FakeScorer
from stage import Stage, Topics, articles, ids

from spinf_stream.engine.seam import HOWS

pytestmark = pytest.mark.kafka


def test_new_articles_do_not_wait_for_a_long_generation(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2)
        async with Stage(t.settings(max_wait_ms=10), scorer=FakeScorer(budget=100)) as w:
            w.runner.decoded.clear()
            for n in range(4):  # a pass each: more than there are places
                await t.fill([r._replace(partition=0) for r in articles([f"slow{n}"])])
                await w.until(lambda n=n: len(w.runner.passes) == n + 1)
            await t.fill([r._replace(partition=1) for r in articles([f"quick{n}" for n in range(20)])])
            assert sorted(ids(await t.out(20))) == sorted(f"quick{n}" for n in range(20)), "none of the slow ones is out yet"
            assert w.value("stage_seconds_count", stage="slots") == 0
            w.runner.decoded.set()
            assert len(await t.out(24)) == 24
            assert w.value("stage_seconds_count", stage="slots") == 4 and w.value("slot_seconds_total") == 2.0
            assert [w.value("slot_tokens_total", how=how) for how in HOWS] == [4, 8, 12]

    asyncio.run(main())


def test_what_is_decoded_beside_passes_is_bounded(kafka: str, topics: Any) -> None:
    """Articles of 46 tokens, windows of one: two may decode beside a budget of 100, two more keep their places."""

    async def main() -> None:
        t = Topics(kafka, topics)
        async with Stage(t.settings(max_wait_ms=10), scorer=FakeScorer(budget=100)) as w:
            w.runner.decoded.clear()
            await t.fill(articles([f"slow{n}" for n in range(12)], words=45))
            await w.until(lambda: len(w.runner.passes) == 4)
            await asyncio.sleep(0.5)
            assert len(w.runner.passes) == 4 and all(len(texts) == 1 for texts in w.runner.passes)
            w.runner.decoded.set()
            assert ids(await t.out(12)) == [f"slow{n}" for n in range(12)], "in order, as ever"

    asyncio.run(main())
