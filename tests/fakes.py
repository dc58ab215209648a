"""A scorer and an engine for plumbing tests: no model, answers that follow from the text, faults on demand."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spinf_stream.engine.scorer import Prepared, Tree
from spinf_stream.engine.seam import PassInput, PassOutput, TreeOutput
from spinf_stream.records import Answer, Article, CombinationScore, OptionScore, QueryScore, Tokens

Fault = Callable[[list[str]], None]  # gets the texts of a pass; raises what the engine shall raise


def plain(texts: list[str]) -> None:
    """An engine without faults."""


class FakeEngine:
    bit_exact = False

    def __init__(self, budget: int = 2048) -> None:
        self.budget = budget

    def register(self, plan: Any) -> int:
        return 0

    def submit(self, batch: PassInput) -> Any:
        return batch

    def collect(self, handle: Any) -> PassOutput:
        raise AssertionError("the fake runner never asks")


class FakeScorer:
    """An article of n words is one tree that costs n + `overhead` tokens. Its first token id leads back to its text."""

    model = "fake"
    fingerprint = "fp_0123456789abcdef"
    questions = 2

    def __init__(self, budget: int = 2048, overhead: int = 8, fingerprint: str = "f" * 64, limit: int = 4096, pad: int = 0) -> None:
        self.engine = FakeEngine(budget)
        self.overhead = overhead
        self.limit = limit
        self.pad = pad  # characters added to the answer, to make it large
        self.fingerprint_full = fingerprint
        self.questions_digest = "9" * 64
        self.questions_by_pack = {"": 2}
        self.texts: dict[int, str] = {}

    def prepare(self, article: Article) -> Prepared:
        words = article.text.split()
        digest = hashlib.sha256(article.text.encode()).hexdigest()
        self.texts[int(digest[:8], 16) & 0x7FFFFFFF] = article.text
        tokens = min(max(1, len(words)), self.limit)
        ids = np.zeros(tokens, np.int32)
        ids[:1] = int(digest[:8], 16) & 0x7FFFFFFF
        return Prepared(self.questions_digest, digest, (Tree(ids, 0),), tokens + self.overhead, tokens, len(words) > self.limit, False, ())

    def pack(self, items: Sequence[Prepared]) -> PassInput:
        ids = np.concatenate([i.trees[0].ids for i in items])
        start = np.cumsum([0, *(len(i.trees[0].ids) for i in items)]).astype(np.int64)
        return PassInput(ids, start, np.zeros(len(items), np.int32))

    def answers(self, items: Sequence[Prepared], output: PassOutput) -> list[Answer]:
        return [self._answer(i) for i in items]

    def _answer(self, i: Prepared) -> Answer:
        p = int(i.digest[:8], 16) / 2**32
        options = [OptionScore("yes" + "x" * self.pad, -1.0, p, 0.5), OptionScore("no", -2.0, 1 - p, 0.5)]
        return Answer(
            scores=[QueryScore("q", [CombinationScore({}, options, 0.0, 0.0)])], slots=[], packs=[],
            tokens=Tokens(i.content_tokens, self.overhead, 0, 0), truncated=i.truncated, warnings=[],
            scored_at="2026-01-01T00:00:00.000Z", questions_digest=i.questions,
        )  # fmt: skip


class FakeRunner:
    """Two passes may be in it at once, each takes `seconds`; `fault` decides what a pass raises. A pass with a text that begins
    with "slow" has slots: once read, it is decoded until `decoded` is set."""

    def __init__(self, scorer: FakeScorer, seconds: float = 0.0, fault: Fault = plain, block: float = 0.0) -> None:
        self.scorer = scorer
        self.seconds = seconds
        self.fault = fault
        self.block = block  # seconds for which the first pass stops the event loop, as no engine should
        self.passes: list[list[str]] = []  # the texts of each pass, begun ones included
        self.finished = 0
        self.running = self.most_running = 0
        self.busy_seconds = 0.0
        self.closed = False
        self.decoded = asyncio.Event()
        self.decoded.set()
        self._began = time.monotonic()
        self._one_at_a_time = asyncio.Lock()

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._began

    async def run(self, batch: PassInput, read: Callable[[], None] | None = None) -> PassOutput:
        slots: tuple[int, tuple[int, ...], float] = (0, (0, 0, 0), 0.0)
        texts = [self.scorer.texts[int(batch.ids[batch.start[i]])] for i in range(batch.trees)]
        self.passes.append(texts)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            async with self._one_at_a_time:
                if self.block:
                    time.sleep(self.block)
                    self.block = 0.0
                await asyncio.sleep(self.seconds)
                self.fault(texts)
        finally:
            self.running -= 1
        if read is not None and any(t.startswith("slow") for t in texts):
            read()
            await self.decoded.wait()
            slots = (6, (1, 2, 3), 0.5)
        self.finished += 1
        self.busy_seconds += self.seconds
        none = np.zeros(0)
        return PassOutput((TreeOutput(none, none),) * batch.trees, self.seconds, len(batch.ids), 0, *slots)

    async def close(self) -> None:
        self.closed = True
