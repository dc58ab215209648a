"""What only a tokenizer can find wrong with a question: nothing to read, too long, an option that melts into its template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from spinf_stream.questions.encoder import Encoder
from spinf_stream.questions.options import Ids, Tokens, endings, plain
from spinf_stream.questions.problems import Problem, Reason
from spinf_stream.questions.rules import Question
from spinf_stream.questions.spec import Limits

Found = tuple[int, Reason, str]  # prompt or option, reason, message


def template_faults(asked: Sequence[Question], tokens: Tokens, encoder: Encoder, limits: Limits) -> Iterator[Problem]:
    """One problem a query and reason, at the first prompt that has it."""
    for q in asked:
        most = None if q.pack is not None else limits.max_query_tokens
        seen: set[Reason] = set()
        for i in range(len(q.values)):
            ids, where = tokens[q.text(i)], q.where(i)
            found: list[tuple[Reason, str]] = []
            if not ids:
                found.append(("empty_template", f"has no text before its slot{where}: nothing would be read but the article"))
            if most is not None and len(ids) > most:
                found.append(("template_too_long", f"has {len(ids)} tokens{where}, at most {most}"))
            if not plain(ids, encoder):
                found.append(("special_token", f"gives a special token{where}"))
            for reason, message in found:
                if reason not in seen:
                    seen.add(reason)
                    yield Problem(q.name, q.place(i), reason, message)


def option_faults(
    scored: Sequence[Question], texts: Sequence[Sequence[str]], tokens: Tokens, encoder: Encoder, melts: Mapping[str, Set[str]], limits: Limits
) -> Iterator[Problem]:
    """texts[q] are question q's filled templates; melts is what options.melting found."""
    for q, own in zip(scored, texts):
        ends = endings(own)
        first: dict[Ids, int] = {}
        for k, option in enumerate(q.query.options or ()):
            for reason, message in _option(q, option, own, ends, tokens[option], encoder, melts, limits):
                yield Problem(q.name, f"{q.path}.options[{k}]", reason, message)
            j = first.setdefault(tokens[option], k)
            if j != k:
                yield Problem(q.name, f"{q.path}.options[{k}]", "duplicate_option", f"has the same tokens as options[{j}]")


def _option(
    q: Question, option: str, own: Sequence[str], ends: Sequence[str], ids: Ids, encoder: Encoder, melts: Mapping[str, Set[str]], limits: Limits
) -> Iterator[tuple[Reason, str]]:
    if not ids:
        yield "invalid_field", "has no tokens"
    elif len(ids) > limits.max_option_tokens:
        yield "option_too_long", f"has {len(ids)} tokens, at most {limits.max_option_tokens}"
    elif len(ids) > 1 and not q.query.residual:
        yield "multi_token_option", f"has {len(ids)} tokens, and residual = false reads one: shorten it, or ask for the residual"
    if not plain(ids, encoder):
        yield "special_token", "gives a special token"
    bad = [e for e in ends if option in melts.get(e, ())]
    if bad:
        prompt = next(i for i, text in enumerate(own) if text.endswith(bad[0]))
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        yield (
            "option_boundary",
            f"melts into the end of the template{q.where(prompt)}{more}: end the template without a space and start the option with one",
        )
