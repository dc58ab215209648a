from __future__ import annotations

from pathlib import Path

import pytest

from spinf_stream.engine.cache import fetch


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model, converted, in the cache that `make demo` uses too."""
    return fetch("demo").folder
