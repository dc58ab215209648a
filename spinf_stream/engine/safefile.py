"""Write a safetensors file one tensor at a time, hashing on the way: a model larger than memory converts in one pass.

The format is that of the `safetensors` library, which reads these files: 8 bytes header length, a JSON header, data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
}
_PAGE = 4096  # the data starts on a page, so that mapped tensors are aligned


class Entry(NamedTuple):
    """One tensor to write; `make` is called once, when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]

    @property
    def size(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count * self.dtype.itemsize


def write(path: Path, entries: Iterable[Entry], metadata: Mapping[str, str], written: Callable[[int], None]) -> str:
    """Write, flush to the disk, and return the sha256 (hex) of the file. `written` gets the bytes of each tensor.

    Raises ValueError when a tensor is not what its entry says, OSError when the disk refuses.
    """
    entries = list(entries)
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for e in entries:
        table[e.name] = {"dtype": _NAMES[e.dtype], "shape": list(e.shape), "data_offsets": [at, at + e.size]}
        at += e.size
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % _PAGE)
    digest = hashlib.sha256()
    with path.open("wb") as f:

        def put(data: bytes | memoryview) -> None:
            digest.update(data)
            f.write(data)

        put(len(header).to_bytes(8, "little"))
        put(header)
        for e in entries:
            tensor = e.make().contiguous()
            if tensor.dtype != e.dtype or tuple(tensor.shape) != e.shape:
                raise ValueError(f"{e.name}: made {tensor.dtype} {tuple(tensor.shape)}, planned {e.dtype} {e.shape}")
            put(tensor.reshape(-1).view(torch.uint8).numpy().data)
            written(e.size)
        f.flush()
        os.fsync(f.fileno())
    return digest.hexdigest()


def sha256(path: Path, read: Callable[[int], None] = lambda n: None) -> str:
    """sha256 (hex) of a file; `read` gets the bytes of each step."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 22):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()


def sample(path: Path, blocks: int = 64) -> str:
    """sha256 (hex) of the size and of pages spread evenly over a file: catches most damage in a few milliseconds."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as f:
        for i in range(blocks):
            f.seek(i * max(size - _PAGE, 0) // (blocks - 1))
            digest.update(f.read(_PAGE))
    return digest.hexdigest()
