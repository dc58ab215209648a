"""A compiled question set: everything the worker needs to ask it and to write its records, as one frozen object.

It is made from its *body*, a msgpack of meaning alone; the digest is the body's sha256. So what is compiled and what is
loaded from the cache are the same object by construction, and no field can change without the digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from spinf_stream.questions.encoder import Encoder
from spinf_stream.questions.joins import Head, Joins
from spinf_stream.questions.plan import I32, Bool, Plan
from spinf_stream.questions.planfault import plan_fault
from spinf_stream.questions.spec import Generate
from spinf_stream.questions.template import Kind
from spinf_stream.questions.trie import subset

COMPILER = 3  # raise it with any change to what the compiler makes of the same file


class ScoredQuery(msgspec.Struct, frozen=True, array_like=True):
    """One query's share of a record. Its prompts and options lie together in the plan, prompt after prompt."""

    id: str
    pack: str | None
    context: str | None
    group: str | None
    options: tuple[str, ...]  # as written
    values: tuple[dict[str, str], ...]  # one a prompt
    floor: bool
    case_insensitive: bool
    ends: bool
    residual: bool
    tokens: int  # of its prompts, each a branch by itself: templates and the options' lead-ins

    @property
    def name(self) -> str:
        return self.id if self.pack is None else f"{self.pack}:{self.id}"


class SlotQuery(msgspec.Struct, frozen=True, array_like=True):
    """One extraction query. Slots are branches of their own, outside the plan."""

    id: str
    pack: str | None
    context: str | None
    group: str | None
    kind: Kind
    stop: str  # text after {*}
    max_tokens: int
    top_k: int
    calibration: tuple[float, float] | None  # a, b
    generate: Generate | None  # None = searched or copied
    mode: Literal["search", "copy_only"]
    values: tuple[dict[str, str], ...]  # one a prompt
    tokens: tuple[tuple[int, ...], ...]  # the filled templates' token ids

    @property
    def name(self) -> str:
        return self.id if self.pack is None else f"{self.pack}:{self.id}"


class Body(msgspec.Struct, frozen=True, array_like=True):
    compiler: int
    tokenizer: str
    queries: tuple[ScoredQuery, ...]
    slots: tuple[SlotQuery, ...]
    plan: tuple[bytes, ...]  # little-endian int32 or one byte a bool, in the order of Plan's fields
    floor_keys: bytes  # 32 a prompt
    heads: tuple[Head, ...]


class Starts(NamedTuple):
    prompt: I32  # [n+1] query i's prompts are prompt[i] .. prompt[i+1]-1
    option: I32  # [n+1] its options likewise, prompt by prompt


@dataclasses.dataclass(frozen=True, eq=False)
class QuestionSet:
    digest: str  # 64 hex
    tokenizer: str  # digest of the tokenizer that made the ids
    plan: Plan
    queries: tuple[ScoredQuery, ...]
    slots: tuple[SlotQuery, ...]
    starts: Starts
    floor: Bool  # [Q] the prompt's floor is wanted
    floor_keys: tuple[str, ...]  # [Q] 64 hex: the same text, options, case rule, ends and residual have the same key
    joins: Joins

    @property
    def tokens(self) -> int:
        """Branch tokens of one article, each path once; slots are extra."""
        return self.plan.nodes

    @property
    def longest(self) -> int:
        """Tokens of the longest path below the trunk, slots included."""
        scored = int(self.plan.depth.max()) + 1 if self.plan.nodes else 0
        return max([scored, *(len(ids) for s in self.slots for ids in s.tokens)])

    def subset(self, prompts: Sequence[int]) -> Plan:
        """The plan of these prompts alone (ascending, distinct): what the floor cache still has to compute."""
        return subset(self.plan, prompts)

    def joins_differ(self, encoder: Encoder, content_tail: str) -> list[str]:
        """Names of the queries whose prompt would tokenise differently as one text (DECISIONS 2): for counting alone."""
        return self.joins.differ(encoder, content_tail)


def pack_plan(plan: Plan) -> tuple[bytes, ...]:
    arrays = [getattr(plan, f.name) for f in dataclasses.fields(Plan)]
    return tuple([a.tobytes() if a.dtype == np.bool_ else a.astype("<i4").tobytes() for a in arrays])


def unpack_plan(data: Sequence[bytes]) -> Plan:
    fields = dataclasses.fields(Plan)
    if len(data) != len(fields):
        raise ValueError(f"a plan has {len(fields)} arrays, not {len(data)}")
    arrays: dict[str, Any] = {}
    for f, raw in zip(fields, data):
        if f.type == "Bool":
            byte = np.frombuffer(raw, np.uint8)
            if (byte > 1).any():
                raise ValueError(f"{f.name} is not made of zeros and ones")
            arrays[f.name] = byte.view(np.bool_)
        else:
            arrays[f.name] = np.frombuffer(raw, "<i4").astype(np.int32, copy=False)
    return Plan(**arrays)


def encode(body: Body) -> bytes:
    return msgspec.msgpack.encode(body)


_decoder = msgspec.msgpack.Decoder(Body)


def from_body(data: bytes) -> QuestionSet:
    """The set of an encoded body. Raises ValueError when the body is not what a compiler would have written."""
    try:
        body = _decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise ValueError(str(e)) from None
    if body.compiler != COMPILER:
        raise ValueError(f"it was written by compiler {body.compiler}, this is {COMPILER}")
    plan = unpack_plan(body.plan)
    if fault := plan_fault(plan):
        raise ValueError(fault)
    prompts = np.array([len(q.values) for q in body.queries], np.int64)
    options = np.array([len(q.options) for q in body.queries], np.int64)
    starts = Starts(*(np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (prompts, prompts * options)))
    if starts.prompt[-1] != plan.prompts or len(body.floor_keys) != 32 * plan.prompts:
        raise ValueError("its queries do not have as many prompts as its plan")
    if not np.array_equal(np.repeat(options, prompts), np.bincount(plan.option_prompt, minlength=plan.prompts)):
        raise ValueError("its queries do not have the options of its plan")
    keys = body.floor_keys.hex()
    names = [*(q.name for q in body.queries), *(s.name for s in body.slots)]
    if any(not 0 <= q < len(names) for h in body.heads for q in h.queries):
        raise ValueError("its join classes name queries that it does not have")
    return QuestionSet(
        digest=hashlib.sha256(data).hexdigest(),
        tokenizer=body.tokenizer,
        plan=plan,
        queries=body.queries,
        slots=body.slots,
        starts=starts,
        floor=np.repeat(np.array([q.floor for q in body.queries], np.bool_), prompts),
        floor_keys=tuple([keys[i : i + 64] for i in range(0, len(keys), 64)]),
        joins=Joins(body.heads, names, body.tokenizer),
    )
