"""Questions with their floors, for engines that the benches put together themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spinf_stream.config import Settings
from spinf_stream.engine.asks import Ask
from spinf_stream.engine.floors import FloorCache
from spinf_stream.engine.open import Ground, ask_of
from spinf_stream.questions.questionset import QuestionSet


def asked(questions: QuestionSet, engine: Any, encoder: Any, fingerprint: str, folder: Path) -> Ask:
    """Floors that `folder` lacks are computed in a pass of their own."""
    ground = Ground(Settings(), encoder, engine, FloorCache(folder, fingerprint), fingerprint, lambda line: None)
    return ask_of(ground, questions, None, lambda batch: engine.collect(engine.submit(batch)))
