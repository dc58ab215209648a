"""Compiled once: the disk cache is fast, is never believed, and is replaced in one step."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from questions_bpe import ENCODER, WORDS, encoder

from spinf_stream.questions import cache, questionset
from spinf_stream.questions.cache import load_file
from spinf_stream.questions.plan import Plan
from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.questionset import Body, QuestionSet, encode, from_body, pack_plan, unpack_plan
from spinf_stream.questions.spec import Limits

SUBJECTS = ("oil", "gas", "a merger", "a strike", "an election", "the weather", "a film", "a lawsuit", "low rates", "New York")


def thousand(folder: Path) -> Path:
    r = random.Random(7)
    queries = [
        {"id": f"q{i}", "template": f"\n\nIs it about {r.choice(SUBJECTS)} or {r.choice(SUBJECTS)} in {i}?\nAnswer:{{?}}", "options": [" yes", " no"]}
        for i in range(1000)
    ]  # fmt: skip
    path = folder / "questions.json"
    path.write_text(json.dumps({"queries": queries}))
    return path


def small(folder: Path) -> Path:
    path = folder / "small.json"
    path.write_text('{"queries": [{"id": "a", "template": "\\n\\nIs it?{?}", "options": [" yes", " New York"]}, {"id": "s", "template": "\\n\\nWho:{*}"}]}')
    return path


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


class Counting:
    """Counts what is tokenised."""

    def __init__(self) -> None:
        self.digest, self.vocab, self.bos, self.texts = ENCODER.digest, ENCODER.vocab, ENCODER.bos, 0

    def encode(self, text: str) -> list[int]:
        return ENCODER.encode(text)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        self.texts += len(texts)
        return ENCODER.encode_batch(texts)


def test_a_thousand_questions_load_in_50_ms(tmp_path: Path) -> None:
    path, folder = thousand(tmp_path), tmp_path / "cache"
    counting = Counting()
    began = time.perf_counter()
    first = load_file(path, counting, folder)
    assert time.perf_counter() - began < 10
    assert counting.texts > 1000
    counting.texts = 0
    times = []
    for _ in range(5):
        began = time.perf_counter()
        again = load_file(path, counting, folder)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.050, f"{min(times) * 1000:.1f} ms"
    assert counting.texts == 0
    assert same(again, first) and first.plan.prompts == 1000


def same(a: QuestionSet, b: QuestionSet) -> bool:
    return (
        (a.digest, a.queries, a.slots, a.floor_keys, a.joins.heads) == (b.digest, b.queries, b.slots, b.floor_keys, b.joins.heads)
        and all(np.array_equal(getattr(a.plan, f), getattr(b.plan, f)) for f in Plan.__slots__)
    )  # fmt: skip


def test_the_key_is_file_tokenizer_limits_and_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = small(tmp_path), tmp_path / "cache"
    load_file(path, ENCODER, folder)
    load_file(path, ENCODER, folder)
    assert len(list(folder.iterdir())) == 1
    other = encoder(WORDS[::-1])
    assert other.vocab == ENCODER.vocab and other.digest != ENCODER.digest
    load_file(path, other, folder)
    load_file(path, ENCODER, folder, Limits(max_slots=3))
    monkeypatch.setattr(cache, "COMPILER", questionset.COMPILER + 1)
    load_file(path, ENCODER, folder)
    path.write_text(path.read_text() + " ")
    load_file(path, ENCODER, folder)
    assert len(list(folder.iterdir())) == 5


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    load_file(small(tmp_path), ENCODER)
    assert [p.name for p in tmp_path.iterdir()] == ["small.json"]


def test_a_broken_file_of_questions_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("queries = 3")
    with pytest.raises(QuestionError):
        load_file(path, ENCODER, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none.json", ENCODER, tmp_path / "cache")


def test_any_damage_is_seen_and_mended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, folder = small(tmp_path), tmp_path / "cache"
    first = load_file(path, ENCODER, folder)
    kept = only(folder)
    good = kept.read_bytes()
    r = random.Random(3)
    damaged = [b"", good[:10], good[:-1], good + b"x", good.replace(b"yes", b"yez")]
    for _ in range(40):
        at = r.randrange(len(good))
        damaged.append(good[:at] + bytes([good[at] ^ 1 << r.randrange(8)]) + good[at + 1 :])
    for data in damaged:
        kept.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert same(load_file(path, ENCODER, folder), first)
        assert "compiling anew" in caplog.text
        assert kept.read_bytes() == good and only(folder) == kept


def rewritten(good: bytes, **changes: object) -> bytes:
    """A cache file whose digest is right and whose body says something else."""
    body = msgspec.msgpack.decode(good[len(cache.MAGIC) + 32 :], type=Body)
    data = encode(msgspec.structs.replace(body, **changes))
    return cache.MAGIC + hashlib.sha256(data).digest() + data


def test_a_body_that_breaks_an_invariant_is_not_believed_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, folder = small(tmp_path), tmp_path / "cache"
    first = load_file(path, ENCODER, folder)
    kept = only(folder)
    good = kept.read_bytes()
    plan = dict(zip(Plan.__slots__, pack_plan(first.plan)))
    assert tuple(plan.values()) == pack_plan(unpack_plan(list(plan.values())))

    def ints(*values: int) -> bytes:
        return np.array(values, "<i4").tobytes()

    faults: dict[str, bytes] = {
        "token": ints(*[-5] * first.plan.nodes),
        "parent": ints(*range(first.plan.nodes)),
        "depth": ints(*[0] * first.plan.nodes),
        "end": ints(*range(1, first.plan.nodes + 1)),
        "read_node": ints(5, 900),
        "read_norm": b"\x02" * first.plan.reads,
        "read_end": b"",
        "cand_ptr": ints(0, 9, 6),
        "cand_token": ints(*[7] * len(first.plan.cand_token)),
        "step_ptr": ints(0, *[0] * (len(first.plan.step_ptr) - 2), len(first.plan.step_cand)),
        "step_cand": ints(*[99] * len(first.plan.step_cand)),
        "variant_end": ints(*[0] * len(first.plan.variant_end)),
        "variant_option": ints(*[1] * len(first.plan.variant_option)),
        "option_prompt": ints(0, 2),
        "prompt_norm": b"\x01\x01",
    }
    assert set(faults) == set(Plan.__slots__)
    files = [rewritten(good, plan=tuple({**plan, name: data}.values())) for name, data in faults.items()]
    files += [
        rewritten(good, compiler=99),
        rewritten(good, tokenizer="f" * 64),
        rewritten(good, plan=()),
        rewritten(good, queries=()),
        rewritten(good, floor_keys=b""),
        rewritten(good, queries=(msgspec.structs.replace(first.queries[0], options=(" yes",)),)),
        rewritten(good, heads=(msgspec.structs.replace(first.joins.heads[0], queries=(7,)),)),
        cache.MAGIC + hashlib.sha256(b"\x81\xa1x\x01").digest() + b"\x81\xa1x\x01",
    ]
    for data in files:
        kept.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert same(load_file(path, ENCODER, folder), first)
        assert "are broken" in caplog.text
        assert kept.read_bytes() == good


def test_a_folder_that_cannot_be_written_costs_only_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = small(tmp_path)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert same(load_file(path, ENCODER, tmp_path / "cache"), load_file(path, ENCODER))
    assert "not kept" in caplog.text and "Is it" not in caplog.text


def test_a_write_that_fails_leaves_no_scrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = small(tmp_path), tmp_path / "cache"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    load_file(path, ENCODER, folder)
    assert list(folder.iterdir()) == []


def test_a_body_is_bytes_of_meaning_alone(tmp_path: Path) -> None:
    """The same bytes on every machine: no pickle, no times, no paths."""
    path = small(tmp_path)
    folder = tmp_path / "cache"
    q = load_file(path, ENCODER, folder)
    data = only(folder).read_bytes()
    assert data.startswith(cache.MAGIC)
    assert hashlib.sha256(data[len(cache.MAGIC) + 32 :]).hexdigest() == q.digest == from_body(data[len(cache.MAGIC) + 32 :]).digest
    assert str(tmp_path).encode() not in data
