"""Floors: the same question on BOS + template alone, computed once per fingerprint and question, kept across restarts.

A floor's key covers the filled template, the options, the case rule and the read's flags, never the query's id, so packs
that ask the same share it. The file is msgpack with a digest; one that does not verify is set aside and computed anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from spinf_stream.questions.plan import F64, Plan
from spinf_stream.questions.readout import read_out, starts

log = logging.getLogger(__name__)


class Floor(msgspec.Struct, frozen=True, array_like=True):
    """One prompt's floor. NaN in residual where the prompt has `residual: false`."""

    p: list[float]
    residual: float


class Floors(NamedTuple):
    p: F64  # [O], NaN where the query's floor is off
    residual: F64  # [Q], likewise
    computed: int  # prompts that were not in the cache
    tokens: int  # rows computed for them


class FloorCache:
    """Floors of one fingerprint, in `folder`/<fingerprint>.floors."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.path = folder / f"{fingerprint[:32]}.floors"
        self._said: set[str] = set()
        self.known: dict[str, Floor] = self._load()

    def floors(self, plan: Plan, keys: Sequence[str], wanted: Sequence[bool], subset: Callable[[list[int]], Plan],
               read: Callable[[Plan], tuple[F64, F64]]) -> Floors:  # fmt: skip
        """Floors of a plan's prompts; `read` runs a plan below a trunk of BOS alone and returns (cand, end).

        keys and wanted have one entry a prompt; `subset(prompts)` is the plan of those prompts in that order.
        """
        first: dict[str, int] = {}
        for i, (key, want) in enumerate(zip(keys, wanted)):
            if want and key not in self.known:
                first.setdefault(key, i)
        tokens = 0
        if first:
            part = subset(list(first.values()))
            tokens = part.nodes
            answer = read_out(part, *read(part))
            at = np.append(starts(part.option_prompt), part.options)
            for n, key in enumerate(first):
                self.known[key] = Floor(answer.p[at[n] : at[n + 1]].tolist(), float(answer.residual[n]))
            self._save()
        p, residual = np.full(plan.options, np.nan), np.full(plan.prompts, np.nan)
        at = np.append(starts(plan.option_prompt), plan.options)
        for i, (key, want) in enumerate(zip(keys, wanted)):
            if want:
                p[at[i] : at[i + 1]] = self.known[key].p
                residual[i] = self.known[key].residual
        return Floors(p, residual, len(first), tokens)

    def _load(self) -> dict[str, Floor]:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as e:
            self._warn(f"floor cache {self.path} cannot be read ({e.strerror}): floors are computed anew")
            return {}
        digest, body = raw[:32], raw[32:]
        try:
            if hashlib.sha256(body).digest() != digest:
                raise ValueError("its digest does not match")
            return msgspec.msgpack.decode(body, type=dict[str, Floor])
        except (ValueError, msgspec.MsgspecError) as e:
            self._warn(f"floor cache {self.path.name} is broken ({e}): floors are computed anew")
            return {}

    def _save(self) -> None:
        """Merge with what another process may have written, then replace the file in one step. Where that is impossible
        floors are computed again at the next start, no more."""
        self.known = {**self._load(), **self.known}
        body = msgspec.msgpack.encode(self.known)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as f:
                try:
                    f.write(hashlib.sha256(body).digest() + body)
                    f.flush()
                    os.replace(f.name, self.path)
                except OSError:
                    os.unlink(f.name)
                    raise
        except OSError as e:
            self._warn(f"floors cannot be kept in {self.path.parent} ({e.strerror}): the next start computes them again")

    def _warn(self, line: str) -> None:
        """Each line once: a reload saves again."""
        if line not in self._said:
            log.warning("%s", line)
        self._said.add(line)
