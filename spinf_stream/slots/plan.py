"""What is extracted below a trunk: the slots that the engine is given with a plan, arrays and plain numbers alone."""

from __future__ import annotations

from typing import Literal, NamedTuple

from spinf_stream.questions.plan import I32
from spinf_stream.slots.automaton import Automaton

How = Literal["search", "copy_numbers", "copy_text", "generate"]

SLOTS = "slots/3"  # raise when the same numbers give other answers; part of the fingerprint
BEAM = 6  # the peer's constants
MIN_P = 0.002  # a spelling less probable is not followed
REL_P = 0.02  # nor one less probable than this share of the best answer so far


class Sampling(NamedTuple):
    temperature: float  # 0 = the most probable
    top_p: float
    top_k: int
    seed: int
    n: int  # sequences


class Slot(NamedTuple):
    template: I32  # token ids before the slot, at least one
    how: How
    automaton: int  # index into SlotPlan.automata
    max_tokens: int
    sampling: Sampling | None = None  # of "generate"


class SlotPlan(NamedTuple):
    slots: tuple[Slot, ...]
    automata: tuple[Automaton, ...]
