"""From question files to a QuestionSet, for one tokenizer.

    scoring object --spec.read--> Placed --rules.questions--> Question --tokens, boundaries--> trie, floor keys, heads --> body

The same compiler serves question files and packs: a Source says whose queries they are and which case rule holds where
they do not say. Sources of one build share a trunk, so they must share their context's text. What is wrong without any
article is refused here, everything at once (DECISIONS 2).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from spinf_stream.questions.encoder import Encoder
from spinf_stream.questions.joins import heads
from spinf_stream.questions.options import Ids, Tokens, endings, forms, melting, plain
from spinf_stream.questions.problems import Problem, QuestionError
from spinf_stream.questions.questionset import (
    COMPILER,
    Body,
    QuestionSet,
    ScoredQuery,
    SlotQuery,
    encode,
    from_body,
    pack_plan,
)
from spinf_stream.questions.rules import Question, questions
from spinf_stream.questions.spec import LIMITS, Generate, Limits, read
from spinf_stream.questions.tokenfaults import option_faults, template_faults
from spinf_stream.questions.trie import Builder, shape


class Source(NamedTuple):
    """One scoring object. A pack's queries are labelled, may write slots as <n>, and have no max_query_tokens."""

    raw: object  # decoded JSON or TOML
    where: str = "$"  # its JSON path in the file, for problems
    pack: str | None = None
    context: str | None = None
    case_insensitive: bool = True  # where the object does not say; packs: False


def build(sources: Sequence[Source], encoder: Encoder, limits: Limits = LIMITS) -> QuestionSet:
    """Compile. Raises QuestionError with every problem of every source."""
    return from_body(build_body(sources, encoder, limits))


def check(sources: Sequence[Source], limits: Limits = LIMITS) -> list[Problem]:
    """The problems that can be found without a tokenizer."""
    problems: list[Problem] = []
    _ask(sources, limits, problems)
    return problems


def build_body(sources: Sequence[Source], encoder: Encoder, limits: Limits = LIMITS) -> bytes:
    """As build, the encoded body: what the cache keeps."""
    problems: list[Problem] = []
    asked = _ask(sources, limits, problems)
    if any(p.query is None and p.reason in ("too_many_prompts", "too_many_options") for p in problems):
        raise QuestionError(problems)  # more than is worth tokenising
    scored = [q for q in asked if q.template.slot == "?"]
    slots = [q for q in asked if q.template.slot != "?"]
    tokens = Tokens(encoder)
    tokens.fetch(q.text(i) for q in asked for i in range(len(q.values)))
    tokens.fetch(form for q in scored for option in q.query.options or () for form in forms(option, q.case_insensitive))
    problems += template_faults(asked, tokens, encoder, limits)
    variants = _variants(scored, tokens, encoder, limits, problems)
    if problems:
        raise QuestionError(problems)

    trie = Builder()
    keys: list[bytes] = []
    queries: list[ScoredQuery] = []
    for q, options in zip(scored, variants):
        below = shape(options, q.query.ends)
        alone = 0
        rule = msgspec.msgpack.encode((q.query.options, q.case_insensitive, q.query.ends, q.query.residual, options))
        for i in range(len(q.values)):
            text = q.text(i)
            trie.prompt(tokens[text], below, q.query.residual)
            alone += len(tokens[text]) + len(below.nodes)
            keys.append(hashlib.sha256(msgspec.msgpack.encode((text, rule))).digest())
        queries.append(ScoredQuery(
            q.query.id, q.pack, q.context, q.query.group, q.query.options or (), q.values,
            q.floor, q.case_insensitive, q.query.ends, q.query.residual, alone,
        ))  # fmt: skip
    return encode(Body(
        COMPILER, encoder.digest, tuple(queries),
        tuple([_slot(q, tokens) for q in slots]),
        pack_plan(trie.plan()), b"".join(keys),
        heads(((n, q.text(i)) for n, q in enumerate((*scored, *slots)) for i in range(len(q.values))), encoder),
    ))  # fmt: skip


def _ask(sources: Sequence[Source], limits: Limits, problems: list[Problem]) -> list[Question]:
    asked: list[Question] = []
    for s in sources:
        found: list[Problem] = []
        placed, file = read(s.raw, s.where, found)
        problems += (p for p in found if s.pack is None or p.reason != "unknown_field")  # packs of the peer may carry more
        if file is None:
            continue
        if isinstance(s.raw, dict) and "case_insensitive" not in s.raw:
            file = msgspec.structs.replace(file, case_insensitive=s.case_insensitive)
        asked += questions(placed, file, limits, problems, s.pack, s.context)
    prompts = answers = slots = 0
    for q in asked:
        if q.template.slot == "?":
            prompts += len(q.values)
            answers += len(q.values) * len(q.query.options or ())
        else:
            slots += len(q.values)
    where = f"{sources[0].where}.queries" if sources else "$"
    if prompts > limits.max_prompts:
        problems.append(Problem(None, where, "too_many_prompts", f"{prompts} prompts (queries times combinations), at most {limits.max_prompts}"))
    if answers > limits.max_answers:
        problems.append(Problem(None, where, "too_many_options", f"{answers} answers (prompts times options), at most {limits.max_answers}"))
    if slots > limits.max_slots:
        problems.append(Problem(None, where, "too_many_extractions", f"{slots} slots (queries times combinations), at most {limits.max_slots}: ask for less, or raise the setting max_slots"))
    return asked


def _variants(
    scored: Sequence[Question], tokens: Tokens, encoder: Encoder, limits: Limits, problems: list[Problem]
) -> list[list[list[Ids]]]:
    """For each question and option the token ids of its variants.

    Dropped: what melts into an ending, and what is a spelling of two options (dotless i and i are both I in capitals).
    """
    spelled: list[list[list[str]]] = []
    for q in scored:
        spelled.append([
            [f for f in forms(option, q.case_insensitive) if f == option or (len(tokens[f]) == 1 and plain(tokens[f], encoder))]
            for option in q.query.options or ()
        ])  # fmt: skip
    texts = [[q.text(i) for i in range(len(q.values))] for q in scored]
    melts = melting(encoder, tokens, zip(texts, (list(itertools.chain(*s)) for s in spelled)))
    problems += option_faults(scored, texts, tokens, encoder, melts, limits)
    out: list[list[list[Ids]]] = []
    for own, options in zip(texts, spelled):
        melted = set().union(*(melts.get(e, ()) for e in endings(own)))
        kept = [[f for f in fs if f == fs[0] or f not in melted] for fs in options]
        paths = [list(dict.fromkeys(tokens[f] for f in fs)) for fs in kept]
        owners = Counter(itertools.chain(*paths))
        out.append([[p for p in ps if p == ps[0] or owners[p] == 1] for ps in paths])
    return out


def _slot(q: Question, tokens: Tokens) -> SlotQuery:
    fitted = q.query.calibration
    made = Generate() if q.query.generate is True else q.query.generate or None
    return SlotQuery(
        q.query.id, q.pack, q.context, q.query.group, q.template.slot, q.template.stop,
        q.query.max_tokens or 16, q.query.top_k or 5,
        None if fitted is None else (fitted.a, fitted.b),
        made, q.query.mode or "search", q.values,
        tuple([tokens[q.text(i)] for i in range(len(q.values))]),
    )  # fmt: skip
