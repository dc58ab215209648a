"""Child processes that never outlive us, however we end.

Each has a session of its own, so that Ctrl-C in a terminal reaches us alone and we end them in the right order; a
shell waits on a pipe from us and kills the child when the pipe closes without a word, as it does when we are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Child:
    """`log` takes its standard output and error."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, watchdog: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._watchdog = watchdog

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Child:
        with open(log, "ab") as out:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )
        watchdog = subprocess.Popen(
            ["sh", "-c", 'read _ || kill -9 "-$0"', str(process.pid)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        return cls(name, process, watchdog, log)

    @property
    def ended(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    def messages(self) -> list[str]:
        return self.log.read_text("utf-8", "replace").splitlines()

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM, and SIGKILL after `seconds`; the exit code."""
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), seconds)
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        code = await self._process.wait()
        if self._watchdog.poll() is None:
            self._watchdog.communicate(b"\n")
        return code
