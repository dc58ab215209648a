"""What a slot costs while passes go on: (time of passes with slots - time without) / slots / time of one scored token.

Full scoring passes back to back through the engine's own threads, two in flight as a worker has them, once bare and once with
slots on articles of each. A step of theirs waits for a pass at most, and the next pass is on its way meanwhile. As in a worker,
a pass with nothing left but slots gives its place to the next, while at most a token budget of articles is being decoded.
The last passes' steps, beside which nothing runs, are in the time.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from typing import Any

from spinf_stream.engine.runner import Runner
from spinf_stream.engine.seam import PassInput, PassOutput

IN_FLIGHT = 2


def told(bench: Any, kinds: Sequence[str], slots: int, passes: int, token_ms: float) -> dict[str, Any]:
    """By kind, with `slots` on each pass. Bare passes are timed before and after all of them: a card's clocks may move."""
    texts, warm = bench.texts(bench.articles), int(bench.gpu)
    bare = bench.batch(texts, bench.engine.register(bench.full))
    without = bench.timed(lambda: run(bench, bare, passes), warm)
    walls, rows = {}, {}
    for kind in kinds:
        batch = bench.carrying(texts, bench.full, kind, slots)
        outputs: list[PassOutput] = []

        def once(batch: PassInput = batch, outputs: list[PassOutput] = outputs) -> None:
            outputs[:] = run(bench, batch, passes)

        with bench.replaying(kind):
            walls[kind] = bench.timed(once, warm)
        rows[kind] = sum(o.slot_rows for o in outputs)
    without += bench.timed(lambda: run(bench, bare, passes), 0)
    out: dict[str, Any] = {"passes": passes, "slots_a_pass": slots, "bare_ms": [round(ms, 2) for ms in without], "kinds": {}}
    for kind, times in walls.items():
        each = (statistics.median(times) - statistics.median(without)) / (slots * passes) / token_ms
        out["kinds"][kind] = {
            "equivalents": round(each, 1), "rows_a_slot": round(rows[kind] / (slots * passes), 1), "ms": [round(ms, 2) for ms in times],
        }  # fmt: skip
        print(f"{kind:<26} {slots:>3} beside each of {passes} passes: {each:8.1f} equivalents, {rows[kind] / (slots * passes):6.1f} rows a slot", flush=True)
    return out


def run(bench: Any, batch: PassInput, passes: int) -> list[PassOutput]:
    """The same pass so many times."""
    bench.turn = 0
    budget, tokens = bench.engine.executor.default_budget, len(batch.ids)

    async def go() -> list[PassOutput]:
        runner, places = Runner(bench.engine), asyncio.Semaphore(IN_FLIGHT)
        decoding = 0  # tokens of the passes that gave up their places

        async def one() -> PassOutput:
            nonlocal decoding
            gave = False

            def read() -> None:
                nonlocal decoding, gave
                if not decoding or decoding + tokens <= budget:
                    gave, decoding = True, decoding + tokens
                    places.release()

            output = await runner.run(batch, read)
            if gave:
                decoding -= tokens
            else:
                places.release()
            return output

        running = []
        for _ in range(passes):
            await places.acquire()
            running.append(asyncio.create_task(one()))
        outputs = await asyncio.gather(*running)
        await runner.close()
        return outputs

    return asyncio.run(go())
