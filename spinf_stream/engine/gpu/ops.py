"""The kernels of a device, one set of names: Triton's on a GPU, the naive ones anywhere (tests, and the truth)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Ops(NamedTuple):
    embed_norm: Callable[..., None]
    residual_norm: Callable[..., None]
    queries: Callable[..., None]
    keys_values: Callable[..., None]
    attention: Callable[..., None]  # naive's signature
    geglu: Callable[..., None]
    gated: Callable[..., None] | None  # product and geglu in one, on interleaved weights; None where there is none
    gather_rows: Callable[..., None]
    move_rows: Callable[..., None]
    candidates: Callable[..., None]
    norms: Callable[..., None]
    sets: Callable[..., None]
    few: Callable[..., None]
    head_blocks: Callable[[int], int]  # vocabulary -> blocks of the scratch of norms
    tile: Callable[[int, int], tuple[int, int]]  # head_dim, group -> query rows of a tile, keys of a block
    table: dict[str, Any]  # what of the kernels goes into the fingerprint
    forget_keys: Callable[[], None] = lambda: None  # drop what is remembered of attention's buffers: it holds their memory
    decode_attention: Callable[..., None] | None = None  # in place of attention in decode steps


def naive_ops(tile: tuple[int, int] = (64, 32), fused: bool = False) -> Ops:
    from spinf_stream.kernels.attention import naive as attention
    from spinf_stream.kernels.gated import naive as gated
    from spinf_stream.kernels.gather import naive as gather
    from spinf_stream.kernels.geglu import naive as geglu
    from spinf_stream.kernels.head import naive as head
    from spinf_stream.kernels.norm import naive as norm
    from spinf_stream.kernels.rotary import naive as rotary
    from spinf_stream.kernels.sets import naive as sets

    return Ops(
        norm.embed_norm, norm.residual_norm, rotary.queries, rotary.keys_values, attention.forest_attention, geglu.geglu,
        gated.gated if fused else None, gather.gather_rows, gather.move_rows, head.candidates, head.norms, sets.sets, sets.few, lambda vocab: 1,
        lambda head_dim, group: tile, {"kernels": "naive/1"},
    )  # fmt: skip


def triton_ops(device: torch.device, hidden: int, width: int) -> Ops:
    """Static tables by architecture; nothing is tuned at run time. hidden and width: the MLP's sizes."""
    import triton

    from spinf_stream.kernels.attention import triton as attention
    from spinf_stream.kernels.gated import triton as gated
    from spinf_stream.kernels.gather import triton as gather
    from spinf_stream.kernels.geglu import triton as geglu
    from spinf_stream.kernels.head import triton as head
    from spinf_stream.kernels.norm import triton as norm
    from spinf_stream.kernels.rotary import triton as rotary
    from spinf_stream.kernels.sets import triton as sets

    major, minor = torch.cuda.get_device_capability(device)
    arch = 10 * major + minor
    keys: dict[tuple[int, int, int], Any] = {}  # buffer, its width, head_dim -> what the kernel reads keys through

    def attend(
        q: torch.Tensor, kv: torch.Tensor, tiles: torch.Tensor, rows: torch.Tensor, head_dim: int, kv_heads: int,
        inv_scale: float, out: torch.Tensor, tile_of: Callable[[int, int], Any] = attention.tile_for,
    ) -> None:  # fmt: skip
        tile = tile_of(head_dim, arch)
        key = (kv.data_ptr(), kv.shape[1], head_dim)
        found = keys.get(key)
        if found is None or found[0] != kv.shape[0]:
            found = keys[key] = (kv.shape[0], attention.keys_of(kv, head_dim, tile))
        attention.forest_attention(q, kv, tiles, rows, head_dim, kv_heads, inv_scale, out, tile, found[1])

    weights: dict[int, Any] = {}  # of a weight that stays: its descriptor

    def gate(x: torch.Tensor, scale: torch.Tensor | None, pairs: torch.Tensor, factors: tuple[float, float], out: torch.Tensor, inv_scale: float) -> None:
        at = pairs.data_ptr()
        if at not in weights:
            weights[at] = gated.tiles_of(pairs, gated.BN)
        gated.gated(x, scale, pairs, factors, out, inv_scale, weights[at])

    fused = gated.fits(device, hidden, width)

    def tile(head_dim: int, group: int) -> tuple[int, int]:
        t = attention.tile_for(head_dim, arch)
        return attention.tokens_of(t, group), t.keys

    table = {
        "kernels": "triton/1",
        "triton": triton.__version__,
        "arch": arch,
        "attention": {d: attention.tile_for(d, arch)._asdict() for d in (256, 512)},
        "decode attention": {d: attention.decode_tile_for(d, arch)._asdict() for d in (256, 512)},
        "gated": [gated.BM, gated.BN, gated.BK, gated.GROUP, gated.WARPS, gated.STAGES] if fused else None,
        "head": [head.BM, head.BN, head.BK, head.WARPS, head.stages(device)],
    }
    return Ops(
        norm.embed_norm, norm.residual_norm, rotary.queries, rotary.keys_values, attend, geglu.geglu, gate if fused else None,
        gather.gather_rows, gather.move_rows, head.candidates, head.norms, sets.sets, sets.few, head.blocks_of, tile, table, keys.clear,
        functools.partial(attend, tile_of=attention.decode_tile_for),
    )  # fmt: skip
