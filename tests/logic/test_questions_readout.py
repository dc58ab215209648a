"""From candidate log-probabilities to options: the corners of the arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spinf_stream.questions.plan import Plan
from spinf_stream.questions.readout import Read, read_out, starts
from spinf_stream.questions.trie import Builder, shape


def plan(*prompts: tuple[list[list[tuple[int, ...]]], bool, bool]) -> Plan:
    """Each prompt is one token with its options' variants, `ends` and `residual`."""
    trie = Builder()
    for i, (options, ends, residual) in enumerate(prompts):
        trie.prompt([100 + i], shape(options, ends), residual)
    return trie.plan()


def single(n: int, residual: bool = True) -> Plan:
    return plan(([[(i,)] for i in range(n)], False, residual))


def read(p: Plan, cand: list[float], end: list[float] | None = None) -> Read:
    return read_out(p, np.array(cand), np.zeros(p.reads) if end is None else np.array(end))


def test_softmax_and_residual() -> None:
    got = read(single(2), [math.log(0.3), math.log(0.1)])
    assert got.p == pytest.approx([0.75, 0.25])
    assert got.logprob == pytest.approx([math.log(0.3), math.log(0.1)])
    assert got.residual == pytest.approx([0.6])


def test_one_option_has_all_of_p_and_its_own_logprob() -> None:
    got = read(single(1), [-700.0])
    assert got.p.tolist() == [1.0] and got.logprob.tolist() == [-700.0] and got.residual.tolist() == [1.0]


@pytest.mark.parametrize("shift", [-5000.0, -800.0, 0.0])
def test_tiny_probabilities_keep_their_proportions(shift: float) -> None:
    got = read(single(3), [shift, shift - 1, shift - 2])
    weights = [1, math.exp(-1), math.exp(-2)]
    assert got.p == pytest.approx([w / sum(weights) for w in weights])
    assert np.isfinite(got.logprob).all()


def test_residual_is_never_negative() -> None:
    """Options that contain each other, and rounding: the sum may pass 1."""
    assert read(single(2), [math.log(0.8), math.log(0.7)]).residual.tolist() == [0.0]
    assert read(single(2), [math.log(0.5) + 1e-16, math.log(0.5) + 1e-16]).residual.tolist() == [0.0]
    assert read(single(1), [1e-12]).residual.tolist() == [0.0]


def test_candidates_alone_give_p_from_raw_logits_and_nulls() -> None:
    got = read(single(2, residual=False), [700.0, 699.0])
    assert got.p == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)])
    assert np.isnan(got.logprob).all() and np.isnan(got.residual).all()


def test_null_is_of_its_prompt_alone() -> None:
    p = plan(([[(1,)], [(2,)]], False, False), ([[(1,)], [(2,)]], False, True))
    got = read(p, [3.0, 3.0, math.log(0.5), math.log(0.25)])
    assert np.isnan(got.logprob).tolist() == [True, True, False, False]
    assert np.isnan(got.residual).tolist() == [True, False]
    assert got.p == pytest.approx([0.5, 0.5, 2 / 3, 1 / 3]) and got.residual[1] == pytest.approx(0.25)


def test_variants_add_up_and_steps_multiply() -> None:
    p = plan(([[(1,), (2,)], [(3, 4, 5)]], False, True))
    assert (p.reads, len(p.cand_token)) == (3, 5)
    got = read(p, [math.log(x) for x in (0.2, 0.1, 0.4, 0.5, 0.25)])  # 1 2 3 | 4 | 5
    assert np.exp(got.logprob) == pytest.approx([0.3, 0.4 * 0.5 * 0.25])
    assert got.p == pytest.approx([0.3 / 0.35, 0.05 / 0.35]) and got.residual == pytest.approx([0.65])


def test_the_end_multiplies_its_own_variant() -> None:
    p = plan(([[(1,)], [(1, 2)]], True, True))
    assert p.read_node.tolist() == [0, 1, 2] and p.read_end.tolist() == [False, True, True]
    got = read(p, [math.log(0.5), math.log(0.4)], [123.0, math.log(0.3), math.log(0.9)])
    assert np.exp(got.logprob) == pytest.approx([0.5 * 0.3, 0.5 * 0.4 * 0.9])
    assert got.residual == pytest.approx([1 - 0.15 - 0.18])


@given(st.lists(st.lists(st.floats(-60, 0), min_size=1, max_size=6), min_size=1, max_size=5))
def test_prompts_do_not_touch_each_other(rows: list[list[float]]) -> None:
    """A prompt's numbers are the same bits alone and among others."""
    p = plan(*(([[(i,)] for i in range(len(row))], False, True) for row in rows))
    together = read(p, [x for row in rows for x in row])
    at = 0
    for i, row in enumerate(rows):
        alone = read(single(len(row)), row)
        assert together.p[at : at + len(row)].tobytes() == alone.p.tobytes()
        assert together.logprob[at : at + len(row)].tobytes() == alone.logprob.tobytes()
        assert together.residual[i] == alone.residual[0]
        assert alone.p.sum() == pytest.approx(1.0)
        at += len(row)


def test_starts() -> None:
    assert starts(np.array([0, 0, 1, 2, 2, 2], np.int32)).tolist() == [0, 2, 3]
    assert starts(np.array([], np.int32)).tolist() == []
