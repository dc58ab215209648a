"""From a query as written to a question that can be asked: which fields go with which slot, and the combinations."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from spinf_stream.questions.problems import Problem, Reason
from spinf_stream.questions.spec import Limits, Placed, Query, QuestionFile
from spinf_stream.questions.template import Template, TemplateFault, parse

MAX_PLACEHOLDERS = 5
MAX_ALL = 1000  # combinations of "all"
MAX_SEARCHED = 64  # max_tokens of a searched slot
MAX_STOP = 64  # characters of a stop text
PACK_GROUP = re.compile(r"[^/]+/[^/@]+@.+")  # what a pack's questions are grouped under


class Question(NamedTuple):
    query: Query
    path: str
    name: str  # the id, "pack:id" for a pack's query: how messages and flags call it
    template: Template
    values: tuple[dict[str, str], ...]  # one a prompt, keys in the template's order
    floor: bool
    case_insensitive: bool
    pack: str | None
    context: str | None

    def text(self, prompt: int) -> str:
        return self.template.fill(self.values[prompt])

    def place(self, prompt: int) -> str:
        """The path of one prompt: its combination where the file lists them, else the template."""
        if isinstance(self.query.combinations, tuple):
            return f"{self.path}.combinations[{prompt}]"
        return f"{self.path}.template"

    def where(self, prompt: int) -> str:
        return f" in combination {prompt}" if len(self.values) > 1 else ""


class _Fault(Exception):
    def __init__(self, path: str, reason: Reason, message: str) -> None:
        self.path, self.reason, self.message = path, reason, message


def questions(
    placed: Iterable[Placed], file: QuestionFile, limits: Limits, problems: list[Problem], pack: str | None = None, context: str | None = None
) -> list[Question]:
    """Check queries one by one and among each other; what is broken is left out and its problems appended."""
    out: list[Question] = []
    seen: dict[str, str] = {}
    for query, path in placed:
        name = query.id if pack is None else f"{pack}:{query.id}"
        faults: list[_Fault] = []
        if query.id in seen:
            faults.append(_Fault(".id", "duplicate_id", f"{seen[query.id]} has the same id"))
        seen.setdefault(query.id, path)
        if query.group is not None and PACK_GROUP.fullmatch(query.group):
            faults.append(_Fault(".group", "reserved_group", "names of the form namespace/pack@version belong to packs"))
        template: Template | None = None
        values: tuple[dict[str, str], ...] = ()
        try:
            template = parse(query.template, angle=pack is not None)
        except TemplateFault as e:
            faults.append(_Fault(".template", "invalid_template", str(e)))
        if template is not None:
            faults += _field_faults(query, template, limits)
            values, more = _combine(query, template, limits)
            faults += more
        problems += (Problem(name, path + f.path, f.reason, f.message) for f in faults)
        if template is not None and not faults:
            out.append(Question(
                query, path, name, template, values,
                file.empty_floor if query.empty_floor is None else query.empty_floor,
                file.case_insensitive if query.case_insensitive is None else query.case_insensitive,
                pack, context,
            ))  # fmt: skip
    return out


def _field_faults(query: Query, template: Template, limits: Limits) -> list[_Fault]:
    faults: list[_Fault] = []
    if len(template.names) > MAX_PLACEHOLDERS:
        faults.append(_Fault(".template", "invalid_template", f"has {len(template.names)} placeholders, at most {MAX_PLACEHOLDERS}"))
    scored, generated = template.slot == "?", query.generate not in (None, False)
    given = {
        "options": query.options is not None,
        "empty_floor": query.empty_floor is not None,
        "case_insensitive": query.case_insensitive is not None,
        "ends": query.ends,
        "residual": not query.residual,
        "max_tokens": query.max_tokens is not None,
        "top_k": query.top_k is not None,
        "calibration": query.calibration is not None,
        "generate": generated,
        "mode": query.mode is not None,
    }
    slot = "{" + template.slot + "}"
    if scored:
        barred = {"max_tokens", "top_k", "calibration", "generate", "mode"}
        why = "is for the slots {*}, {n} and {$}"
    else:
        barred = {"options", "empty_floor", "case_insensitive", "ends", "residual"}
        why = f"is for scored questions, and this template ends in {slot}"
    faults += (_Fault(f".{f}", "field_not_allowed", why) for f in given if given[f] and f in barred)
    if not scored and generated:
        if template.slot != "*":
            faults.append(_Fault(".generate", "field_not_allowed", f"is for {{*}}, and this template ends in {slot}"))
        faults += (
            _Fault(f".{f}", "field_not_allowed", "does not go with generate (generate.top_k is another thing)")
            for f in ("top_k", "calibration") if given[f]
        )  # fmt: skip
        if given["mode"]:
            faults.append(_Fault(".mode", "field_not_allowed", "does not go with generate, which neither searches nor copies"))
    if query.mode == "copy_only" and template.slot in ("n", "$") and given["max_tokens"]:
        faults.append(_Fault(".max_tokens", "field_not_allowed", "does not go with copy_only: a copied number is as long as it stands there"))
    if len(template.stop) > MAX_STOP:
        faults.append(_Fault(".template", "invalid_template", f"has a stop text of {len(template.stop)} characters, at most {MAX_STOP}"))
    if not scored and not generated and (query.max_tokens or 0) > MAX_SEARCHED:
        faults.append(_Fault(".max_tokens", "invalid_field", f"at most {MAX_SEARCHED} unless generated"))
    if scored:
        faults += _option_faults(query, limits)
    if scored and query.ends and not query.residual:
        faults.append(_Fault(".ends", "field_not_allowed", "needs the whole vocabulary, which residual = false leaves out: keep one"))
    return faults


def _option_faults(query: Query, limits: Limits) -> list[_Fault]:
    if query.options is None:
        return [_Fault(".options", "missing_field", "a scored question needs options")]
    if not query.options:
        return [_Fault(".options", "invalid_field", "at least one option")]
    if len(query.options) > limits.max_options:
        return [_Fault(".options", "too_many_options", f"{len(query.options)} options, at most {limits.max_options}")]
    faults: list[_Fault] = []
    first: dict[str, int] = {}
    for k, option in enumerate(query.options):
        j = first.setdefault(option.strip().casefold(), k)
        if j != k:
            faults.append(_Fault(f".options[{k}]", "duplicate_option", f"is options[{j}] again, up to case and outer spaces"))
    return faults


def _combine(query: Query, template: Template, limits: Limits) -> tuple[tuple[dict[str, str], ...], list[_Fault]]:
    names = template.names
    if query.values is not None and query.combinations != "all":
        return (), [_Fault(".values", "field_not_allowed", 'goes with combinations = "all" alone')]
    if query.combinations is None:
        if names:
            return (), [_Fault(".combinations", "missing_value", f"the template has placeholders ({', '.join(names)}): give their values")]
        return ({},), []
    if query.combinations == "all":
        return _combine_all(query, names)
    if not query.combinations:
        return (), [_Fault(".combinations", "missing_value", "the list is empty: leave it out, or give values")]
    if len(query.combinations) > limits.max_prompts:
        return (), [_Fault(".combinations", "too_many_combinations", f"{len(query.combinations)}, at most {limits.max_prompts}")]
    faults: list[_Fault] = []
    for i, values in enumerate(query.combinations):
        faults += _key_faults(f".combinations[{i}]", values, names)
    if faults:
        return (), faults
    return tuple([{n: c[n] for n in names} for c in query.combinations]), []


def _combine_all(query: Query, names: tuple[str, ...]) -> tuple[tuple[dict[str, str], ...], list[_Fault]]:
    if not names:
        return (), [_Fault(".combinations", "unknown_placeholder", 'is "all", and the template has no placeholder')]
    if query.values is None:
        return (), [_Fault(".values", "missing_value", 'combinations = "all" needs values')]
    faults = _key_faults(".values", query.values, names)
    faults += (_Fault(f".values.{n}", "missing_value", "the list is empty") for n in names if n in query.values and not query.values[n])
    if faults:
        return (), faults
    lists = [query.values[n] for n in names]
    count = math.prod(map(len, lists))
    if count > MAX_ALL:
        return (), [_Fault(".combinations", "too_many_combinations", f'"all" makes {count} of them, at most {MAX_ALL}')]
    return tuple([dict(zip(names, row)) for row in itertools.product(*lists)]), []


def _key_faults(path: str, given: Iterable[str], names: tuple[str, ...]) -> list[_Fault]:
    given = list(given)
    faults = [_Fault(path, "missing_value", f"has no value for the placeholder {n}") for n in names if n not in given]
    for key in given:
        if key not in names:
            shown = key if re.fullmatch(r"[A-Za-z0-9_]{1,40}", key) else "?"
            faults.append(_Fault(f"{path}.{shown}", "unknown_placeholder", "the template has no such placeholder"))
    return faults
