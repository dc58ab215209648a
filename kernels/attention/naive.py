"""Forest attention, in the plainest torch: every query row sees two runs of key slots, its trunk's and its own path's.

    rows[i] = (a, b, c, d): row i sees slots a .. b-1 (trunk, causal and inside the window) and c .. d-1 (its own path)

Tiles are how the kernel cuts the work; the truth does not depend on them, and naive ignores them. The rules that make
a row's bits independent of its neighbours are in engine/gpu/tables.py, which builds rows and tiles.
"""

from __future__ import annotations

import torch

from spinf_stream.kernels.quantise.naive import saturated


def forest_attention(
    q: torch.Tensor, kv: torch.Tensor, tiles: torch.Tensor, rows: torch.Tensor, head_dim: int, kv_heads: int,
    inv_scale: float, out: torch.Tensor,
) -> None:  # fmt: skip
    """out = softmax2(q k^T) v, times inv_scale.

    q [n, heads * d], already times scale * log2(e); kv [slots, 2 * kv_heads * d], keys then values; rows [n, 4];
    out [n, heads * d], e4m3 (saturated) or the compute dtype.
    """
    group = q.shape[1] // head_dim // kv_heads
    keys, values = kv.float().unflatten(1, (2, kv_heads, head_dim)).unbind(1)
    for i, (a, b, c, d) in enumerate(rows.tolist()):
        k = torch.cat([keys[a:b], keys[c:d]])  # [m, kv_heads, d]
        v = torch.cat([values[a:b], values[c:d]])
        heads = q[i].float().view(kv_heads, group, head_dim)
        p = torch.softmax(torch.einsum("kgd,mkd->kgm", heads, k) / 1.4426950408889634, dim=-1)
        o = torch.einsum("kgm,mkd->kgd", p, v).flatten() * inv_scale
        out[i] = (saturated(o) if out.element_size() == 1 else o).to(out.dtype)
