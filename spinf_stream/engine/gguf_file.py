"""Read a GGUF file: metadata and dequantised tensors.

The `gguf` package dequantises; its own reader takes ten seconds for the 262,144 tokens of a Gemma vocabulary, this one
a fraction of one. Format: docs/gguf.md of ggml. Little-endian, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from spinf_stream.engine.models import ModelAway, ModelError

_SCALARS = "BbHhIif?"  # by GGUF value type: uint8 int8 uint16 int16 uint32 int32 float32 bool
_WIDE = {10: "Q", 11: "q", 12: "d"}  # uint64 int64 float64
_STRING, _ARRAY = 8, 9


class Info(NamedTuple):
    shape: tuple[int, ...]  # rows first, as torch writes it
    kind: int  # ggml type
    offset: int  # in the file


class GgufFile:
    """`meta`: key -> number, string, list of strings or numpy array. `tensors`: name -> Info."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError when the file is no GGUF or is cut short, ModelAway without the gguf package."""
        try:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError:
            raise ModelAway("reading GGUF needs the gguf package: pip install 'spinf-stream[demo]'") from None
        self._sizes, self._kinds, self._dequantize = GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
        self.path = path
        self.meta: dict[str, Any] = {}
        self.tensors: dict[str, Info] = {}
        with path.open("rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._header()
        except (struct.error, ValueError, IndexError, KeyError) as e:
            raise ModelError(f"{path}: not a whole GGUF file: {e}") from None

    def tensor(self, name: str) -> torch.Tensor:
        """Dequantised to float32."""
        info = self.tensors[name]
        raw = np.frombuffer(self._map, np.uint8, self._bytes(info), info.offset)
        kind = self._kinds(info.kind)
        if kind.name == "F32":
            values = raw.view(np.float32)
        elif kind.name == "F16":
            values = raw.view(np.float16)
        else:
            rows = 1
            for n in info.shape[:-1]:
                rows *= n
            values = self._dequantize(raw.reshape(rows, -1), kind)
        return torch.from_numpy(values.astype(np.float32).reshape(info.shape))

    def _header(self) -> None:
        magic, version, tensors, keys = self._unpack("4sIQQ", 0)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"magic {magic!r}, version {version}")
        at = 24
        for _ in range(keys):
            key, at = self._string(at)
            (kind,) = self._unpack("I", at)
            self.meta[key], at = self._value(kind, at + 4)
        found = []
        for _ in range(tensors):
            name, at = self._string(at)
            (count,) = self._unpack("I", at)
            shape = self._unpack(f"{count}Q", at + 4)
            kind, offset = self._unpack("IQ", at + 4 + 8 * count)
            at += 16 + 8 * count
            found.append((name, tuple(reversed(shape)), kind, offset))
        align = int(self.meta.get("general.alignment", 32))
        start = -(-at // align) * align
        for name, shape, kind, offset in found:
            info = Info(shape, kind, start + offset)
            if info.offset + self._bytes(info) > len(self._map):
                raise ValueError(f"tensor {name} ends past the end of the file")
            self.tensors[name] = info

    def _bytes(self, info: Info) -> int:
        count = 1
        for n in info.shape:
            count *= n
        block, size = self._sizes[self._kinds(info.kind)]
        return count // block * size

    def _value(self, kind: int, at: int) -> tuple[Any, int]:
        if kind == _STRING:
            return self._string(at)
        if kind != _ARRAY:
            code = _SCALARS[kind] if kind < len(_SCALARS) else _WIDE[kind]
            return self._unpack(code, at)[0], at + struct.calcsize(code)
        inner, count = self._unpack("IQ", at)
        at += 12
        if inner == _STRING:
            texts = []
            for _ in range(count):
                text, at = self._string(at)
                texts.append(text)
            return texts, at
        dtype = np.dtype("<" + (_SCALARS[inner] if inner < len(_SCALARS) else _WIDE[inner]))
        return np.frombuffer(self._map, dtype, count, at), at + count * dtype.itemsize

    def _string(self, at: int) -> tuple[str, int]:
        (size,) = self._unpack("Q", at)
        return self._map[at + 8 : at + 8 + size].decode(), at + 8 + size

    def _unpack(self, code: str, at: int) -> tuple[Any, ...]:
        return struct.unpack_from("<" + code, self._map, at)
