"""What conversion reads: a checkpoint's config, tokenizer and tensors. Safetensors only; a pickle is never opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from spinf_stream.engine.models import ModelError, strip_prefix


class Checkpoint(Protocol):
    config: dict[str, Any]
    tokenizer: bytes  # a tokenizer.json
    norms_are_factors: bool  # norm weights need no family offset any more (GGUF)

    def names(self) -> set[str]:
        """Tensor names within the text model, without prefix."""
        ...

    def layout(self, name: str) -> tuple[tuple[int, ...], torch.dtype]: ...

    def tensor(self, name: str) -> torch.Tensor:
        """On the CPU, as stored (GGUF: dequantised to float32)."""
        ...


class Folder:
    """A local folder in the Hub's layout: config.json, tokenizer.json, *.safetensors."""

    norms_are_factors = False

    def __init__(self, folder: Path) -> None:
        """Reads headers only. Raises ModelError naming the file that is missing or broken."""
        self.folder = folder
        self.config = read_json(folder / "config.json")
        try:
            self.tokenizer = (folder / "tokenizer.json").read_bytes()
        except OSError:
            raise ModelError(
                f"{folder}: no tokenizer.json; save one with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            ) from None
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder}: no *.safetensors file (pickled weights are never read)")
        self._at: dict[str, tuple[Any, str]] = {}  # name within the text model -> open file, name in the file
        for path in files:
            try:
                f = safe_open(str(path), "pt", device="cpu")
            except (SafetensorError, OSError) as e:
                raise ModelError(f"{path}: not a safetensors file: {e}") from None
            for stored in list(f.keys()):
                name = strip_prefix(stored)
                if name is None:
                    continue
                if name in self._at:
                    raise ModelError(f"{folder}: tensor {name} is in two files; keep one set of weights in the folder")
                self._at[name] = (f, stored)

    def names(self) -> set[str]:
        return set(self._at)

    def layout(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        f, stored = self._at[name]
        part = f.get_slice(stored)
        return tuple(part.get_shape()), _DTYPES.get(part.get_dtype(), torch.int8)

    def tensor(self, name: str) -> torch.Tensor:
        f, stored = self._at[name]
        out: torch.Tensor = f.get_tensor(stored)
        return out


# anything else is reported as int8, which no piece of a model may be
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelError with the file's name."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise ModelError(f"{path}: {e}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a JSON object is expected")
    return value
