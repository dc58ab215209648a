"""Files of lines that commands read and write; - stands for the standard streams."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from spinf_stream.errors import UsageError


class Source(NamedTuple):
    lines: Iterator[bytes]  # those that are not blank, without their ends
    size: int  # bytes, 0 where nobody knows


@contextlib.contextmanager
def source(name: str) -> Iterator[Source]:
    """Raises UsageError when the file cannot be read."""
    if name == "-":
        yield Source((line.rstrip(b"\r\n") for line in sys.stdin.buffer if line.strip()), 0)
        return
    try:
        size = Path(name).stat().st_size
        with open(name, "rb") as f:
            yield Source((line.rstrip(b"\r\n") for line in f if line.strip()), size)
    except OSError as e:
        raise UsageError(f"{name}: {e.strerror or e}") from None


@contextlib.contextmanager
def lines(name: str) -> Iterator[Iterator[bytes]]:
    with source(name) as found:
        yield found.lines


@contextlib.contextmanager
def sink(name: str) -> Iterator[IO[bytes]]:
    """A file that appears under its name once it is whole, and leaves nothing when it does not become so."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    whole = Path(name).resolve()  # through a symbolic link
    part = whole.with_name(whole.name + ".part")
    try:
        if whole.exists() and not whole.is_file():  # a pipe or a device is written to, never replaced
            with open(whole, "wb") as f:
                yield f
            return
        try:
            with open(part, "wb") as f:
                yield f
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as e:
        raise UsageError(f"{name}: {e.strerror or e}") from None
