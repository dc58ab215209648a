"""How much of the machine others took while something was measured: a time limit is meant for a quiet one."""

from __future__ import annotations

import os
import resource
from pathlib import Path


class Load:
    """From its making on. Ours is this process and the children that have ended and were waited for."""

    def __init__(self) -> None:
        self._before = _spent()

    def others(self) -> float:
        """Share of all cores' time, 0 to 1, that was taken by anything but us."""
        busy, whole, ours = (now - before for now, before in zip(_spent(), self._before, strict=True))
        return round(min(1.0, max(0.0, busy - ours) / max(whole, 0.01)), 3)


def _spent() -> tuple[float, float, float]:
    """Seconds: of all cores not idle, of all cores, ours."""
    ticks = [int(n) / os.sysconf("SC_CLK_TCK") for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks), sum(u.ru_utime + u.ru_stime for u in ours)
