"""Random models of real shapes, made on the device: for speed and for bits, never for quality. Never zeros, which run faster."""

from __future__ import annotations

import math

import torch

from spinf_stream.engine.stack import LayerSpec, LayerWeights, Stack, StackSpec

FP8 = torch.float8_e4m3fn


def gemma4_12b(layers: int = 48, vocab: int = 262_144, every: int = 6) -> StackSpec:
    """The text stack of Gemma-4-12B; `layers` < 48 cuts it. Every 6th layer is global, and the last always is."""
    sliding = LayerSpec(16, 8, 256, 1024, 1.0, 0, v_norm=True)
    whole = LayerSpec(16, 1, 512, None, 1.0, 1, k_eq_v=True, v_norm=True)
    ropes = (
        tuple(10_000.0 ** (-2 * i / 256) for i in range(128)),
        tuple(1_000_000.0 ** (-2 * i / 512) if i < 64 else 0.0 for i in range(256)),
    )
    kinds = tuple(whole if i % every == every - 1 or i == layers - 1 else sliding for i in range(layers))
    return StackSpec("gemma4", 3840, 15_360, vocab, 1e-6, 62.0, 30.0, kinds, ropes, (2,), (1,))


def gemma3_270m(layers: int = 18, vocab: int = 262_144) -> StackSpec:
    """The demo model's shape."""
    ropes = tuple(tuple(theta ** (-2 * i / 256) for i in range(128)) for theta in (10_000.0, 1_000_000.0))
    kinds = tuple(LayerSpec(4, 1, 256, None if i % 6 == 5 else 512, 256**-0.5, int(i % 6 == 5)) for i in range(layers))
    return StackSpec("gemma3", 640, 2048, vocab, 1e-6, 25.25, None, kinds, ropes, (2,), (1,))


def random_stack(spec: StackSpec, device: torch.device | str, scheme: str = "fp8-static", seed: int = 0) -> Stack:
    """scheme fp8-static or bf16. Norm weights near one; sharp attention is kept soft so that errors stay comparable:
    q and k norm weights are small enough for scores of a few units."""
    gen = torch.Generator(device=device).manual_seed(seed)
    fp8 = scheme == "fp8-static"

    def linear(rows: int, columns: int) -> torch.Tensor:
        out = torch.empty(rows, columns, dtype=FP8 if fp8 else torch.bfloat16, device=device)
        for at in range(0, rows, 4096):
            w = torch.randn(min(4096, rows - at), columns, generator=gen, device=device)
            out[at : at + len(w)] = (w * 60).clamp(-448, 448).to(FP8) if fp8 else w * columns**-0.5
        return out

    def norm(size: int, around: float = 1.0) -> torch.Tensor:
        w = around * (1 + 0.1 * torch.randn(size, generator=gen, device=device))
        return w.bfloat16().float()  # as checkpoints hold them

    h, inner = spec.hidden, spec.intermediate
    layers = []
    for s in spec.layers:
        soft = 1.5 * s.head_dim**-0.25  # q . k of normed vectors is about sqrt(d): scores with a spread of about 2
        w = LayerWeights(
            linear(s.qkv_rows, h), linear(h, s.heads * s.head_dim), linear(2 * inner, h), linear(h, inner),
            norm(h), norm(h, 0.3), norm(h), norm(h, 0.3), norm(s.head_dim, soft), norm(s.head_dim, soft),
        )  # fmt: skip
        if fp8:
            sizes = {"qkv": h, "o": s.heads * s.head_dim, "gate_up": h, "down": inner}
            w.weight_scale = {n: torch.tensor([k**-0.5 / 60], device=device) for n, k in sizes.items()}
            w.input_scale = {"qkv": 0.0625, "o": 0.03125, "gate_up": 0.0625, "down": 0.0625}
        layers.append(w)
    embed = torch.empty(spec.vocab, h, dtype=torch.bfloat16, device=device)
    for at in range(0, spec.vocab, 16_384):
        part = embed[at : at + 16_384]
        part.copy_(torch.randn(part.shape, generator=gen, device=device) / math.sqrt(h))
    return Stack(spec, embed, norm(h, 4.0), layers, "random", f"random-{len(spec.layers)}", scheme)
