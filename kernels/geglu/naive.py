"""gelu_tanh(gate) * up, quantised."""

from __future__ import annotations

import torch

from spinf_stream.kernels.quantise.naive import NONE, STATIC, write


def geglu(
    gate_up: torch.Tensor, scale: torch.Tensor | None, factors: tuple[float, float], out: torch.Tensor, inv_scale: float | None
) -> None:
    """gate_up [n, 2 I] (gate, then up) as the matrix product left it; out [n, I].

    What the product left out is multiplied here, in float32: factors (of gate, of up: weight scales), and scale [n]
    where the input rows were quantised by row. inv_scale is the reciprocal of the static scale of the down
    projection's input; None stores as it is.
    """
    v = gate_up.float() if scale is None else gate_up.float() * scale[:, None]
    gate, up = v.chunk(2, dim=-1)
    v = torch.nn.functional.gelu(gate * factors[0], approximate="tanh") * (up * factors[1])
    write(v, out, v, NONE if inv_scale is None else STATIC, 1.0 if inv_scale is None else inv_scale)
