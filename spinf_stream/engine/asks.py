"""What is asked of every article: the question file and each pack, and which of them can share a trunk.

An *ask* is one question set with its presentation, the text around the content. Asks whose presentation is equal to the
byte for an article are asked below one trunk: their plans are laid side by side, nothing is shared between them, so
that an ask's own part never depends on its neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.engine.floors import Floors
from spinf_stream.packs.active import Active
from spinf_stream.packs.file import Scalar
from spinf_stream.questions.plan import Plan
from spinf_stream.questions.questionset import QuestionSet, SlotQuery
from spinf_stream.questions.readout import Read
from spinf_stream.slots.build import SlotSet, Vocabularies


class Ask(NamedTuple):
    questions: QuestionSet
    floors: Floors
    pack: Active | None = None  # None = the question file

    @property
    def name(self) -> str:
        return "" if self.pack is None else self.pack.pack.id

    def presentation(self, given: dict[str, Scalar] | None) -> tuple[str, str]:
        """Text before and after the content. Raises packs.problems.ParameterError for an article's unusable values."""
        return ("", "") if self.pack is None else self.pack.presentation(given)


class Share(NamedTuple):
    """An ask's part of a merged plan."""

    ask: int
    option: slice
    prompt: slice
    slot: slice  # of the merged slot queries

    def of(self, read: Read) -> Read:
        return Read(read.logprob[self.option], read.p[self.option], read.residual[self.prompt])


class Merged(NamedTuple):
    plan: Plan
    shares: tuple[Share, ...]
    slots: SlotSet | None


def merge(asks: Sequence[Ask], chosen: Sequence[int], words: Vocabularies | None = None) -> Merged:
    """The plans of the chosen asks side by side below one trunk. words: needed where one of them has slots."""
    plans = [asks[i].questions.plan for i in chosen]
    shares: list[Share] = []
    queries: list[SlotQuery] = []
    option = prompt = 0
    for i, p in zip(chosen, plans):
        slots = asks[i].questions.slots
        shares.append(Share(i, *(slice(a, a + n) for a, n in ((option, p.options), (prompt, p.prompts), (len(queries), len(slots))))))
        option, prompt = option + p.options, prompt + p.prompts
        queries += slots
    if queries and words is None:
        raise ValueError("slots are spelled in a vocabulary")
    slot_set = SlotSet(queries, words) if queries and words else None
    return Merged(plans[0] if len(plans) == 1 else side_by_side(plans), tuple(shares), slot_set)


def side_by_side(plans: Sequence[Plan]) -> Plan:
    """One plan of several. Raises ValueError when one reads at the trunk itself, which two could not do."""
    if any((p.read_node < 0).any() for p in plans):
        raise ValueError("a plan that reads at the trunk's last token has no branch of its own to lay beside another")
    # which total of what lies before is added to each column's entries; -1 (the trunk, no end) stays -1
    shift = {
        "parent": "nodes", "end": "nodes", "read_node": "nodes",
        "step_cand": "cands", "variant_end": "reads", "variant_option": "options", "option_prompt": "prompts",
    }  # fmt: skip
    before = {"nodes": 0, "reads": 0, "cands": 0, "options": 0, "prompts": 0, "steps": 0}
    columns: dict[str, list[np.ndarray]] = {f.name: [] for f in dataclasses.fields(Plan)}
    for p in plans:
        for name, parts in columns.items():
            column = getattr(p, name)
            if name in ("cand_ptr", "step_ptr"):
                column = column[1 if parts else 0 :] + before["cands" if name == "cand_ptr" else "steps"]
            elif name in shift:
                column = np.where(column < 0, column, column + before[shift[name]])
            parts.append(column)
        sizes = {"nodes": p.nodes, "reads": p.reads, "cands": len(p.cand_token), "options": p.options, "prompts": p.prompts, "steps": len(p.step_cand)}
        before = {k: before[k] + n for k, n in sizes.items()}
    whole: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Plan(**{n: c if c.dtype == np.bool_ else c.astype(np.int32) for n, c in whole.items()})
