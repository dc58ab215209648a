"""The demo's worker process, and the line on the screen that says what it is doing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from spinf_stream.children import Child
from spinf_stream.config import PREFIX, Settings
from spinf_stream.errors import UsageError

_ADDRESS = re.compile(r"http://\S+:\d+")
_PASSES = re.compile(r'^spinf_stream_engine_passes_total\{.*result="ok".*\} (\S+)$', re.MULTILINE)


class DemoWorker:
    """`spinf-stream worker` as anybody starts it, with its settings in a file."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.address: str | None = None  # of /metrics and /readyz, once the worker has said it

    @classmethod
    async def start(cls, s: Settings, folder: Path) -> DemoWorker:
        file = folder / "worker.toml"
        given = {n: v for n, v in msgspec.to_builtins(s).items() if v is not None and v != getattr(Settings(), n)}
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()), "utf-8")
        env = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
        command = [sys.executable, "-m", "spinf_stream.cli", "worker", "--config", str(file), "--log-format", "json"]
        return cls(await Child.start("worker", command, folder / "worker.log", env))

    def status(self) -> str:
        """What it says of its model, or of what is wrong."""
        for line in reversed(self.child.messages()):
            try:
                said = json.loads(line)
                if said["level"] in ("warning", "error", "critical") or said["logger"] == "spinf_stream.engine.open":
                    return str(said["message"])
            except (ValueError, KeyError, TypeError):
                if line.strip() and self.child.ended is not None:  # the last line of a trace, or of a usage error
                    return line.strip()[-300:]
        return "starting"

    async def ready(self) -> None:
        """Returns once it has its partitions."""
        while True:
            self.check()
            for line in self.child.messages() if self.address is None else ():
                if "metrics and health at" in line and (found := _ADDRESS.search(line)):
                    self.address = found[0]
            if self.address is not None and await self._get("/readyz") is not None:
                return
            await asyncio.sleep(0.1)

    async def passes(self) -> int:
        """Forward passes so far."""
        found = _PASSES.search(await self._get("/metrics") or "")
        return int(float(found[1])) if found else 0

    def check(self) -> None:
        """Raises UsageError when it has ended."""
        if self.child.ended is not None:
            raise UsageError(f"the worker ended with {self.child.ended}: {self.status()}", 1)

    async def _get(self, path: str) -> str | None:
        def get() -> str | None:
            try:
                with urllib.request.urlopen(f"{self.address}{path}", timeout=5) as answer:
                    return str(answer.read().decode())
            except OSError:
                return None

        return await asyncio.to_thread(get)


class Screen:
    """Lines that stay, and on a terminal one that is written over; elsewhere each of its states once."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def say(self, line: str) -> None:
        self.clear()
        print(line, file=sys.stderr, flush=True)
        self._last = line

    def show(self, line: str, seconds: float) -> None:
        if self._live:
            print(f"\r\x1b[K{line}  {seconds:.0f} s", end="", file=sys.stderr, flush=True)
        elif line != self._last:
            print(line, file=sys.stderr, flush=True)
        self._last = line

    def clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    async def until(self, done: Awaitable[object], line: Callable[[], str], patience: float, worker: DemoWorker | None = None) -> None:
        """Show the line until it is done. Raises what it raises, and UsageError when the worker ends or time is out."""
        began = time.monotonic()
        future = asyncio.ensure_future(done)
        try:
            while not future.done():
                self.show(line(), time.monotonic() - began)
                await asyncio.wait([future], timeout=0.2)
                if worker is not None and not future.done():
                    worker.check()
                if time.monotonic() - began > patience:
                    raise UsageError(f"{line()}: nothing new in {patience:.0f} s", 1)
            future.result()
        finally:
            future.cancel()
            await asyncio.wait([future])
