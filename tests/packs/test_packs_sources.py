"""Folders, manifests and the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pack_pairs import folder, pack_file

from spinf_stream.packs.manifest import confined, list_folder, newness
from spinf_stream.packs.problems import PackError
from spinf_stream.packs.sources import open_catalog


def manifest(*packs: dict[str, Any], namespace: str = "my") -> bytes:
    return json.dumps({"format": 1, "namespace": namespace, "packs": packs}).encode()


def entry(name: str, *versions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "name": "N", "versions": list(versions), **more}


def test_a_folder_without_a_manifest_lists_its_packs_newest_first(tmp_path: Path) -> None:
    folder(tmp_path, {
        "a.json": pack_file("my/a", "0.9.0"), "deep/b.json": pack_file("my/a", "0.10.0"), "c.json": pack_file("my/a", "0.10.0-rc1"),
        "notes.json": b'{"pack": "just a word"}', "broken.json": b'{"pack": ', "other.json": b"[1]", "text.md": b"x",
    })  # fmt: skip
    listing = list_folder(tmp_path, "here")
    assert [v.version for v in listing.versions] == ["0.10.0-rc1", "0.10.0", "0.9.0"]
    assert [p.path for p in listing.problems] == ["broken.json"]


def test_versions_of_words_and_numbers_compare() -> None:
    """The peer raises TypeError here."""
    assert sorted(["1.0", "1.x", "1.10", "1.2", "x", "1.0-beta"], key=newness) == ["x", "1.x", "1.0", "1.0-beta", "1.2", "1.10"]


def test_nothing_outside_the_folder_is_opened(tmp_path: Path) -> None:
    """W31."""
    outside = folder(tmp_path / "outside", {"p.json": pack_file("my/p")})
    inside = folder(tmp_path / "in", {"q.json": pack_file("my/q")})
    (inside / "link.json").symlink_to(outside / "p.json")
    (inside / "linked").symlink_to(outside)
    for name in ("../outside/p.json", str(outside / "p.json"), "linked/p.json", "link.json", "a/../../outside/p.json", "..\\outside", "", "a\0b"):
        with pytest.raises(ValueError):
            confined(inside, name)
    listing = list_folder(inside, "here")
    assert [v.id for v in listing.versions] == ["my/q"]
    assert any("leads outside" in p.message for p in listing.problems)
    (inside / "prompt-packs.json").write_bytes(manifest(entry("my/p", {"version": "1", "file": "../outside/p.json", "model": ""})))
    listing = list_folder(inside, "here")
    assert listing.versions == [] and [p.path for p in listing.problems] == ["$.packs[0].versions[0].file"]


def test_a_manifest_is_checked_entry_by_entry(tmp_path: Path) -> None:
    good = {"version": "1", "file": "a.json", "model": ""}
    folder(tmp_path, {
        "a.json": pack_file("my/a"),
        "prompt-packs.json": manifest(
            entry("my/a", good, {"version": "2", "status": "coming_soon"}, {"version": "1", "file": "a.json", "model": ""}, {"version": 3}),
            entry("other/b", good), entry("my/a", good), entry("my/c", good, readme="no.md"), {"id": "my/d"}, 7,
            entry("my/e", good, media=["smell"]),
        ),
    })  # fmt: skip
    listing = list_folder(tmp_path, "here")
    assert [(v.id, v.version) for v in listing.versions] == [("my/a", "1")]
    assert {p.path for p in listing.problems} >= {
        "$.packs[0].versions[2].version", "$.packs[0].versions[3].version", "$.packs[0].versions[3].file", "$.packs[1].id", "$.packs[2].id",
        "$.packs[3].readme", "$.packs[4].name", "$.packs[5]", "$.packs[6].media",
    }  # fmt: skip


def test_a_listed_file_must_be_what_the_list_says(tmp_path: Path) -> None:
    folder(tmp_path, {
        "a.json": pack_file("my/z", "9"),
        "prompt-packs.json": manifest(entry("my/a", {"version": "1", "file": "a.json", "model": "m"}, parameters=["brand"])),
    })  # fmt: skip
    with pytest.raises(PackError) as e:
        open_catalog([str(tmp_path)], tmp_path).load("my/a")
    assert [p.path for p in e.value.problems] == ["$.pack", "$.version", "$.model", "$.parameters"]


# the catalog


def test_default_version_and_faults_of_the_catalog(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {
        "a1.json": pack_file("my/a", "1"), "a2.json": pack_file("my/a", "2"), "b.json": pack_file("my/b"), "o.json": pack_file("spinf-stream/x"),
        "prompt-packs.json": b"",
    })  # fmt: skip
    (one / "prompt-packs.json").unlink()
    two = folder(tmp_path / "two", {"b.json": pack_file("my/b", "7")})
    catalog = open_catalog([str(one), str(two), str(tmp_path / "none")], tmp_path)
    assert catalog.load("my/a").version == "2"
    assert catalog.load("my/a", "1").version == "1"
    for name, version, text in (("my/a", "3", "there is 2, 1"), ("my/b", None, "two sources"), ("my/none", None, "none of the sources"),
                                ("spinf-stream/x", None, "belong to the official")):  # fmt: skip
        with pytest.raises(PackError, match=text):
            catalog.load(name, version)


def test_deprecated_versions_are_not_the_default(tmp_path: Path) -> None:
    folder(tmp_path, {
        "a1.json": pack_file("my/a", "1"), "a2.json": pack_file("my/a", "2"),
        "prompt-packs.json": manifest(entry(
            "my/a", {"version": "2", "file": "a2.json", "model": "", "status": "deprecated"}, {"version": "1", "file": "a1.json", "model": ""},
        )),
    })  # fmt: skip
    assert open_catalog([str(tmp_path)], tmp_path).find("my/a").version == "1"


def test_an_official_pack_may_be_named_without_its_namespace(tmp_path: Path) -> None:
    official = open_catalog([], tmp_path)
    assert official.find("news").id == official.full("news") == "spinf-stream/news"
    own = open_catalog([str(folder(tmp_path / "own", {"n.json": pack_file("news"), "m.json": pack_file("my/metals")}))], tmp_path)
    assert own.find("news").id == own.full("news") == "news"  # somebody's own pack of that name is meant
    with pytest.raises(PackError, match=r"did you mean my/metals\?"):
        own.find("my/metal")
