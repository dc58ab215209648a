"""y = x W^T: the matrix product of the bf16 path."""

from __future__ import annotations

import torch


def product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """x [n, k], weight [m, k], out [n, m], one dtype."""
    torch.mm(x, weight.t(), out=out)
