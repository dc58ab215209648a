"""Rows by index: the last layer computes only what is read."""

from __future__ import annotations

import torch


def gather_rows(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """out[i] = src[index[i]]; src [n, w], index [r], out [r, w], one dtype."""
    out.copy_(src.view(torch.uint8)[index.long()].view(src.dtype) if src.element_size() == 1 else src[index.long()])
