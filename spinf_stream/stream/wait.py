"""Waiting with a limit. (asyncio.wait_for can lose a cancellation in Python 3.11; asyncio.timeout cannot.)"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP = 0.005  # seconds between looks


async def event_or_time(event: asyncio.Event, seconds: float | None) -> None:
    """Until the event is set or the time is over, whichever comes first."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def until(true: Callable[[], bool], end: float) -> bool:
    """Until it is true; False when the monotonic time `end` came first."""
    while not true():
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(STEP)
    return True
