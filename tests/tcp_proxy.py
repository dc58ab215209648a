"""A TCP proxy between a client and a service that can be slow, silent or cut: `async with Proxy(port) as p`."""

from __future__ import annotations

import asyncio
import random
from typing import Any

HOST = "127.0.0.1"


class Proxy:
    """`delay` seconds (lowest, highest) are added to each answer, or only to those to requests that hold one of `slow`; while
    `silent` answers are swallowed."""

    def __init__(self, target: int, seed: int = 0) -> None:
        self.target = target
        self.delay = (0.0, 0.0)
        self.slow: tuple[bytes, ...] = (b"",)
        self.silent = False
        self.refusing = False
        self.port = 0
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()

    def cut(self) -> None:
        """Reset every connection that there is."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self.refusing:
                return
            there, back = await asyncio.open_connection(HOST, self.target)
            self._open.add(back)
            asked = [b""]  # the last request on this connection
            ways = [asyncio.ensure_future(self._pass(reader, back, asked, False)), asyncio.ensure_future(self._pass(there, writer, asked, True))]
            self._tasks.update(ways)
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
                self._tasks.discard(way)
            self._open.discard(back)
            back.close()
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes], answer: bool) -> None:
        try:
            while data := await reader.read(65536):
                if not answer:
                    asked[0] = data
                if answer and self.delay[1] and any(words in asked[0] for words in self.slow):
                    await asyncio.sleep(self._random.uniform(*self.delay))
                if answer and self.silent:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
