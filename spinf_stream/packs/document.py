"""A pack's bytes as a JSON document, and the digest that covers all of it.

The digest is sha256 over compact JSON in the file's own order, without the field `digest`: order counts (the first
context is the default, ties go to the earlier category), white space does not. The peer's lock covers four fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spinf_stream.packs.problems import PackError, Problem, step

LARGEST_FILE = 16 * 2**20
_SEAL = re.compile(r'"digest"\s*:\s*"([^"\\]*)"')


def read_bytes(path: Path) -> bytes:
    """A pack file's bytes. Raises PackError when it cannot be read or is over 16 MiB."""
    try:
        with open(path, "rb") as f:
            raw = f.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as e:
        raise PackError(str(path), [Problem("$", getattr(e, "strerror", None) or "is not a usable file name")]) from None
    if len(raw) > LARGEST_FILE:
        raise PackError(str(path), [Problem("$", "is larger than 16 MiB")])
    return raw


def parse(raw: bytes, where: str) -> dict[str, Any]:
    """Raises PackError for anything that is not one JSON object with distinct keys and encodable strings.

    A repeated key is refused: readers disagree on which one counts, and a digest would cover only one.
    """
    repeated: list[tuple[dict[str, Any], str]] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                repeated.append((out, key))
            out[key] = value
        return out

    try:
        doc = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=build)
    except UnicodeDecodeError as e:
        raise PackError(where, [Problem("$", f"byte {e.start} is not UTF-8")]) from None
    except json.JSONDecodeError as e:
        raise PackError(where, [Problem("$", f"is not JSON: {e.msg} at line {e.lineno} column {e.colno}")]) from None
    except RecursionError:
        raise PackError(where, [Problem("$", "is nested too deeply")]) from None
    except ValueError:  # an integer of more digits than Python converts
        raise PackError(where, [Problem("$", "holds a number of too many digits")]) from None
    if not isinstance(doc, dict):
        raise PackError(where, [Problem("$", "must be one JSON object")])

    problems = []
    if repeated:
        paths = {id(value): path for path, value in walk(doc)}
        problems = [Problem(step(paths.get(id(at), "$"), key), "the key stands twice in its object") for at, key in repeated]
    try:
        json.dumps(doc, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        problems += [
            Problem(path, "holds a lone surrogate, which has no UTF-8 form")
            for path, value in walk(doc)
            if any(_lone(s) for s in ([value] if isinstance(value, str) else value if isinstance(value, dict) else ()))
        ]
    if problems:
        raise PackError(where, problems)
    return doc


def walk(doc: Any) -> Iterator[tuple[str, Any]]:
    """Every value below a document, with its path; a stack of its own, so depth cannot exhaust Python's."""
    todo = [("$", doc)]
    while todo:
        path, value = todo.pop()
        yield path, value
        if isinstance(value, dict):
            todo.extend((step(path, k), v) for k, v in value.items())
        elif isinstance(value, list):
            todo.extend((step(path, i), v) for i, v in enumerate(value))


def digest(doc: dict[str, Any]) -> str:
    """`sha256:` and 64 hex digits over everything but the field `digest` itself."""
    kept = {k: v for k, v in doc.items() if k != "digest"}
    return "sha256:" + hashlib.sha256(json.dumps(kept, separators=(",", ":")).encode("ascii")).hexdigest()


def text_of(doc: dict[str, Any]) -> str:
    """A document as it is written to a file."""
    return json.dumps(doc, ensure_ascii=False, indent=1) + "\n"


def sealed(doc: dict[str, Any]) -> dict[str, Any]:
    """The document with its digest in it: from then on an edit is found when the file is read."""
    return {**{k: v for k, v in doc.items() if k != "digest"}, "digest": digest(doc)}


def sealed_text(text: str) -> str:
    """A pack file's text with its seal, and otherwise as it was: people lay these files out by hand."""
    doc = parse(text.encode("utf-8"), "pack")
    wanted = sealed(doc)
    body = text.removeprefix("\ufeff").rstrip()
    found = [f"{body[: m.start(1)]}{wanted['digest']}{body[m.end(1) :]}\n" for m in _SEAL.finditer(body)]  # a field `digest` further down is not it
    found.append(f'{body[:-1].rstrip()},\n "digest": "{wanted["digest"]}"\n}}\n')
    return next((t for t in found if _says(t, wanted)), text_of(wanted))


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return parse(text.encode("utf-8"), "pack") == wanted
    except PackError:
        return False


def _lone(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
