from __future__ import annotations

from pathlib import Path

from spinf_stream.engine.cache import fetch


def demo_folder() -> Path:
    """The demo model, converted, in the cache that `make demo` uses too."""
    return fetch("demo").folder
