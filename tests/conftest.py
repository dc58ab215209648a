"""Shared places of the test suite."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"  # real articles and the headline job, laid beside the checkout
