"""From an article to its trees, and from a pass's numbers back to answers: what the worker and `score FILE` share.

    article --prepare--> Prepared --pack--> PassInput --(runner)--> PassOutput --answers--> Answer

prepare, pack and answers run on the CPU, in any thread; only the runner's thread touches the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from spinf_stream.engine.seam import Engine, PassInput, PassOutput
from spinf_stream.questions.plan import I32
from spinf_stream.records import Answer, Article, Origin, Outcome, Scores
from spinf_stream.slots.candidates import Entry


class Tree(NamedTuple):
    ids: I32  # [P] BOS + content tokens
    plan: int  # registered plan
    read: str = ""  # with slots: the content that the ids stand for
    copies: tuple[tuple[int, Entry], ...] = ()  # (slot, what it may copy)


class Prepared(NamedTuple):
    """One article, ready to pack."""

    questions: str  # the questions' digest (64 hex)
    digest: str  # sha256 (hex) over the assembled content, pack parameters and the token limit
    trees: tuple[Tree, ...]  # one a trunk: packs with another context have a trunk of their own
    cost: int  # rows of a pass, all trees
    content_tokens: int
    truncated: bool
    alone: bool  # over the budget with `overlong = "solo"`: runs in a pass of its own
    warnings: tuple[str, ...]
    by: Scorer | None = None  # where questions can be exchanged: who answers this one, and lives as long as it is in flight

    @property
    def key(self) -> str:
        """Equal keys have equal answers under one fingerprint."""
        return f"{self.questions}:{self.digest}"


class Scorer(Protocol):
    """What the worker needs to know of the model and the questions. Fake it to test plumbing."""

    @property
    def engine(self) -> Engine: ...

    model: str  # for the record's `model`
    fingerprint: str  # fp_ + 16 hex
    fingerprint_full: str  # 64 hex, for Redis keys

    @property
    def questions_digest(self) -> str:
        """64 hex."""
        ...

    @property
    def questions(self) -> int:
        """Prompts asked of each article."""
        ...

    @property
    def questions_by_pack(self) -> dict[str, int]:
        """Prompts by pack id; "" is the question file."""
        ...

    def prepare(self, article: Article) -> Prepared:
        """Tokenise and check against the limits. Thread-safe. Raises records.Refused."""
        ...

    def pack(self, items: Sequence[Prepared]) -> PassInput:
        """Items in order, each item's trees in order."""
        ...

    def answers(self, items: Sequence[Prepared], output: PassOutput) -> list[Answer]:
        """One answer an item, in order."""
        ...


RunPass = Callable[[PassInput], PassOutput]


class Reloaded(NamedTuple):
    changed: bool
    kept: list[str]  # one line for each set that could not be loaded, and what was done about it


@runtime_checkable
class Reloadable(Protocol):
    """A Scorer whose questions can be exchanged while it runs."""

    def reload(self, run: RunPass) -> Reloaded:
        """In any thread; `run` runs a pass beside those in flight, for floors. Raises what `run` raises."""
        ...


def record(scorer: Scorer, answer: Answer, outcome: Outcome, id: str, origin: Origin, article: Article) -> Scores:
    """The output record of an article, from its answer (fresh, or cached under the same content)."""
    return Scores(
        id=id,
        outcome=outcome,
        system_fingerprint=scorer.fingerprint,
        bit_exact=scorer.engine.bit_exact,
        model=scorer.model,
        questions_digest=answer.questions_digest,
        scores=answer.scores,
        slots=answer.slots,
        packs=answer.packs,
        tokens=answer.tokens,
        truncated=answer.truncated,
        origin=origin,
        source=article.source,
        published_at=article.published_at,
        lang=article.lang,
        meta=article.meta,
        scored_at=answer.scored_at,
        warnings=answer.warnings,
    )
