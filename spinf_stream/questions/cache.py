"""Compiled question sets on disk: a file of questions is compiled once for each tokenizer.

    <key>.questions = magic, sha256 of the body, body          key = sha256 over the file, the tokenizer, the limits, the compiler

A file that does not verify, or whose body breaks an invariant, is compiled anew and replaced; so is one that another
tokenizer wrote. Files are replaced in one step.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from spinf_stream.questions.compile import Source, build_body
from spinf_stream.questions.encoder import Encoder
from spinf_stream.questions.questionset import COMPILER, QuestionSet, from_body
from spinf_stream.questions.spec import LIMITS, Limits, decode

log = logging.getLogger(__name__)
MAGIC = b"spinf-questions\n"


def load_file(path: Path, encoder: Encoder, folder: Path | None = None, limits: Limits = LIMITS) -> QuestionSet:
    """A question file (.toml, else JSON), compiled or from the cache folder. Raises OSError, QuestionError."""
    data = path.read_bytes()
    toml = path.suffix.lower() == ".toml"

    def make() -> bytes:
        return build_body([Source(decode(data, toml))], encoder, limits)

    return cached(folder, [b"file", bytes([toml]), data, msgspec.msgpack.encode(limits)], encoder, make)


def cached(folder: Path | None, parts: list[bytes], encoder: Encoder, make: Callable[[], bytes]) -> QuestionSet:
    """The set whose body `make` compiles, from the cache where it lies there. parts: everything that decides it."""
    if folder is None:
        return from_body(make())
    whole = hashlib.sha256(msgspec.msgpack.encode((COMPILER, encoder.digest, encoder.bos, encoder.vocab, parts))).hexdigest()
    path = folder / f"{whole}.questions"
    found = _read(path, encoder)
    if found is not None:
        return found
    body = make()
    try:
        _write(path, MAGIC + hashlib.sha256(body).digest() + body)
    except OSError as e:
        log.warning("the compiled questions are not kept: %s", e.strerror)
    return from_body(body)


def _read(path: Path, encoder: Encoder) -> QuestionSet | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as e:
        log.warning("compiled questions %s cannot be read (%s): compiling anew", path.name[:12], e.strerror)
        return None
    start = len(MAGIC) + 32
    try:
        if raw[: len(MAGIC)] != MAGIC:
            raise ValueError("it is something else")
        body = raw[start:]
        if hashlib.sha256(body).digest() != raw[len(MAGIC) : start]:
            raise ValueError("its digest does not match")
        found = from_body(body)
        if found.tokenizer != encoder.digest:
            raise ValueError("it is for another tokenizer")
        return found
    except ValueError as e:
        log.warning("compiled questions %s are broken (%s): compiling anew", path.name[:12], e)
        return None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as f:
        try:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
            os.replace(f.name, path)
        except OSError:
            os.unlink(f.name)
            raise
