"""Rows by index: the last layer computes only what is read; trunks that are kept move out of a pass's slots."""

from __future__ import annotations

import torch


def gather_rows(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """out[i] = src[index[i]]; src [n, w], index [r], out [r, w], one dtype."""
    out.copy_(src.view(torch.uint8)[index.long()].view(src.dtype) if src.element_size() == 1 else src[index.long()])


def move_rows(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor, to: torch.Tensor) -> None:
    """out[to[i]] = src[index[i]]; src [n, w], out [m, w], index and to [r], no row twice in `to`."""
    out[to.long()] = src[index.long()]
