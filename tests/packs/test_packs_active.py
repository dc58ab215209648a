"""Packs bound by the settings, and their exchange in a running worker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pack_pairs import pairs

from spinf_stream.config import PackEntry
from spinf_stream.packs.active import activate_all, reload
from spinf_stream.packs.problems import PackError, ParameterError
from spinf_stream.packs.sources import Catalog, open_catalog
from spinf_stream.questions.compile import build


class Letters:
    """One token a character."""

    digest = "letters"
    vocab = 1 << 21
    bos = ()

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(t) for t in texts]


def write(folder: Path, name: str, version: str = "1", contexts: dict[str, str] | None = None, **parameters: dict[str, str]) -> None:
    doc = pairs(name, ["oil", "gas"], version)
    doc["contexts"] = contexts or {"plain": "{X}", "post": "Post by {who}: {X}"}
    doc["parameters"] = parameters or {"who": {"default": "someone"}}
    doc["scoring"]["case_insensitive"] = False
    (folder / f"{name.replace('/', '-')}.json").write_text(json.dumps(doc))


def catalog(folder: Path) -> Catalog:
    return open_catalog([str(folder)], folder)


def test_entries_are_bound_and_parameters_layered(tmp_path: Path) -> None:
    write(tmp_path, "my/a")
    write(tmp_path, "my/b")
    a, b = activate_all(
        [PackEntry("my/a", context="post", parameters={"who": "me"}), PackEntry("my/b")], catalog(tmp_path), ("demo",)
    )  # fmt: skip
    assert a.presentation(None) == ("Post by me: ", "")
    assert a.presentation({"who": "you", "brand": "for another pack"}) == ("Post by you: ", "")
    assert b.presentation(None) == ("", "")


def test_a_required_parameter_comes_with_the_article(tmp_path: Path) -> None:
    write(tmp_path, "my/a", contexts={"main": "{brand}: {X}"}, brand={})
    (a,) = activate_all([PackEntry("my/a")], catalog(tmp_path), None)
    assert a.presentation({"brand": "Acme"}) == ("Acme: ", "")
    with pytest.raises(ParameterError):
        a.presentation(None)


def test_all_faults_of_the_settings_at_once(tmp_path: Path) -> None:
    write(tmp_path, "my/a")
    entries = [
        PackEntry("my/none"), PackEntry("my/a", "9"), PackEntry("my/a", context="none"), PackEntry("my/a", parameters={"brand": 1}),
        PackEntry("my/a"), PackEntry("my/a", "1"),
    ]  # fmt: skip
    with pytest.raises(PackError) as e:
        activate_all(entries, catalog(tmp_path), None)
    assert len(e.value.problems) == 5


def test_a_compiled_pack_has_the_packs_own_order_and_case_rule(tmp_path: Path) -> None:
    write(tmp_path, "my/a")
    (a,) = activate_all([PackEntry("my/a")], catalog(tmp_path), None)
    questions = build([a.source()], Letters())
    assert questions.plan.options == a.pack.options
    at = 0
    for q in questions.queries:
        for values in q.values:
            prompt = a.pack.prompts[at]
            assert (q.pack, q.context, q.id, values, q.options) == ("my/a", "plain", prompt.query, prompt.values, prompt.options)
            at += 1
        assert not q.case_insensitive
    assert at == len(a.pack.prompts)
    assert a.evaluator.evaluate(np.full(a.pack.options, 0.5), np.zeros(a.pack.options))["calibrated"] is False


def test_reload_exchanges_what_changed_and_keeps_what_fails(tmp_path: Path) -> None:
    write(tmp_path, "my/a")
    write(tmp_path, "my/b")
    entries = [PackEntry("my/a"), PackEntry("my/b")]
    old = activate_all(entries, catalog(tmp_path), None)
    same = reload(old, entries, catalog(tmp_path), None)
    assert not same.changed and same.kept == []

    write(tmp_path, "my/a", "2")
    (tmp_path / "my-b.json").write_text('{"pack": "my/b", "version": "2", "scoring": {}}')
    new = reload(old, [*entries, PackEntry("my/c")], catalog(tmp_path), None)
    assert [x.pack.label for x in new.active] == ["my/a@2", "my/b@1"] and new.changed
    assert "my/b@1 stays" in new.kept[0] and "it is not asked" in new.kept[1]

    gone = reload(new.active, [PackEntry("my/a")], catalog(tmp_path), None)
    assert [x.pack.label for x in gone.active] == ["my/a@2"] and gone.changed
