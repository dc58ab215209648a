"""A pack: one file that holds contexts, questions, reads, categories and a decision.

    bytes --parse--> document --validate--> problems | Pack --evaluate--> entry

`load` refuses a file with any error and keeps the document beside the typed view: the lock, the digest and `packs diff`
are taken over what the file says, not over what we understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from spinf_stream.packs.document import digest, parse, read_bytes
from spinf_stream.packs.micro import MicroLayer, lock, micro_layer
from spinf_stream.packs.problems import PackError, ParameterError, Problem
from spinf_stream.packs.queries import Prompt, prompts
from spinf_stream.packs.validate import is_draft, validate
from spinf_stream.questions.rules import Question

Scalar = str | int | float | bool


class Parameter(msgspec.Struct, frozen=True):
    label: str | None = None
    description: str | None = None
    required: bool = True
    default: Scalar | None = None


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer becomes one number (evaluate.py). Fitted constants are null in a draft."""

    id: str
    query: str
    kind: Literal["pair", "option", "any", "set"]
    category: str
    F: str | None = None
    view: str | None = None
    sign: float = 1.0
    option: int | None = None
    unsafe: tuple[int, ...] = ()
    mu: float | tuple[float, ...] | None = None
    mean: float | None = None
    sd: float | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """The category's scores on normal traffic: `values` at `levels`, both non-decreasing."""

    levels: tuple[float, ...]
    values: tuple[float, ...]


class Category(msgspec.Struct, frozen=True):
    label: str | None = None
    platt: tuple[float, float] | None = None
    threshold: float | None = None  # null: reported only
    aggregate: Literal["views"] | None = None
    normal_quantiles: Quantiles | None = None
    requires: tuple[str, ...] = ()
    decides: bool = True
    fitted: bool = True  # false: calibrated without labels of its own


class Decision(msgspec.Struct, frozen=True):
    mode: Literal["max", "per_category", "micro_layer"]
    fallback: Literal["max", "per_category"] = "per_category"
    max: dict[str, Any] | None = None  # {threshold}
    critical: tuple[str, ...] = ()

    @property
    def max_threshold(self) -> float | None:
        value = (self.max or {}).get("threshold")
        return None if value is None else float(value)


@dataclass(frozen=True)
class Pack:
    id: str
    version: str
    model: str  # the model its constants were fitted on; "" in a draft that names none
    digest: str  # over the whole file
    calibrated: bool  # False: a draft, which asks and does not judge
    answers: Literal["p", "logprob"]
    case_insensitive: bool
    contexts: dict[str, str]  # the first is the default
    parameters: dict[str, Parameter]
    questions: tuple[Question, ...]  # scored, in file order
    slots: tuple[Question, ...]  # extraction
    reads: tuple[Read, ...]
    categories: dict[str, Category]
    decision: Decision | None
    micro: MicroLayer | None
    notes: tuple[Problem, ...]  # what loads but deserves a look
    doc: dict[str, Any]

    @property
    def label(self) -> str:
        return f"{self.id}@{self.version}"

    @property
    def sealed(self) -> bool:
        """The file says its digest, so an edit is found when it is read."""
        return "digest" in self.doc

    @cached_property
    def prompts(self) -> list[Prompt]:
        return prompts(self.questions)

    @property
    def options(self) -> int:
        """How many probabilities one article has: the length of what `evaluate` takes."""
        return sum(len(p.options) for p in self.prompts)

    @property
    def default_context(self) -> str:
        return next(iter(self.contexts))

    def presentation(self, context: str | None = None, parameters: dict[str, Scalar] | None = None) -> tuple[str, str]:
        """The text before and after an article's content. `parameters` must name declared ones only.

        The template is split at {X} first, then each parameter replaced in declaration order, as the peer does: a value
        may therefore contain {X}, and a later parameter's place in an earlier one's value is filled too.
        Raises ParameterError; its message names the parameter, never a value.
        """
        name = self.default_context if context is None else context
        if name not in self.contexts:
            raise ParameterError(f"{self.label} has no context {name!r}; it has {', '.join(self.contexts)}")
        before, _, after = self.contexts[name].partition("{X}")
        given = parameters or {}
        for unknown in given.keys() - self.parameters.keys():
            raise ParameterError(f"{self.label} has no parameter {unknown!r}")
        for key, spec in self.parameters.items():
            value = given.get(key)
            if value is None:
                value = spec.default
            if value is None and spec.required:
                raise ParameterError(f"{self.label} needs the parameter {key!r}")
            text = "" if value is None else str(value)
            before, after = before.replace(f"{{{key}}}", text), after.replace(f"{{{key}}}", text)
        return before, after

    def declared(self, *layers: dict[str, Scalar] | None) -> dict[str, Scalar]:
        """The parameters of this pack out of several layers, the last one winning (settings, then the article).

        An article's parameters serve all its packs, so names that this pack does not declare are left to the others.
        """
        out: dict[str, Scalar] = {}
        for layer in layers:
            out.update({k: v for k, v in (layer or {}).items() if k in self.parameters})
        return out


def load(path: str | Path) -> Pack:
    """Raises PackError with every fault of the file."""
    path = Path(path)
    return loads(read_bytes(path), str(path))


def loads(raw: bytes, where: str = "pack") -> Pack:
    return from_doc(parse(raw, where), where)


def from_doc(doc: dict[str, Any], where: str = "pack") -> Pack:
    """The pack a document describes. Raises PackError."""
    problems, questions = validate(doc)
    if any(p.level == "error" for p in problems):
        raise PackError(where, [p for p in problems if p.level == "error"])
    calibrated = not is_draft(doc)
    decision = doc.get("decision")
    layer = (decision or {}).get("micro_layer") or {}
    usable = calibrated and layer.get("weights")
    return Pack(
        id=doc["pack"],
        version=doc["version"],
        model=doc.get("model") or "",
        digest=digest(doc),
        calibrated=calibrated,
        answers=doc.get("answers") or "p",
        case_insensitive=bool(doc["scoring"].get("case_insensitive")),
        contexts=doc["contexts"],
        parameters={k: msgspec.convert(v, Parameter) for k, v in (doc.get("parameters") or {}).items()},
        questions=tuple([q for q in questions.values() if q.template.slot == "?"]),
        slots=tuple([q for q in questions.values() if q.template.slot != "?"]),
        reads=msgspec.convert(doc.get("reads", []), tuple[Read, ...]),
        categories={k: msgspec.convert(v, Category) for k, v in doc.get("categories", {}).items()},
        decision=msgspec.convert(_without_null(decision), Decision) if decision else None,
        micro=micro_layer(layer, layer.get("lock") == lock(doc)) if usable else None,
        notes=tuple(problems),
        doc=doc,
    )


def _without_null(table: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in table.items() if v is not None}
