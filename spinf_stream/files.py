"""Files of lines that commands read and write; - stands for the standard streams.

What goes wrong while one is open belongs to it only if it went wrong in it: other OSErrors pass through.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from spinf_stream.errors import UsageError


class Line(NamedTuple):
    number: int  # as an editor counts: from 1, blank lines too
    value: bytes  # without its end
    end: int  # where it ends in the file, in bytes


class Source(NamedTuple):
    lines: Iterator[Line]  # those that are not blank
    size: int  # bytes, 0 where nobody knows


class _Named(io.FileIO):
    """Opening, reading, writing: raises UsageError with the name as it was given."""

    def __init__(self, name: str, mode: str, path: Path | None = None) -> None:
        self.called = name
        self._own(lambda: super(_Named, self).__init__(path or name, mode))

    def readinto(self, buffer: Any) -> Any:
        return self._own(lambda: super(_Named, self).readinto(buffer))

    def write(self, data: Any) -> Any:
        return self._own(lambda: super(_Named, self).write(data))

    def close(self) -> None:
        self._own(super().close)

    def _own(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OSError as e:
            raise _blame(self.called, e) from None


def _blame(name: str, e: OSError) -> UsageError:
    return UsageError(f"{name}: {e.strerror or e}")


@contextlib.contextmanager
def _reading(name: str) -> Iterator[tuple[IO[bytes], int]]:
    if name == "-":
        yield sys.stdin.buffer, 0
        return
    with io.BufferedReader(_Named(name, "r")) as f:
        yield f, Path(name).stat().st_size


@contextlib.contextmanager
def source(name: str) -> Iterator[Source]:
    """Raises UsageError when the file cannot be read."""
    with _reading(name) as (f, size):
        yield Source(_numbered(f), size)


def _numbered(f: Iterable[bytes]) -> Iterator[Line]:
    end = 0
    for n, v in enumerate(f, 1):
        end += len(v)
        if v.strip():
            yield Line(n, v.rstrip(b"\r\n"), end)


@contextlib.contextmanager
def lines(name: str, blank: bool = False) -> Iterator[Iterable[bytes]]:
    """As source, without numbers; `blank` leaves blank lines in, for who counts by himself."""
    with _reading(name) as (f, _):
        yield (v.rstrip(b"\r\n") for v in f if blank or v.strip())


@contextlib.contextmanager
def sink(name: str) -> Iterator[IO[bytes]]:
    """A file that appears under its name once it is whole, and leaves nothing when it does not become so."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    whole = Path(name).resolve()  # through a symbolic link
    if whole.exists() and not whole.is_file():  # a pipe or a device is written to, never replaced
        with io.BufferedWriter(_Named(name, "w", whole)) as f:
            yield f
        return
    part = whole.with_name(whole.name + ".part")
    try:
        with io.BufferedWriter(_Named(name, "w", part)) as f:
            yield f
        try:
            part.replace(whole)
        except OSError as e:
            raise _blame(name, e) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
