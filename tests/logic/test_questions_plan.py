"""The compiled trie and read plan against a plain evaluator, on random question sets."""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from questions_bpe import ENCODER, compiled, path

from spinf_stream.questions.options import forms
from spinf_stream.questions.plan import Plan
from spinf_stream.questions.planfault import plan_fault
from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.questionset import QuestionSet
from spinf_stream.questions.readout import read_out, starts
from spinf_stream.questions.template import parse
from spinf_stream.questions.trie import Builder, shape, subset

OPTIONS = [" yes", "No", " New", " New York", " Yes it", " 1", " 10", " 100", " oil", "gas", " low", " lower", " x", " xy"]
VALUES = ["", "oil", " gas", "Is", "1", "New York", "?"]
ALNUM = ENCODER.starts_alnum()


def model(tokens: Sequence[int]) -> np.ndarray:
    """A made-up language model: the logits of the token after these."""
    return np.random.default_rng(zlib.crc32(np.array(tokens, np.int32).tobytes())).normal(0, 4, ENCODER.vocab)


def logsumexp(x: Sequence[float] | np.ndarray) -> float:
    return float(np.logaddexp.reduce(np.array(x, float)))


def engine(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """What an engine returns for a plan, node by node."""
    cand, end = np.zeros(len(plan.cand_token)), np.zeros(plan.reads)
    for r, node in enumerate(plan.read_node.tolist()):
        tokens: list[int] = []
        while node >= 0:
            tokens.insert(0, int(plan.token[node]))
            node = int(plan.parent[node])
        logits = model(tokens)
        span = slice(plan.cand_ptr[r], plan.cand_ptr[r + 1])
        cand[span] = logits[plan.cand_token[span]] - (logsumexp(logits) if plan.read_norm[r] else 0.0)
        if plan.read_end[r]:
            end[r] = logsumexp(logits[~ALNUM]) - logsumexp(logits)
    return cand, end


def naive(query: dict[str, Any], values: dict[str, str]) -> tuple[list[float], list[float], float]:
    """Log-probabilities, p and residual of one prompt, straight from the definition, without a trie."""
    prompt = ENCODER.encode(parse(query["template"]).fill(values))
    logprob = []
    for option in query["options"]:
        paths: list[list[int]] = []
        for form in forms(option, query["case_insensitive"]):
            ids = ENCODER.encode(form)
            if (form == option or len(ids) == 1) and ids not in paths:
                paths.append(ids)
        total = []
        for ids in paths:
            p = 0.0
            for i, t in enumerate(ids):
                logits = model(prompt + ids[:i])
                p += logits[t] - logsumexp(logits)
            if query.get("ends"):
                logits = model(prompt + ids)
                p += logsumexp(logits[~ALNUM]) - logsumexp(logits)
            total.append(p)
        logprob.append(logsumexp(total))
    p = [math.exp(x - logsumexp(logprob)) for x in logprob]
    return logprob, p, max(0.0, 1.0 - sum(math.exp(x) for x in logprob))


@st.composite
def query(draw: st.DrawFn, number: int) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from("FGH"), max_size=3))
    template = draw(st.sampled_from(["\n\n", "\n\nIs it", "", "Is"])) + "".join(f" {{{n}}}" for n in names)
    template += draw(st.sampled_from(["?", " it?", "\nAnswer:", "\n\nAnswer:"])) + "{?}"
    options = draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=5, unique_by=lambda o: o.strip().casefold()))
    out: dict[str, Any] = {"id": f"q{number}", "template": template, "options": options, "case_insensitive": draw(st.booleans())}
    distinct = list(dict.fromkeys(names))
    if distinct and draw(st.booleans()):
        out |= {"combinations": "all", "values": {n: draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)) for n in distinct}}
    elif distinct:
        out["combinations"] = draw(st.lists(st.fixed_dictionaries({n: st.sampled_from(VALUES) for n in distinct}), min_size=1, max_size=4))
    if draw(st.booleans()):
        out["ends"] = True
    elif all(len(ENCODER.encode(o)) == 1 for o in options):
        out["residual"] = draw(st.booleans())
    return out


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[dict[str, Any]], QuestionSet]:
    asked = [draw(query(i)) for i in range(draw(st.integers(1, 6)))]
    try:
        return asked, compiled(*asked)
    except QuestionError:
        assume(False)
        raise


def combos(q: dict[str, Any]) -> list[dict[str, str]]:
    names = list(parse(q["template"]).names)
    if q.get("combinations") == "all":
        return [dict(zip(names, row)) for row in itertools.product(*(q["values"][n] for n in names))]
    return q.get("combinations") or [{}]


@settings(max_examples=150, deadline=None)
@given(questions())
def test_read_out_is_the_naive_evaluator(made: tuple[list[dict[str, Any]], QuestionSet]) -> None:
    asked, q = made
    read = read_out(q.plan, *engine(q.plan))
    option = prompt = 0
    for spec, compiled_query in zip(asked, q.queries):
        assert list(compiled_query.values) == [{n: c[n] for n in compiled_query.values[i]} for i, c in enumerate(combos(spec))]
        for values in combos(spec):
            logprob, p, residual = naive(spec, values)
            own = slice(option, option + len(logprob))
            np.testing.assert_allclose(read.p[own], p, rtol=1e-9)
            if spec.get("residual", True):
                np.testing.assert_allclose(read.logprob[own], logprob, rtol=1e-9)
                assert read.residual[prompt] == pytest.approx(residual, abs=1e-12)
            else:
                assert np.isnan(read.logprob[own]).all() and np.isnan(read.residual[prompt])
            option, prompt = own.stop, prompt + 1
    assert (option, prompt) == (q.plan.options, q.plan.prompts)


@settings(max_examples=60, deadline=None)
@given(questions())
def test_the_trie_holds_each_path_once_in_pre_order(made: tuple[list[dict[str, Any]], QuestionSet]) -> None:
    q, plan = made[1], made[1].plan
    assert plan_fault(plan) is None
    paths = [tuple(path(q, i)) for i in range(plan.nodes)]
    assert len(set(paths)) == plan.nodes
    wanted: dict[tuple[int, ...], None] = {}
    for spec in made[0]:
        for values in combos(spec):
            prompt = ENCODER.encode(parse(spec["template"]).fill(values))
            for i in range(len(prompt)):
                wanted[tuple(prompt[: i + 1])] = None
            for option in spec["options"]:
                for form in forms(option, spec["case_insensitive"]):
                    ids = ENCODER.encode(form)
                    if form == option or len(ids) == 1:
                        for i in range(len(ids) if spec.get("ends") else len(ids) - 1):
                            wanted[tuple(prompt + ids[: i + 1])] = None
    assert set(paths) == set(wanted)
    first = {p: i for i, p in enumerate(wanted)}
    for i in range(plan.nodes):
        inside = [j for j in range(plan.nodes) if paths[j][: len(paths[i])] == paths[i]]
        assert inside == list(range(i, int(plan.end[i])))
        siblings = [first[paths[j]] for j in range(plan.nodes) if plan.parent[j] == plan.parent[i]]
        assert siblings == sorted(siblings)
    assert q.tokens <= sum(s.tokens for s in q.queries)


@settings(max_examples=60, deadline=None)
@given(questions(), st.data())
def test_a_subset_reads_what_the_whole_reads(made: tuple[list[dict[str, Any]], QuestionSet], data: st.DataObject) -> None:
    plan = made[1].plan
    chosen = sorted(data.draw(st.sets(st.integers(0, plan.prompts - 1))))
    part = made[1].subset(chosen)
    assert plan_fault(part) is None
    assert part.prompts == len(chosen)
    whole, own = read_out(plan, *engine(plan)), read_out(part, *engine(part))
    option = np.isin(plan.option_prompt, chosen)
    assert np.array_equal(own.p, whole.p[option])  # the bits: a prompt is read the same way whatever else is asked
    assert np.array_equal(own.logprob, whole.logprob[option], equal_nan=True)
    assert np.array_equal(own.residual, whole.residual[chosen], equal_nan=True)
    leaves = np.flatnonzero(part.end == np.arange(part.nodes) + 1)
    assert np.isin(leaves, part.read_node).all()  # no node without a read below it
    assert len(np.unique(part.step_cand)) == len(part.cand_token)  # no candidate that nobody asked for
    if chosen == list(range(plan.prompts)):
        assert all(np.array_equal(getattr(part, f.name), getattr(plan, f.name)) for f in dataclasses.fields(Plan))


def test_a_sibling_with_a_normaliser_changes_no_bit_of_one_without() -> None:
    topics = [{"F": name} for name in VALUES[1:]]
    bare = {"id": "a", "template": "\n\nIs it {F}?{?}", "options": [" yes", " low", " oil"], "combinations": topics, "residual": False}
    alone, both = compiled(bare), compiled(bare, {**bare, "id": "b", "residual": True})
    p = read_out(alone.plan, *engine(alone.plan)).p
    assert np.array_equal(read_out(both.plan, *engine(both.plan)).p[: len(p)], p)


def test_a_subset_drops_what_only_others_needed() -> None:
    q = compiled(
        {"id": "a", "template": "\n\nIs it oil?{?}", "options": [" yes", " New York"]},
        {"id": "b", "template": "\n\nIs it gas?{?}", "options": [" no"]},
    )
    stem = len(ENCODER.encode("\n\nIs it oil?"))
    assert q.subset([1]).nodes == len(ENCODER.encode("\n\nIs it gas?"))
    assert q.subset([0]).nodes == stem + 1
    assert q.subset([]).nodes == 0 and q.subset([]).reads == 0
    assert q.plan.nodes == stem + 1 + 2  # " gas", "?"


@pytest.mark.parametrize("prompts", [[1, 0], [0, 0], [-1], [2], [0, 5]])
def test_a_subset_is_ascending_distinct_and_in_range(prompts: list[int]) -> None:
    plan = compiled({"id": "a", "template": "\n\n{F}?{?}", "options": [" yes"], "combinations": [{"F": "oil"}, {"F": "gas"}]}).plan
    with pytest.raises(ValueError, match="ascending"):
        subset(plan, prompts)


def test_a_read_at_the_trunk_itself_is_a_plan_too() -> None:
    """No question file makes one (an empty template is refused), but the arrays allow it: node -1."""
    trie = Builder()
    trie.prompt([], shape([[(7,), (8,)], [(9, 7)]], ends=False), True)
    trie.prompt([9], shape([[(7,)]], ends=True), True)
    plan = trie.plan()
    assert plan_fault(plan) is None
    assert plan.read_node.tolist() == [-1, 0, 1]
    read = read_out(plan, *engine(plan))
    top, below, ended = model([]), model([9]), model([9, 7])
    first = logsumexp([top[7], top[8]]) - logsumexp(top)
    assert read.logprob[:2] == pytest.approx([first, top[9] - logsumexp(top) + below[7] - logsumexp(below)])
    assert read.logprob[2] == pytest.approx(below[7] - logsumexp(below) + logsumexp(ended[~ALNUM]) - logsumexp(ended))
    part = subset(plan, [0])
    assert plan_fault(part) is None and part.read_node.tolist() == [-1, 0] and part.nodes == 1


def test_a_parent_on_another_branch_is_no_plan() -> None:
    trie = Builder()
    for path_ in ([5, 6], [7, 8]):
        trie.prompt(path_, shape([[(1,)]], ends=False), True)
    plan = trie.plan()
    assert plan.parent.tolist() == [-1, 0, -1, 2] and plan_fault(plan) is None
    crossed = dataclasses.replace(plan, parent=np.array([-1, 0, -1, 0], np.int32))
    assert plan_fault(crossed) == "end does not follow from parent"


def test_repeated_prompts_are_scored_once_and_reported_twice() -> None:
    twice = [{"F": "oil"}, {"F": "oil"}]
    q = compiled(
        {"id": "a", "template": "\n\n{F}?{?}", "options": [" yes", " no"], "combinations": twice},
        {"id": "b", "template": "\n\noil?{?}", "options": [" no"]},
    )
    assert q.plan.reads == 1 and q.plan.prompts == 3 and q.plan.options == 5
    read = read_out(q.plan, *engine(q.plan))
    assert read.p[:2].tolist() == read.p[2:4].tolist()
    assert read.logprob[1] == read.logprob[4]


def test_the_last_placeholder_varies_fastest() -> None:
    q = compiled({"id": "a", "template": "\n\n{G}{F}?{?}", "options": [" yes"], "combinations": "all", "values": {"F": ["1", "2"], "G": ["a", "b"]}})
    assert q.queries[0].values == tuple({"G": g, "F": f} for g, f in ["a1", "a2", "b1", "b2"])
    assert [list(v) for v in q.queries[0].values] == [["G", "F"]] * 4


def test_a_slot_set_has_an_empty_plan() -> None:
    plan = compiled({"id": "a", "template": "\n\nWho:{*}"}).plan
    assert (plan.nodes, plan.reads, plan.prompts) == (0, 0, 0) and plan_fault(plan) is None
    read = read_out(plan, *engine(plan))
    assert [len(x) for x in read] == [0, 0, 0] and len(starts(plan.option_prompt)) == 0
