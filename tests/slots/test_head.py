"""The head of a decode step on the naive kernels reads what the plain one reads, whatever the sizes and whoever is beside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spinf_stream.engine.gpu.head import GpuHead
from spinf_stream.engine.gpu.ops import naive_ops
from spinf_stream.engine.grow import Step
from spinf_stream.slots.automaton import Automaton
from spinf_stream.slots.head import SlotHead

NONE = np.zeros(0, np.int32)
WIDTH = 16


def automaton(rng, vocab, tokens, states, lay=np.ascontiguousarray):
    token = np.sort(rng.choice(vocab, tokens, replace=False)).astype(np.int32)
    step = np.where(rng.random((states, tokens)) < rng.choice([0.0, 0.1, 1.0]), 0, -1).astype(np.int16)
    first, second = (lay(rng.random(step.shape) < p) for p in (0.3, 0.1))
    return Automaton(token, lay(step), (step >= 0).any(1), np.ones(states, bool), tokens < vocab, first, second, np.zeros(states, np.int32))


def read(head, hidden, automata, which, state, ptr, pick, top):
    return head.read(hidden, Step((), NONE, NONE, NONE, NONE, NONE, np.arange(len(hidden)), automata, which, state, ptr, pick, top))


@pytest.mark.parametrize("vocab", [3, 255, 256, 257, 1000])
def test_it_equals_the_plain_head_and_a_row_of_nan_stays_alone(vocab):
    rng = np.random.default_rng(vocab)
    embed = torch.from_numpy(rng.integers(-9, 9, (vocab, WIDTH)) / 8).float()  # sums that are exact: equals are equal in both
    for rows, top in ((1, 0), (1, 6), (129, 6), (200, 40)):
        automata = tuple(automaton(rng, vocab, tokens, int(rng.integers(1, 4))) for tokens in (1, min(vocab - 1, 70), vocab, vocab))
        head = GpuHead(naive_ops(), embed, 0.0, torch.zeros(vocab, dtype=torch.uint8))
        hidden = torch.from_numpy(rng.integers(-9, 9, (rows, WIDTH)) / 4).float()
        which = rng.integers(0, 4, rows).astype(np.int32)
        state = np.array([rng.integers(0, len(automata[a].open)) for a in which], np.int32)
        count = rng.integers(0, 3, rows) * (rows > 1)
        ptr = np.array([0, *count.cumsum()], np.int64)
        step = (automata, which, state, ptr, rng.integers(0, vocab, ptr[-1]).astype(np.int32), top)
        got, want = read(head, hidden, *step), read(SlotHead(embed, None), hidden, *step)
        np.testing.assert_array_equal(got.token, want.token)
        for name in ("logprob", "first", "second", "pick"):
            np.testing.assert_allclose(getattr(got, name), getattr(want, name), atol=1e-5, rtol=1e-5)
        bad = int(rng.integers(0, rows))
        hidden[bad] = torch.nan
        beside, others, picks = read(head, hidden, *step), np.arange(rows) != bad, np.repeat(np.arange(rows), count) != bad
        assert all(np.array_equal(a[others], b[others]) for a, b in zip(got[:4], beside[:4]))
        assert np.array_equal(got.pick[picks], beside.pick[picks]) and np.isnan(beside.pick[~picks]).all() and np.isnan(beside.first[bad])


def test_a_table_lies_as_the_kernels_read_it():
    """A kernel knows no strides: the states of a table that lies column by column would be mixed, and nothing would say so."""
    rng = np.random.default_rng(0)
    head = GpuHead(naive_ops(), torch.zeros(50, WIDTH), 0.0, torch.zeros(50, dtype=torch.uint8))
    for tokens in (20, 50):
        across = automaton(rng, 50, tokens, 3, np.asfortranarray)
        table = head._table(across)
        assert table.bits.is_contiguous() and table.token.is_contiguous()
        np.testing.assert_array_equal(table.bits.numpy(), across.first + 2 * across.second + 4 * (across.step >= 0))
