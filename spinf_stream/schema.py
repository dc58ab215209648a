"""The shapes inside a scores record that are made as plain dicts: slots and packs. For `spinf-stream schema` and tests.

Absent is not null: a field that may be missing is NotRequired.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from spinf_stream.records import Article, Scores

P = (
    "the probability that exactly this answer, in any of its spellings, follows the template and ends there: small, since much else may "
    "follow. As a confidence among answers take share; to rank articles by how sure an answer is, p itself serves as well"
)
SHARE = "p / mass: how much of all that was found is this answer, whatever else might have followed the template. 0 where mass is 0"


class SlotAnswer(TypedDict):
    text: str
    p: NotRequired[Annotated[float, Meta(description=P)]]  # not of generated text
    share: NotRequired[Annotated[float, Meta(description=SHARE)]]  # likewise
    value: NotRequired[float]  # of numbers and amounts
    currency: NotRequired[str | None]  # of amounts; null where none was written
    percent: NotRequired[bool]
    finish: NotRequired[Literal["stop", "length"]]  # of generated text
    grounded: bool  # it stands in what was asked about
    start: int | None  # there, in characters
    end: int | None


class SlotCombination(TypedDict):
    values: dict[str, str]
    answers: list[SlotAnswer]
    mass: NotRequired[Annotated[float, Meta(description="the sum of p over all that was found; what follows the template otherwise makes up the rest of 1")]]
    p_negative: NotRequired[float]
    p_calibrated: NotRequired[float]


class SlotScore(TypedDict):
    id: str
    kind: Literal["text", "number", "currency"]
    generate: NotRequired[bool]
    mode: NotRequired[Literal["copy_only"]]
    pack: NotRequired[str]
    context: NotRequired[str]
    combinations: list[SlotCombination]


class PackCategory(TypedDict):
    score: float
    percentile: float | None  # among normal traffic
    flagged: bool | None  # null without a threshold
    fitted: NotRequired[bool]  # false: the score ranks articles and is no probability


class PackDecision(TypedDict):
    unsafe: bool
    mode: Literal["max", "micro_layer", "per_category"]
    score: NotRequired[float]
    threshold: NotRequired[float]
    category: NotRequired[str | None]
    categories: NotRequired[list[str]]
    critical: NotRequired[list[str]]
    by: NotRequired[Literal["critical"]]
    warning: NotRequired[str]


class PackScore(TypedDict):
    id: str
    version: str
    digest: str
    context: str
    calibrated: bool
    categories: dict[str, PackCategory] | None  # null while not calibrated for this model
    decision: PackDecision | None
    warning: NotRequired[str]


INSIDE: dict[str, Any] = {"slots": list[SlotScore], "packs": list[PackScore]}


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas by name."""
    from spinf_stream.questions.spec import QuestionFile

    fields = [(f.name, INSIDE.get(f.name, f.type), *_default(f)) for f in msgspec.structs.fields(Scores)]
    scores = msgspec.defstruct("Scores", fields, namespace={"__doc__": Scores.__doc__}, kw_only=True)
    types: dict[str, type] = {"article": Article, "scores": scores, "questions": QuestionFile}
    return {name: msgspec.json.schema(t) for name, t in types.items()}


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if field.default is not msgspec.NODEFAULT:
        return (field.default,)
    return () if field.default_factory is msgspec.NODEFAULT else (msgspec.field(default_factory=field.default_factory),)
