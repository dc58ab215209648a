"""Case variants, multi-token options, `ends`, and the boundary between template and option (W13, W15)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from questions_bpe import ENCODER, WORDS, compiled, encoder, path, problems, texts

from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.options import forms
from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.questionset import QuestionSet
from spinf_stream.questions.warnings import warnings


def query(**fields: Any) -> dict[str, Any]:
    return {"id": "a", "template": "\n\nIs it?\nAnswer:{?}", "options": [" yes", " no"], **fields}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (" Yes", [" Yes", " yes", "yes", "Yes", " YES", "YES"]),
        ("yes", ["yes", " yes", " Yes", "Yes", " YES", "YES"]),
        ("  nEW york ", ["  nEW york ", " new york", "new york", " New york", "New york", " NEW YORK", "NEW YORK"]),
        (" 10", [" 10", "10"]),
        ("ß", ["ß", " ß", " SS", "SS"]),
        ("\n", ["\n"]),
    ],
)
def test_spellings(option: str, expected: list[str]) -> None:
    assert forms(option, True) == expected
    assert forms(option, False) == [option]


def test_the_option_as_sent_comes_first_and_other_spellings_must_be_single_tokens() -> None:
    q = compiled(query(options=[" Yes", " no", " New York"]))
    assert texts(q, 0) == [
        [" Yes", " yes", "yes", "Yes", " YES"],  # "YES" is three tokens here
        [" no", " No", "NO"],
        [" New York"],
    ]
    assert texts(compiled(query(options=[" YeS", " nO"])), 0) == [[" YeS", " yes", "yes", " Yes", "Yes", " YES"], [" nO", " no", " No", "NO"]]


def test_the_case_rule_of_a_query_wins_over_the_files() -> None:
    q = compiled(query(), query(id="b", case_insensitive=True), query(id="c", case_insensitive=False), case_insensitive=False)
    assert [len(texts(q, i)[0]) for i in range(3)] == [1, 5, 1]
    assert [s.case_insensitive for s in q.queries] == [False, True, False]


def test_lead_ins_of_multi_token_options_are_in_the_trie_and_each_step_reads_its_own_node() -> None:
    q = compiled(query(options=[" New York", " New oil", " no"], case_insensitive=False))
    plan, prompt = q.plan, ENCODER.encode("\n\nIs it?\nAnswer:")
    new, york, oil, no = (ENCODER.encode(t)[0] for t in (" New", " York", " oil", " no"))
    assert path(q, plan.nodes - 1) == [*prompt, new]  # one lead-in, shared by two options
    assert plan.nodes == len(prompt) + 1
    assert plan.read_node.tolist() == [len(prompt) - 1, len(prompt)]
    assert plan.cand_token[plan.cand_ptr[0] : plan.cand_ptr[1]].tolist() == sorted([new, no])
    assert plan.cand_token[plan.cand_ptr[1] : plan.cand_ptr[2]].tolist() == sorted([york, oil])
    assert plan.cand_token[plan.step_cand].tolist() == [new, york, new, oil, no]
    assert plan.variant_end.tolist() == [-1, -1, -1] and not plan.read_end.any() and plan.read_norm.all()


def test_an_option_that_must_end_is_read_to_its_last_token_in_every_spelling() -> None:
    q = compiled(query(options=[" yes", " New York"], ends=True))
    plan = q.plan
    prompt = ENCODER.encode("\n\nIs it?\nAnswer:")
    ended = [path(q, int(plan.read_node[r])) for r in plan.variant_end]
    spelled = [ENCODER.encode(t) for t in [" yes", "yes", " Yes", "Yes", " YES", " New York"]]
    assert ended == [[*prompt, *ids] for ids in spelled]
    assert plan.nodes == len(prompt) + 5 + 2
    assert plan.read_end.sum() == 6 and plan.read_norm.all()
    assert (np_sizes(q)[plan.variant_end] == 0).all()  # an end alone has no candidates


def np_sizes(q: QuestionSet) -> Any:
    return q.plan.cand_ptr[1:] - q.plan.cand_ptr[:-1]


def test_without_ends_an_option_that_begins_another_is_pointed_out() -> None:
    scale = [f" {i}" for i in range(1, 11)]
    pairs = [{"F": "oil"}, {"F": "gas"}, {"F": "low"}]
    q = compiled(query(id="scale", template="\n\nHow bad is {F}?{?}", combinations=pairs, options=scale), query(), query(id="sure", options=scale, ends=True))
    (w,) = warnings(q)
    assert (w.query, w.code) == ("scale", "option_prefix")
    assert "options[0]" in w.message and "options[9]" in w.message


def test_candidates_alone_read_no_normaliser_whoever_else_reads_there() -> None:
    """Log-probabilities and bare logits round differently: a sibling must not turn one into the other."""
    alone = compiled(query(residual=False))
    assert not alone.plan.read_norm.any() and not alone.plan.prompt_norm.any()
    both = compiled(query(residual=False), query(id="b", options=[" oil", " yes"]))
    assert both.plan.nodes == alone.plan.nodes
    assert both.plan.read_node.tolist() == [*alone.plan.read_node.tolist() * 2]
    assert both.plan.read_norm.tolist() == [False, True] and both.plan.prompt_norm.tolist() == [False, True]
    for name in ("read_node", "read_norm", "cand_token", "step_cand"):
        assert np.array_equal(getattr(both.subset([0]), name), getattr(alone.plan, name))
    assert both.subset([1]).read_norm.tolist() == [True]
    ended = compiled(query(residual=False), query(id="b", options=[" yes"], case_insensitive=False, ends=True)).plan
    assert ended.read_norm.tolist() == [False, True, True] and ended.read_end.tolist() == [False, False, True]


CROSSING = encoder(("q Y", "x y", *WORDS))  # "q" takes the space that follows it, so does "x"


def crossing(*queries: dict[str, Any]) -> QuestionSet:
    return build([Source({"queries": list(queries)})], CROSSING)


@pytest.mark.parametrize("letters", ["abcdefghijklmnopqr", "ab" * 500 + "q"])
def test_every_ending_is_tried_not_only_the_first_sixteen(letters: str) -> None:
    asked = query(template="\n\nIs it {F}{?}", options=[" Yes", "No"], combinations=[{"F": c} for c in letters])
    with pytest.raises(QuestionError) as e:
        crossing(asked)
    (problem,) = e.value.problems
    assert (problem.query, problem.path, problem.reason) == ("a", "$.queries[0].options[0]", "option_boundary")
    assert f"combination {letters.index('q')}:" in problem.message
    asked["combinations"] = [c for c in asked["combinations"] if c["F"] not in "q"]
    assert crossing(asked).plan.prompts == len(asked["combinations"])


def test_the_ending_is_looked_at_beyond_the_last_token() -> None:
    far = encoder(("abcdefgh yes", *WORDS))
    ending = "\n\nIs it abcdefgh{?}"
    with pytest.raises(QuestionError, match="option_boundary"):
        build([Source({"queries": [query(template=ending)]})], far)


def test_a_spelling_that_melts_is_dropped_for_the_whole_query() -> None:
    asked = query(template="\n\nIs it {F}{?}", options=["yes"], combinations=[{"F": "a"}, {"F": "x"}])
    both = crossing(asked)
    assert texts(both, 0, CROSSING) == texts(both, 1, CROSSING) == [["yes", "Yes"]]
    alone = crossing(asked | {"combinations": [{"F": "a"}]})
    assert texts(alone, 0, CROSSING) == [["yes", " yes", " Yes", "Yes", " YES"]]
    assert alone.floor_keys[0] != both.floor_keys[0]  # another question, so another floor


def test_a_spelling_of_two_options_counts_for_neither() -> None:
    dotless = encoder((" ı", " i", " I", *WORDS))
    q = build([Source({"queries": [query(options=[" ı", " i"])]})], dotless)
    assert [[t for t in spelled if t.strip() == "I"] for spelled in texts(q, 0, dotless)] == [[], []]
    assert "I" in [t.strip() for t in texts(build([Source({"queries": [query(options=[" i"])]})], dotless), 0, dotless)[0]]


def test_options_with_the_same_tokens_cannot_be_told_apart() -> None:
    assert problems({"queries": [query(options=[" yes", "\u00a0yes"])]})[0].reason == "duplicate_option"  # equal once stripped

    class Deaf:
        """Reads every letter as the same token."""

        digest, vocab, bos = "0" * 64, 1000, (2,)

        def encode(self, text: str) -> list[int]:
            return [5 if c.isalpha() else 6 for c in text]

        def encode_batch(self, texts: Any) -> list[list[int]]:
            return [self.encode(t) for t in texts]

    with pytest.raises(QuestionError) as e:
        build([Source({"queries": [query(options=[" ab", " cd", " cde"], case_insensitive=False)]})], Deaf())
    assert [(p.path, p.reason) for p in e.value.problems] == [("$.queries[0].options[1]", "duplicate_option")]


def test_special_tokens_never_come_from_text() -> None:
    assert compiled(query(template="<bos><eos>:{?}", options=[" yes", "<bos>"])).plan.nodes > 2  # plain text with our encoder

    class Eager:
        """Puts a BOS before every text, as a tokenizer with its own template does."""

        digest, vocab, bos = "0" * 64, 1000, (2,)

        def encode(self, text: str) -> list[int]:
            return [2, *ENCODER.encode(text)]

        def encode_batch(self, texts: Any) -> list[list[int]]:
            return [self.encode(t) for t in texts]

    class Shouting(Eager):
        """Reads capitals as BOS."""

        def encode(self, text: str) -> list[int]:
            return [2 if t == ENCODER.encode(" YES")[0] else t for t in ENCODER.encode(text)]

    q = build([Source({"queries": [query(options=[" yes"])]})], Shouting())
    assert texts(q, 0) == [[" yes", "yes", " Yes", "Yes"]]
    with pytest.raises(QuestionError) as e:
        build([Source({"queries": [query()]})], Eager())
    assert {p.reason for p in e.value.problems} == {"special_token", "option_boundary"}
    assert {p.path for p in e.value.problems if p.reason == "special_token"} == {"$.queries[0].template", "$.queries[0].options[0]", "$.queries[0].options[1]"}
