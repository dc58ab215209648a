"""Device memory that passes share, and the pinned memory that feeds them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch


class Arena:
    """Named device buffers that only grow. One stream uses them in order, so passes need no copies of their own."""

    def __init__(self, device: torch.device, outgrown: Callable[[], None] = lambda: None) -> None:
        """outgrown: called before a buffer is freed for a larger one; drops what else holds its memory."""
        self.device, self.outgrown = device, outgrown
        self.of: dict[str, torch.Tensor] = {}
        self.moved = 0  # buffers that were made or made anew: addresses taken before are void

    def get(self, name: str, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, width], not cleared."""
        need = rows * width * dtype.itemsize
        have = self.of.get(name)
        if have is None or have.numel() < need:
            if have is not None:
                self.outgrown()
                del have, self.of[name]  # freed before the larger one is asked for
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()  # no later buffer fits where a smaller one was: 6 GiB would stay reserved
            self.of[name] = torch.empty(need, dtype=torch.uint8, device=self.device)
            self.moved += 1
        return self.of[name][:need].view(dtype).view(rows, width)

    def clear(self) -> None:
        self.outgrown()
        self.of.clear()


class Uploads:
    """One pass's index arrays: laid into one pinned block, sent in one copy. A block is refilled only when its pass is over."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self.host = torch.empty(0, dtype=torch.uint8)
        self.there = torch.empty(0, dtype=torch.uint8)

    def send(self, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        at, spans = 0, {}
        for name, a in arrays.items():
            spans[name] = at
            at += -(-a.nbytes // 64) * 64
        if self.host.numel() < at:
            size = 1 << max(16, (at - 1).bit_length())
            self.host = torch.empty(size, dtype=torch.uint8, pin_memory=self.cuda)
            self.there = torch.empty(size, dtype=torch.uint8, device=self.device)
        view = self.host.numpy()
        for name, a in arrays.items():
            view[spans[name] : spans[name] + a.nbytes] = np.ascontiguousarray(a).view(np.uint8).reshape(-1)
        self.there[:at].copy_(self.host[:at], non_blocking=True)
        return {name: self._typed(spans[name], a) for name, a in arrays.items()}

    def fetch(self, value: torch.Tensor) -> torch.Tensor:
        """Start a copy of `value` to pinned memory; read it after the pass's event. Its own memory: many passes may be
        launched before the first is read."""
        out = torch.empty(value.shape, dtype=value.dtype, pin_memory=self.cuda)
        out.copy_(value, non_blocking=True)
        return out

    def _typed(self, at: int, a: np.ndarray) -> torch.Tensor:
        dtype = {"int32": torch.int32, "int64": torch.int64}[a.dtype.name]
        return self.there[at : at + a.nbytes].view(dtype).view(a.shape)
