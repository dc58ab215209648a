"""Passes and decode steps take turns: articles never wait for a generation."""

from __future__ import annotations

import asyncio

import pytest
from slot_parts import TEXTS, Parts

from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.runner import Runner
from spinf_stream.engine.seam import EngineFatal, OutOfMemory

LONG = [{"id": "long", "template": "\n\nTell:{*}", "generate": {"temperature": 1.0, "n": 6}, "max_tokens": 100}]
YES = [{"id": "yes", "template": "\n\nIs it sport?{?}", "options": [" yes", " no"]}]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return Parts(tmp_path_factory.mktemp("m"), "gemma3", YES + LONG)


class Counting(PackedEngine):
    steps = 0

    def advance(self):
        self.steps += 1
        super().advance()


def test_new_articles_pass_while_a_generation_runs(parts):
    engine = Counting(parts.executor, 4000)
    slow, quick = engine.register(parts.questions.plan, parts.slots.plan), engine.register(parts.questions.plan)

    async def go():
        runner = Runner(engine)
        read = asyncio.Event()
        generation = asyncio.create_task(runner.run(parts.batch(TEXTS[:1], slow), read.set))
        await asyncio.wait_for(read.wait(), 20)
        took = []
        for text in TEXTS * 2:
            before = engine.steps
            output = await runner.run(parts.batch([text], quick)._replace(copies=None))
            took.append(engine.steps - before)
            assert output.trees[0].slots is None and not generation.done()
        output = await generation
        await runner.close()
        return took, output, runner

    took, output, runner = asyncio.run(go())
    assert max(took) <= 8 and engine.steps >= 100  # a few steps slip in while the loop makes up its next pass
    assert output.slot_rows > 300 and runner.passes == 7
    assert runner.busy_seconds >= output.busy_seconds + output.slot_seconds


def test_closing_lets_slots_finish(parts):
    engine = PackedEngine(parts.executor, 4000)
    index = engine.register(parts.questions.plan, parts.slots.plan)

    async def go():
        runner = Runner(engine)
        runs = [asyncio.create_task(runner.run(parts.batch([t], index))) for t in TEXTS]
        await asyncio.sleep(0)
        await runner.close()
        return await asyncio.gather(*runs)

    assert all(out.trees[0].slots.rows > 100 for out in asyncio.run(go()))


@pytest.mark.parametrize("error", [OutOfMemory("full"), EngineFatal("gone"), ZeroDivisionError()])
def test_a_failing_step_reaches_every_waiter_and_the_next_pass_runs(parts, error):
    engine = PackedEngine(parts.executor, 4000)
    slow, quick = engine.register(parts.questions.plan, parts.slots.plan), engine.register(parts.questions.plan)

    def fail(step):
        raise error

    async def go():
        runner = Runner(engine)
        engine.decoder.grower = type("Failing", (), {"grow": staticmethod(fail)})()
        runs = await asyncio.gather(*(runner.run(parts.batch([t], slow)) for t in TEXTS), return_exceptions=True)
        after = await runner.run(parts.batch(TEXTS, quick)._replace(copies=None))
        await runner.close()
        return runs, after

    runs, after = asyncio.run(go())
    assert [type(r) for r in runs] == [type(error)] * 3 and len(after.trees) == 3
