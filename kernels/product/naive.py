"""y = x W^T: the matrix product of the bf16 path, and of fp8 where cuBLASLt's bits depend on the number of rows."""

from __future__ import annotations

import torch


def product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, factor: float = 1.0) -> None:
    """out = factor * x W^T. x [n, k] and weight [m, k] of one dtype, out [n, m] of theirs, or bf16 where they are fp8."""
    out.copy_((x.float() @ weight.float().t()) * factor)
