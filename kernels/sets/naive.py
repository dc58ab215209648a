"""Sums over an automaton's sets of tokens, and what extends: what a decode step reads of a row beside its norms."""

from __future__ import annotations

import torch

FIRST, SECOND, EXTENDS = 1, 2, 4  # bits of a table
RUN = 256  # tokens whose largest logit is told


def sets(
    z: torch.Tensor, table: torch.Tensor, state: torch.Tensor, norms: torch.Tensor, sums: torch.Tensor, best: torch.Tensor
) -> None:
    """sums [n, 2] float64 = the probability of the tokens marked FIRST, of those marked SECOND, in the row's state.

    z [n, K] float32 logits: -inf afterwards where a token does not extend. table [S, K] uint8. state [n] int32. norms [n, 3]
    float64 as head.norms has them. best [n, ceil(K / RUN)] float32: the largest logit left in each run of tokens.
    """
    bits = table[state.long()]
    p = torch.exp(z.double() - norms[:, :1]) / norms[:, 1:2]
    for i, bit in enumerate((FIRST, SECOND)):
        sums[:, i] = (p * ((bits & bit) != 0)).sum(1)
    z.masked_fill_((bits & EXTENDS) == 0, -torch.inf)
    room = best.shape[1] * RUN - z.shape[1]
    best.copy_(torch.nn.functional.pad(z, (0, room), value=-torch.inf).unflatten(1, (-1, RUN)).amax(-1))


def few(
    z: torch.Tensor, token: torch.Tensor, table: torch.Tensor, state: torch.Tensor, norms: torch.Tensor, sums: torch.Tensor,
    best: torch.Tensor, logprob: torch.Tensor,
) -> None:  # fmt: skip
    """sums as above, over tokens [K]; best [n, top] int32 = the likeliest that extend, in order, of equals the first; logprob
    [n, top] float64 of those. Where there are fewer: -1, -inf. z is left as it is."""
    left = z.clone()
    sets(left, table, state, norms, sums, z.new_empty(len(z), -(-z.shape[1] // RUN)))
    order = torch.argsort(left, dim=1, descending=True, stable=True)[:, : best.shape[1]]
    value = left.gather(1, order)
    best.fill_(-1)
    logprob.fill_(-torch.inf)
    k = order.shape[1]
    best[:, :k] = token[order].masked_fill(value == -torch.inf, -1)
    logprob[:, :k] = value.double() - (norms[:, :1] + norms[:, 1:2].log())
