"""Launching a kernel in a few microseconds: what Triton looks up on every call is looked up once.

Triton's own call binds arguments by name, specialises each and hashes the lot: 20 to 50 microseconds, more than a small
kernel takes. Here a kernel's binary is found by its constants, types and device alone, which is enough because nothing
else is ever specialised: integers are declared do_not_specialize, and every pointer is 16-byte aligned (checked).
Under the interpreter, and with a profiler's hooks set, Triton's own way is taken.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton import knobs

_found: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], warps: int, stages: int = 3) -> None:
    """kernel[grid](*args, **constants). args: all run-time arguments in order; constants: all constexpr ones, in order.

    Raises ValueError for a tensor that is not 16-byte aligned.
    """
    if not isinstance(kernel, triton.JITFunction) or knobs.runtime.launch_enter_hook.calls:
        kernel[grid](*args, **constants, num_warps=warps, num_stages=stages)
        return
    device = torch.cuda.current_device()
    values = tuple(constants.values())
    # hashing a kernel hashes its source, so its id stands for it; kernels live as long as their modules
    key = (id(kernel), values, warps, stages, device, *[a.dtype if a.__class__ is torch.Tensor else a.__class__ for a in args])
    # addresses in place of tensors: the launcher asks the driver about a tensor, not about a number
    flat = [a.data_ptr() if a.__class__ is torch.Tensor else a for a in args]
    for a, address in zip(args, flat):
        if a.__class__ is torch.Tensor and address & 15:
            raise ValueError(f"{kernel.__name__}: a tensor at {address & 15} bytes past 16-byte alignment")
    binary = _found.get(key)
    if binary is None:
        _found[key] = kernel[grid](*args, **constants, num_warps=warps, num_stages=stages)
        return
    x, y, z = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device)
    binary.run(x, y, z, stream, binary.function, binary.packed_metadata, None, None, None, *flat, *values)
