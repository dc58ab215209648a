"""What compiles, but may not be what its writer meant."""

from __future__ import annotations

from typing import Literal, NamedTuple

from spinf_stream.questions.questionset import QuestionSet


class Warned(NamedTuple):
    query: str
    code: Literal["option_prefix"]
    message: str


def warnings(questions: QuestionSet) -> list[Warned]:
    """option_prefix: an option's tokens begin another's, so without `ends` its probability holds the other's as well."""
    plan = questions.plan
    tokens = plan.cand_token[plan.step_cand].tolist()
    steps, option_of = plan.step_ptr.tolist(), plan.variant_option.tolist()
    out: list[Warned] = []
    variant = 0
    for q, prompt_option in zip(questions.queries, questions.starts.option.tolist()):
        owner: dict[tuple[int, ...], int] = {}  # the first prompt stands for all: they have the same variants
        while variant < len(option_of) and option_of[variant] < prompt_option + len(q.options):
            owner[tuple(tokens[steps[variant] : steps[variant + 1]])] = option_of[variant] - prompt_option
            variant += 1
        variant += len(owner) * (len(q.values) - 1)
        if q.ends:
            continue
        pairs = {
            (owner[path[:n]], k) for path, k in owner.items() for n in range(1, len(path)) if owner.get(path[:n], k) != k
        }  # fmt: skip
        for short in sorted({i for i, _ in pairs}):
            longer = ", ".join(f"options[{k}]" for k in sorted(k for i, k in pairs if i == short))
            out.append(Warned(q.name, "option_prefix", f"options[{short}] is also the beginning of {longer}: set ends = true to tell them apart"))
    return out
