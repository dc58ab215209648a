"""What an error of the device means (DECISIONS 17). torch's own kinds are not all of it: Triton raises plain RuntimeErrors."""

from __future__ import annotations

import torch

from spinf_stream.engine.seam import EngineFatal, EngineFault, NonFinite

FULL = ("out of memory", "ALLOC_FAILED")  # what CUDA, and cuBLAS when it makes its workspace, say


def said_by_device(e: RuntimeError) -> bool:
    if isinstance(e, (EngineFault, EngineFatal, NonFinite)):
        return False
    return isinstance(e, (torch.AcceleratorError, torch.OutOfMemoryError)) or "CUDA" in str(e)


def full(e: RuntimeError) -> bool:
    """Something smaller may still run."""
    return said_by_device(e) and (isinstance(e, torch.OutOfMemoryError) or any(word in str(e) for word in FULL))


def first_line(e: BaseException) -> str:
    return next(iter(str(e).splitlines()), type(e).__name__)
