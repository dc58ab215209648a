"""Is this document a pack? Every fault at once, each with its JSON path.

A pack without fitted constants is a *draft*: a question set that asks and does not judge. A file is a draft when it says
`"calibrated": false`, or when none of `mean`, `sd`, `mu`, `platt` stands anywhere in it; a draft may leave out `reads`,
`categories` and `decision` altogether. A file with some constants and not others is broken, not a draft.
"""

from __future__ import annotations

import re
from typing import Any

from spinf_stream.packs.check_decision import check_decision
from spinf_stream.packs.check_reads import Reads, check_categories, check_reads
from spinf_stream.packs.document import digest
from spinf_stream.packs.micro import LOCK_WARNING, lock
from spinf_stream.packs.problems import Checker, Problem, kind, step
from spinf_stream.packs.queries import check_scoring
from spinf_stream.questions.rules import Question

MEDIA = ("text", "image", "audio", "video")
ANSWERS = ("p", "logprob")
PACK_ID = re.compile(r"[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]*")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")  # in a context


def is_draft(doc: dict[str, Any]) -> bool:
    if isinstance(doc.get("calibrated"), bool):
        return not doc["calibrated"]
    reads, categories = doc.get("reads"), doc.get("categories")
    fitted = [r for r in (reads if isinstance(reads, list) else ()) if isinstance(r, dict)]
    judged = [c for c in (categories.values() if isinstance(categories, dict) else ()) if isinstance(c, dict)]
    return not any(k in r for r in fitted for k in ("mean", "sd", "mu")) and not any("platt" in c for c in judged)


def validate(doc: dict[str, Any]) -> tuple[list[Problem], dict[str, Question]]:
    """Problems in file order, and the usable questions by id (all of them when no problem is an error)."""
    check = Checker()
    draft = is_draft(doc)
    check.flag(doc, "calibrated", "$")
    name = check.text(doc, "pack", "$", required=True, pattern=PACK_ID, longest=128)
    check.text(doc, "version", "$", required=True, pattern=VERSION, longest=64)
    check.text(doc, "model", "$", required=not draft)
    check.text(doc, "answers", "$", one_of=ANSWERS)
    if "media" in doc:
        _media(check, doc["media"])
    parameters = _parameters(check, doc["parameters"]) if "parameters" in doc else set()
    if "contexts" in doc:
        _contexts(check, doc["contexts"], parameters)
    else:
        check.error("$.contexts", "is missing")
    questions: dict[str, Question] = {}
    if "scoring" in doc:
        questions = check_scoring(check, doc["scoring"], name)
    else:
        check.error("$.scoring", "is missing")
    _judging(check, doc, questions, draft)
    _seal(check, doc)
    return check.problems, questions


def _judging(check: Checker, doc: dict[str, Any], questions: dict[str, Question], draft: bool) -> None:
    parts = [k for k in ("reads", "categories", "decision") if k in doc]
    if draft and not parts:
        return
    for key in ("reads", "categories", "decision"):
        if key not in parts:
            check.error(step("$", key), "is missing" + (": a draft has all of reads, categories, decision, or none" if draft else ""))
    reads = None
    if "reads" in doc:
        scoring = doc.get("scoring")
        listed = scoring.get("queries") if isinstance(scoring, dict) else None
        named = {q["id"] for q in listed if isinstance(q, dict) and isinstance(q.get("id"), str)} if isinstance(listed, list) else set()
        reads = check_reads(check, doc["reads"], questions, named - set(questions), draft)
    categories = check_categories(check, doc["categories"], reads, draft) if "categories" in doc else {}
    if reads is not None and isinstance(doc.get("categories"), dict):
        for i, read in enumerate(doc["reads"] if isinstance(doc["reads"], list) else ()):
            if isinstance(read, dict) and isinstance(read.get("category"), str) and read["category"] not in categories:
                check.error(f"$.reads[{i}].category", "names no category of this pack")
    if "decision" in doc:
        check_decision(check, doc["decision"], categories, (reads or Reads()).ids, draft)


def _seal(check: Checker, doc: dict[str, Any]) -> None:
    """Our digest, and the peer's lock, once everything they are taken over has its right type."""
    if "digest" in doc:
        value = doc["digest"]
        if not isinstance(value, str):
            check.error("$.digest", f"must be a string, not {kind(value)}")
        elif value != digest(doc):
            check.error("$.digest", "the file was edited after it was sealed: review the edit, then `spinf-stream packs seal FILE`, or remove this field")
    decision = doc.get("decision")
    layer = decision.get("micro_layer") if isinstance(decision, dict) else None
    if check.errors or not isinstance(layer, dict) or not isinstance(layer.get("lock"), str):
        return
    if layer["lock"] != lock(doc):
        check.problems.append(Problem("$.decision.micro_layer.lock", LOCK_WARNING, "edited"))


def _media(check: Checker, raw: Any) -> None:
    media = check.items(raw, "$.media")
    if media is None:
        return
    for i, m in enumerate(media):
        if not isinstance(m, str) or m not in MEDIA:
            check.error(step("$.media", i), f"must be one of {', '.join(MEDIA)}")
    if "text" not in media:
        check.error("$.media", "must contain text")


def _parameters(check: Checker, raw: Any) -> set[str]:
    """Names of the declared parameters, well formed or not: a fault in one is told once."""
    table = check.table(raw, "$.parameters") or {}
    for name, item in table.items():
        at = step("$.parameters", name)
        if name == "X" or not _PARAMETER.fullmatch(name):
            check.error(at, "a parameter name has letters, digits and underscores, starts with no digit, and is not X")
        spec = check.table(item, at, ("label", "description", "required", "default"))
        if spec is None:
            continue
        check.text(spec, "label", at)
        check.text(spec, "description", at)
        check.flag(spec, "required", at)
        default = spec.get("default")
        if default is not None and not isinstance(default, str | int | float):
            check.error(step(at, "default"), f"must be a string, a number or a boolean, not {kind(default)}")
    return set(table)


def _contexts(check: Checker, raw: Any, parameters: set[str]) -> None:
    table = check.table(raw, "$.contexts")
    if table is None:
        return
    if not table:
        check.error("$.contexts", "must not be empty")
    for name, template in table.items():
        at = step("$.contexts", name)
        if not name:
            check.error(at, "a context needs a name")
        if not isinstance(template, str):
            check.error(at, f"must be a string, not {kind(template)}")
            continue
        if template.count("{X}") != 1:
            check.error(at, f"has {{X}} {template.count('{X}')} times: exactly once is right")
        for place in PLACE.findall(template):
            if place != "X" and place not in parameters:
                check.error(at, f"has {{{place}}}, which $.parameters does not declare")
