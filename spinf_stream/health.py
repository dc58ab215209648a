"""/metrics, /healthz and /readyz on one port: a few lines of HTTP, because a scrape needs no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST

from spinf_stream.metrics import Metrics

REQUEST_BYTES = 8192
REQUEST_SECONDS = 5.0


class State(NamedTuple):
    """ok, or why not, in a few words."""

    ok: bool
    says: str


class Server:
    """`healthy`: the process does its work. `ready`: it is a member of the group and can score."""

    def __init__(
        self, host: str, port: int, metrics: Metrics, healthy: Callable[[], State], ready: Callable[[], State]
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._checks = {"/healthz": healthy, "/readyz": ready}
        self._server: asyncio.Server | None = None
        self._held = ""
        self.port = port

    async def start(self) -> None:
        """Port 0 takes a free one; `port` is then the real one. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=REQUEST_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    def hold(self, why: str) -> None:
        """From now on alive, so that nobody starts it again, and neither ready nor scraped, as where no worker runs."""
        self._held = why

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            status, content_type, body = await self._answer(request)
            head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + (b"" if request.startswith(b"HEAD ") else body))
            await asyncio.wait_for(writer.drain(), REQUEST_SECONDS)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that left, or no HTTP at all
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> tuple[str, str, bytes]:
        parts = request.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or parts[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"GET only\n"
        path = parts[1].decode("latin-1").split("?", 1)[0]
        if self._held and path in ("/metrics", *self._checks):
            return "200 OK" if path == "/healthz" else "503 Service Unavailable", "text/plain; charset=utf-8", f"stopped: {self._held}\n".encode()
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, await asyncio.to_thread(self._metrics.text)
        if path in self._checks:
            state = self._checks[path]()
            status = "200 OK" if state.ok else "503 Service Unavailable"
            return status, "text/plain; charset=utf-8", f"{state.says}\n".encode()
        return "404 Not Found", "text/plain", b"/metrics, /healthz, /readyz\n"
