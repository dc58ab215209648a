"""Numbers for kernels' tests, and memory that shows what was not written."""

from __future__ import annotations

import torch

GEN = torch.Generator().manual_seed(5)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GEN)


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, float("nan")).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=tolerance)
