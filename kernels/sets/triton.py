"""sets/naive.py as a kernel, one program a row: the order of a row's sum depends on the number of tokens alone, not on how
many rows there are nor on where in memory the row lies (torch's sums depend on both)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch
from spinf_stream.kernels.sets.naive import EXTENDS, FIRST, RUN, SECOND

BLOCK, WARPS = 4096, 8  # tokens at a time, at most


@triton.jit(do_not_specialize=["k", "runs"])
def sets_kernel(
    z_ptr, table_ptr, state_ptr, norms_ptr, sums_ptr, best_ptr, k, runs,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, ONE: tl.constexpr, TWO: tl.constexpr, ON: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(state_ptr + row).to(tl.int64)
    top = tl.load(norms_ptr + row * 3).to(tl.float32)  # it was one
    total = tl.load(norms_ptr + row * 3 + 1)
    run = tl.arange(0, ROWS)
    at = run[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    first = tl.zeros([ROWS, WIDTH], tl.float64)
    second = tl.zeros([ROWS, WIDTH], tl.float64)
    for lo in range(0, k, ROWS * WIDTH):
        there = lo + at < k
        z = tl.load(z_ptr + row * k + lo + at, mask=there, other=float("-inf"))
        bits = tl.load(table_ptr + state * k + lo + at, mask=there, other=0)
        p = tl.math.exp2((z - top) * 1.4426950408889634)
        first += tl.where((bits & ONE) != 0, p, 0.0).to(tl.float64)
        second += tl.where((bits & TWO) != 0, p, 0.0).to(tl.float64)
        z = tl.where((bits & ON) != 0, z, float("-inf"))
        tl.store(z_ptr + row * k + lo + at, z, mask=there)
        tl.store(best_ptr + row * runs + lo // WIDTH + run, tl.max(z, 1), mask=lo // WIDTH + run < runs)
    tl.store(sums_ptr + row * 2, tl.sum(tl.sum(first, 1), 0) / total)
    tl.store(sums_ptr + row * 2 + 1, tl.sum(tl.sum(second, 1), 0) / total)


def sets(
    z: torch.Tensor, table: torch.Tensor, state: torch.Tensor, norms: torch.Tensor, sums: torch.Tensor, best: torch.Tensor
) -> None:
    n, k = z.shape
    rows = max(1, min(BLOCK, triton.next_power_of_2(k)) // RUN)
    constants = {"ROWS": rows, "WIDTH": RUN, "ONE": FIRST, "TWO": SECOND, "ON": EXTENDS}
    args = (z, table, state, norms, sums, best, k, best.shape[1])
    launch(sets_kernel, (n,), args, constants, WARPS if rows > 4 else 4)


@triton.jit(do_not_specialize=["k", "count"])
def few_kernel(
    z_ptr, token_ptr, table_ptr, state_ptr, norms_ptr, sums_ptr, best_ptr, logprob_ptr, k, count,
    WIDTH: tl.constexpr, ONE: tl.constexpr, TWO: tl.constexpr, ON: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(state_ptr + row).to(tl.int64)
    top = tl.load(norms_ptr + row * 3)
    total = tl.load(norms_ptr + row * 3 + 1)
    at = tl.arange(0, WIDTH)
    z = tl.load(z_ptr + row * k + at, mask=at < k, other=float("-inf"))
    bits = tl.load(table_ptr + state * k + at, mask=at < k, other=0)
    p = tl.math.exp2((z - top.to(tl.float32)) * 1.4426950408889634)
    tl.store(sums_ptr + row * 2, tl.sum(tl.where((bits & ONE) != 0, p, 0.0).to(tl.float64), 0) / total)
    tl.store(sums_ptr + row * 2 + 1, tl.sum(tl.where((bits & TWO) != 0, p, 0.0).to(tl.float64), 0) / total)
    z = tl.where((bits & ON) != 0, z, float("-inf"))
    whole = top + tl.log(total)
    for i in range(0, count):
        value = tl.max(z, 0)
        place = tl.min(tl.where(z == value, at, WIDTH - 1), 0)  # of equals the first
        there = value > float("-inf")
        token = tl.load(token_ptr + tl.minimum(place, k - 1))
        tl.store(best_ptr + row * count + i, tl.where(there, token, -1))
        tl.store(logprob_ptr + row * count + i, value.to(tl.float64) - whole)
        z = tl.where(at == place, float("-inf"), z)


def few(
    z: torch.Tensor, token: torch.Tensor, table: torch.Tensor, state: torch.Tensor, norms: torch.Tensor, sums: torch.Tensor,
    best: torch.Tensor, logprob: torch.Tensor,
) -> None:  # fmt: skip
    n, k = z.shape
    width = max(RUN, triton.next_power_of_2(k))
    constants = {"WIDTH": width, "ONE": FIRST, "TWO": SECOND, "ON": EXTENDS}
    args = (z, token, table, state, norms, sums, best, logprob, k, best.shape[1])
    launch(few_kernel, (n,), args, constants, 4 if width <= 1024 else WARPS)
