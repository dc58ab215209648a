"""Every kernel at the shapes that ship, compiled for a card that is not there; prints one JSON line a kernel.

Run as a program by test_compiled.py: without TRITON_INTERPRET, which turns kernels into something that cannot be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spinf_stream.kernels.attention import triton as attention
from spinf_stream.kernels.gated import triton as gated
from spinf_stream.kernels.gather import triton as gather
from spinf_stream.kernels.geglu import triton as geglu
from spinf_stream.kernels.head import triton as head
from spinf_stream.kernels.norm import triton as norm
from spinf_stream.kernels.product import triton as multiply
from spinf_stream.kernels.rotary import triton as rotary
from spinf_stream.kernels.sets import triton as sets

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
OPCODES = ("HGMMA", "QGMMA", "HMMA", "UTMALDG", "LDGSTS", "LDL", "STL")


class Entry(NamedTuple):
    name: str
    kernel: Any
    types: dict[str, str]  # of the arguments that are not constexpr
    constants: dict[str, Any]
    warps: int
    stages: int = 3


def entries(arch: int) -> Iterator[Entry]:
    """The 12B's shapes and the demo model's."""
    for mode, out in ((0, "*bf16"), (1, "*fp8e4nv"), (2, "*fp8e4nv")):
        size = {"H": 3840, "BLOCK": 4096, "MODE": mode}
        walk = {**size, "PROGRAMS": 792}
        common = {"out_ptr": out, "scale_ptr": "*fp32", "inv_scale": "fp32", "eps": "fp32", "weight_ptr": "*fp32", "x_ptr": "*bf16"}
        yield Entry(f"embed_norm/{mode}", norm.embed_norm_kernel, {**common, "token_ptr": "*i32", "embed_ptr": "*bf16", "embed_scale": "fp32"}, size, norm.WARPS)
        yield Entry(f"residual_norm/{mode}", norm.residual_norm_kernel, {**common, "y_ptr": "*bf16", "post_ptr": "*fp32", "scalar": "fp32", "rows": "i32"}, walk, norm.WARPS)
    yield Entry(
        "geglu", geglu.geglu_kernel,
        {"in_ptr": "*bf16", "scale_ptr": "*fp32", "out_ptr": "*fp8e4nv", "gate_factor": "fp32", "up_factor": "fp32", "inv_scale": "fp32"},
        {"WIDTH": 15360, "BLOCK": geglu.BLOCK, "ROW": True, "STATIC": True}, geglu.WARPS,
    )  # fmt: skip
    if arch == 90:
        yield Entry(
            "gated", gated.gated_kernel,
            {"x": f"tensordesc<fp8e4nv[{gated.BM}, {gated.BK}]>", "pairs": f"tensordesc<fp8e4nv[{gated.BN}, {gated.BK}]>",
             "scale_ptr": "*fp32", "out_ptr": "*fp8e4nv", "gate_factor": "fp32", "up_factor": "fp32", "inv_scale": "fp32", "rows": "i32"},
            {"WIDTH": 15360, "K": 3840, "BM": gated.BM, "BN": gated.BN, "BK": gated.BK, "GROUP": gated.GROUP, "PROGRAMS": 132,
             "STAGES": gated.STAGES, "ROW": True, "MACHINE": True}, gated.WARPS, gated.STAGES,
        )  # fmt: skip
    for name, width in (("", 3840), ("/keys", 4096), ("/global keys", 1024)):  # rows of a pass, and of a decode step's paths
        types = {"src_ptr": "*bf16", "index_ptr": "*i64", "out_ptr": "*bf16", "to_ptr": "*i64"}
        yield Entry(f"gather_rows{name}", gather.gather_rows_kernel, types, {"W": width, "BLOCK": min(2048, width)}, 4)
        yield Entry(f"move_rows{name}", gather.move_rows_kernel, types, {"W": width, "BLOCK": min(2048, width)}, 4)
    tables = {"scale_ptr": "*fp32", "position_ptr": "*i32", "cos_ptr": "*fp32", "sin_ptr": "*fp32", "weight_ptr": "*fp32", "raw_ptr": "*bf16", "eps": "fp32"}
    for name, heads, kv, d, k_eq_v in (("sliding", 16, 8, 256, False), ("global", 16, 1, 512, True)):
        stride = (heads + kv * (1 if k_eq_v else 2)) * d
        yield Entry(
            f"queries/{name}", rotary.queries_kernel, {**tables, "out_ptr": "*bf16", "factor": "fp32", "out_factor": "fp32"},
            {"STRIDE": stride, "HEADS": heads, "HB": heads, "D": d, "ROW": True}, rotary.WARPS,
        )  # fmt: skip
        yield Entry(
            f"keys_values/{name}", rotary.keys_values_kernel, {**tables, "slot_row_ptr": "*i32", "kv_ptr": "*bf16", "k_factor": "fp32", "v_factor": "fp32"},
            {"STRIDE": stride, "KV": kv, "HB": kv, "D": d, "ROW": True, "V_NORM": True, "K_EQ_V": k_eq_v}, rotary.WARPS,
        )  # fmt: skip
    for name, group, kv, d in (("sliding", 2, 8, 256), ("global", 16, 1, 512), ("demo", 4, 1, 256)):
        for step, tile in (("", attention.tile_for(d, arch)), (" of a step", attention.decode_tile_for(d, arch))):
            yield Entry(
                f"attention/{name}{step}", attention.forest_attention_kernel,
                {"q_ptr": "*bf16", "kv": f"tensordesc<bf16[{tile.keys}, {d}]>" if tile.tma else "*bf16", "out_ptr": "*fp8e4nv",
                 "tile_ptr": "*i32", "rows_ptr": "*i32", "inv_scale": "fp32"},
                {"D": d, "G": group, "KV": kv, "TOKENS": attention.tokens_of(tile, group), "BN": tile.keys, "QUANT": True,
                 "PIPE": tile.pipe, "TMA": tile.tma, "STAGES": tile.stages}, tile.warps, tile.stages,
            )  # fmt: skip
    t = multiply.HOPPER if arch == 90 else multiply.OTHERS
    kinds = [f"tensordesc<bf16[{b}, {t.depth}]>" if t.tma else "*bf16" for b in (t.rows, t.columns)]
    yield Entry(
        "product", multiply.product_kernel, {"x": kinds[0], "weight": kinds[1], "out_ptr": "*bf16", "factor": "fp32", "rows": "i32"},
        {"N": 3840, "K": 4096, "BM": t.rows, "BN": t.columns, "BK": t.depth, "GROUP": t.group,
         "PROGRAMS": 132 if t.tma else 1 << 30, "STAGES": t.stages, "TMA": t.tma}, t.warps, t.stages,
    )  # fmt: skip
    eights = [k.replace("bf16", "fp8e4nv") for k in kinds]
    yield Entry(
        "fp8 product", multiply.product_kernel, {"x": eights[0], "weight": eights[1], "out_ptr": "*bf16", "factor": "fp32", "rows": "i32"},
        {"N": 3840, "K": 15360, "BM": t.rows, "BN": t.columns, "BK": t.depth, "GROUP": t.group,
         "PROGRAMS": 132 if t.tma else 1 << 30, "STAGES": t.stages, "TMA": t.tma}, t.warps, t.stages,
    )  # fmt: skip
    product = {"h_ptr": "*bf16", "embed_ptr": "*bf16", "n": "i32", "cap": "fp32"}
    sizes = {"H": 3840, "BM": head.BM, "BN": head.BN, "BK": head.BK, "CAP": True}
    stages = 3 if arch >= 90 else 2
    tma = arch == 90
    loads = {"h": f"tensordesc<bf16[{head.BM}, {head.BK}]>", "embed": f"tensordesc<bf16[{head.BN}, {head.BK}]>"} if tma else {"h": "*bf16", "embed": "*bf16"}
    walk = {"PROGRAMS": 132 if tma else 1 << 30, "STAGES": head.NORM_STAGES, "TMA": tma}
    yield Entry(
        "norms", head.norms_kernel, {**loads, "ends_ptr": "*u8", "parts_ptr": "*fp32", "n": "i32", "cap": "fp32"},
        {"V": 262144, **sizes, **walk}, head.WARPS, head.NORM_STAGES if tma else stages,
    )  # fmt: skip
    yield Entry("candidates", head.candidates_kernel, {**product, "token_ptr": "*i32", "out_ptr": "*fp32", "u": "i32"}, sizes, head.WARPS, stages)
    yield Entry("merge", head.merge_kernel, {"parts_ptr": "*fp32", "out_ptr": "*fp64", "n": "i32"}, {"BLOCKS": 1024, "PAD": 1024}, 4)
    types = {"z_ptr": "*fp32", "table_ptr": "*u8", "state_ptr": "*i32", "norms_ptr": "*fp64", "sums_ptr": "*fp64", "best_ptr": "*fp32", "k": "i32", "runs": "i32"}
    constants = {"ROWS": sets.BLOCK // 256, "WIDTH": 256, "ONE": 1, "TWO": 2, "ON": 4}
    yield Entry("sets", sets.sets_kernel, types, constants, sets.WARPS)
    types = {**types, "token_ptr": "*i32", "best_ptr": "*i32", "logprob_ptr": "*fp64", "count": "i32"}
    yield Entry("few", sets.few_kernel, types, {"WIDTH": 512, "ONE": 1, "TWO": 2, "ON": 4}, 4)


def compiled(entry: Entry, arch: int) -> dict[str, Any]:
    """What the machine code says of itself."""
    names = entry.kernel.arg_names
    types = {n: entry.types.get(n, "constexpr") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if types[n].startswith("*")}
    source = ASTSource(entry.kernel, signature=types, constexprs=entry.constants, attrs=aligned)
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": entry.warps, "num_stages": entry.stages})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(binary.asm["cubin"])
        f.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", f.name], capture_output=True, text=True, check=True).stdout
        sass = subprocess.run([CUOBJDUMP, "-sass", f.name], capture_output=True, text=True, check=True).stdout
    return {
        "name": entry.name, "arch": arch, "shared": binary.metadata.shared, "wide": "i64" in binary.asm["ttir"],
        "registers": int(re.search(r"REG:(\d+)", usage)[1]), "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
        **{op: len(re.findall(rf"\b{op}\b", sass)) for op in OPCODES},
    }  # fmt: skip


if __name__ == "__main__":
    for one in entries(int(sys.argv[1])):
        print(json.dumps(compiled(one, int(sys.argv[1]))), flush=True)
