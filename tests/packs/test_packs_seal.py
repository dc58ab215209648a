"""The seal covers the whole file, where the peer's lock leaves out weights, thresholds and contexts (W32)."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE_PACK, ROOT

from spinf_stream.cli import main
from spinf_stream.packs.document import parse, sealed, sealed_text
from spinf_stream.packs.file import from_doc, load
from spinf_stream.packs.problems import PackError

DOC: dict[str, Any] = json.loads(EXAMPLE_PACK.read_text("utf-8"))
OFFICIAL = sorted((ROOT / "packs").glob("*/0.*.json"))


def weights(doc: dict[str, Any]) -> None:
    raw = bytearray(base64.b64decode(doc["decision"]["micro_layer"]["weights"]))
    raw[3] ^= 0x80  # the sign of the first
    doc["decision"]["micro_layer"]["weights"] = base64.b64encode(raw).decode()


EDITS = {
    "weights": weights,
    "threshold": lambda doc: doc["categories"]["finance"].update(threshold=0.1),
    "context": lambda doc: doc["contexts"].update(wire="{X}!"),
    "critical": lambda doc: doc["decision"].update(critical=[]),
    "order": lambda doc: doc.update(contexts=dict(reversed(doc["contexts"].items()))),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_the_lock_overlooks_is_found_in_a_sealed_file(edit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loose, tight = copy.deepcopy(DOC), sealed(copy.deepcopy(DOC))
    for doc in (loose, tight):
        EDITS[edit](doc)
    pack = from_doc(loose)
    assert pack.micro is not None and pack.micro.locked, "the peer's meaning of its lock"
    with pytest.raises(PackError, match=r"\$\.digest: the file was edited after it was sealed.*packs seal"):
        from_doc(tight)
    path = tmp_path / "p.json"
    path.write_text(json.dumps(tight))
    assert main(["packs", "validate", str(path)]) == 1
    assert main(["packs", "seal", str(path)]) == 0, "by who has looked at it"
    assert main(["packs", "validate", "--strict", str(path)]) == 0
    assert ", sealed" in capsys.readouterr().out.splitlines()[-1]
    assert load(path).digest == pack.digest


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(DOC), json.dumps(DOC, indent=4) + "\n\n", "\ufeff" + json.dumps(DOC),
        json.dumps({"digest": "sha256:old", **DOC}), json.dumps({"note": {"digest": "of something else"}, **DOC, "digest": "x"}, indent=1),
        json.dumps({**DOC, "note": 'a "digest": "in words"', "digest": None}), json.dumps({**DOC, "label": "größer"}, ensure_ascii=False),
    ],
)  # fmt: skip
def test_a_seal_changes_nothing_else_of_a_file(text: str) -> None:
    doc = parse(text.encode(), "pack")
    written = sealed_text(text)
    assert parse(written.encode(), "pack") == sealed(doc)
    assert from_doc(parse(written.encode(), "pack")).digest == from_doc({k: v for k, v in doc.items() if k != "digest"}).digest
    assert sealed_text(written) == written
    if len(lines := text.splitlines()) > 3:  # laid out by hand
        assert {line.rstrip(",") for line in lines[1:-1] if '"digest"' not in line} <= {line.rstrip(",") for line in written.splitlines()}


def test_the_command_seals_what_is_a_pack_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(DOC, indent=2))
    bad.write_text(json.dumps({**DOC, "contexts": {}}))
    before = bad.read_bytes()
    assert main(["packs", "seal", str(bad)]) == 1 and bad.read_bytes() == before
    assert "$.contexts" in capsys.readouterr().err
    assert main(["packs", "show", str(good)]) == 0 and "not sealed" in capsys.readouterr().out
    assert main(["packs", "seal", str(good)]) == 0 and "sealed, demo/newsdesk@0.1.0, sha256:" in capsys.readouterr().out
    once = good.read_bytes()
    assert main(["packs", "seal", str(good)]) == 0 and good.read_bytes() == once and "already" in capsys.readouterr().out
    assert main(["packs", "show", str(good)]) == 0 and "not sealed" not in capsys.readouterr().out
    edited = json.loads(once)
    edited["categories"]["event"]["platt"] = [1.0, 0.1]  # what the lock does cover
    good.write_text(json.dumps(edited))
    assert main(["packs", "seal", str(good)]) == 0
    assert "edited: $.decision.micro_layer.lock" in capsys.readouterr().out, "a seal mends no lock, and says so"


@pytest.mark.parametrize("path", OFFICIAL, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_official_packs_are_sealed_under_the_digest_that_they_had(path: Path) -> None:
    doc = json.loads(path.read_text("utf-8"))
    pack = load(path)
    assert pack.sealed and doc["digest"] == pack.digest
    assert from_doc({k: v for k, v in doc.items() if k != "digest"}).digest == pack.digest
