"""Machine code without a GPU: tensor-core instructions of the right kind, no spills, shared memory that the card has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = {90: 232_448, 89: 101_376}  # bytes a block may have
PRODUCTS = ("attention", "norms", "candidates", "product")


@pytest.fixture(scope="module", params=[90, 89])
def table(request):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    here = Path(__file__).resolve()
    env["PYTHONPATH"] = os.pathsep.join([str(here.parents[2]), *filter(None, [env.get("PYTHONPATH")])])
    program = here.with_name("compile_table.py")
    done = subprocess.run([sys.executable, program, str(request.param)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_spills(table):
    assert len(table) >= 16
    assert [(k["name"], k["stack"], k["LDL"], k["STL"]) for k in table if k["stack"] or k["LDL"] or k["STL"]] == []


def test_shared_memory_fits(table):
    assert [(k["name"], k["shared"]) for k in table if k["shared"] > SHARED[k["arch"]]] == []


def test_products_run_on_tensor_cores(table):
    """wgmma on Hopper: a tile of under 64 rows would silently become mma.sync at half the rate. mma.sync on Ada."""
    products = [k for k in table if k["name"].startswith(PRODUCTS)]
    assert len(products) == 9
    for k in products:
        if k["arch"] == 90:
            assert k["HGMMA"] > 0 and k["HMMA"] == 0, k
        else:
            assert k["HMMA"] > 0, k


def test_the_fused_mlp_multiplies_eight_bits(table):
    found = [(k["QGMMA"] > 0, k["HGMMA"], k["HMMA"]) for k in table if k["name"] in ("gated", "fp8 product")]
    assert table[0]["arch"] == 89 or found == [(True, 0, 0)] * 2


def test_keys_come_by_tma_on_hopper(table):
    for k in table:
        if k["name"].startswith("attention"):
            assert (k["UTMALDG"] > 0) == (k["arch"] == 90), k


def test_row_offsets_are_64_bit(table):
    assert [k["name"] for k in table if not k["wide"]] == []
