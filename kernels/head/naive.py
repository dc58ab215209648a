"""The head without its logits: candidates' logits, and a streaming log-sum-exp over the vocabulary.

    logit = cap * tanh(h . embed[token] / cap)         (cap 0 = none)
"""

from __future__ import annotations

import torch


def logits(h: torch.Tensor, embed: torch.Tensor, cap: float) -> torch.Tensor:
    """[n, hidden] x [tokens, hidden] -> float32 [n, tokens], soft-capped."""
    z = (h.double() @ embed.double().T).float()  # a float32 product's bits on a CPU depend on how many rows there are
    return cap * torch.tanh(z / cap) if cap else z


def candidates(h: torch.Tensor, embed: torch.Tensor, token: torch.Tensor, cap: float, out: torch.Tensor) -> None:
    """out [n, u] = the logits of tokens [u], the same bits as the columns of the full head."""
    out.copy_(logits(h, embed[token.long()], cap))


def norms(
    h: torch.Tensor, embed: torch.Tensor, ends: torch.Tensor, cap: float, parts: torch.Tensor, out: torch.Tensor
) -> None:
    """out [n, 3] float64 = (max, sum of exp(logit - max), the same sum over the tokens with ends = 1). ends uint8 [vocab].

    parts: float32 scratch [3, n, blocks of the vocabulary] for the kernel; naive needs none.
    """
    z = logits(h, embed, cap)
    top = z.amax(1)
    e = torch.exp(z.double() - top.double()[:, None])
    out.copy_(torch.stack([top.double(), e.sum(1), (e * ends.bool()).sum(1)], dim=1))
