"""Packs from GitHub, against a loopback server that speaks its interface."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pack_pairs import folder, pack_file
from tiny import make_tiny

from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine.live import open_live
from spinf_stream.errors import UsageError
from spinf_stream.packs import github
from spinf_stream.packs.github import Away, Github, parse_spec
from spinf_stream.packs.problems import PackError
from spinf_stream.packs.sources import open_catalog

COMMIT = "a" * 40
NEXT = "b" * 40


class Hub(NamedTuple):
    url: str
    answers: dict[str, tuple[int, bytes]]
    asked: list[str]
    tokens: list[str | None]


@pytest.fixture
def hub() -> Iterator[Hub]:
    answers: dict[str, tuple[int, bytes]] = {}
    asked: list[str] = []
    tokens: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            tokens.append(self.headers.get("Authorization"))
            code, body = answers.get(self.path, (404, b""))
            self.send_response(code)
            if code == 302:
                self.send_header("Location", body.decode())
                body = b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Hub(f"http://127.0.0.1:{server.server_port}", answers, asked, tokens)
    server.shutdown()
    thread.join()
    server.server_close()


def archive(files: dict[str, bytes], commit: str = COMMIT, links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": commit}) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"owner-repo-{commit[:7]}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(f"owner-repo-{commit[:7]}/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()


def serve(hub: Hub, ref: str, commit: str, data: bytes) -> None:
    hub.answers[f"/repos/o/r/commits/{ref}"] = (200, commit.encode())
    hub.answers[f"/repos/o/r/tarball/{commit}"] = (302, f"{hub.url}/codeload/{commit}".encode())
    hub.answers[f"/codeload/{commit}"] = (200, data)


@pytest.mark.parametrize("bad", ["github:o", "github:o/..", "github:o/r@../x", "github:o/r#../x", "github:o/r@-x", "github:o/r@a b", "gitlab:o/r"])
def test_specs_that_are_refused(bad: str) -> None:
    with pytest.raises(PackError):
        parse_spec(bad)


def test_a_tag_is_pinned_cached_and_needs_no_network_again(hub: Hub, tmp_path: Path) -> None:
    serve(hub, "tags/v1", COMMIT, archive({"sub/a.json": pack_file("o/a"), "code.py": b"x"}, links={"sub/evil.json": "/etc/passwd"}))
    gh = Github(tmp_path, hub.url, token="secret-token")
    catalog = open_catalog(["github:o/r@v1#sub"], tmp_path, github=gh)
    assert catalog.problems == [] and catalog.load("o/a").id == "o/a"
    assert catalog.sources[1].commit == COMMIT and catalog.sources[1].note is None
    assert hub.tokens == ["Bearer secret-token", "Bearer secret-token", None]  # never sent on to where a redirect leads
    asked = len(hub.asked)
    offline = Github(tmp_path, "http://127.0.0.1:9")
    assert open_catalog(["github:o/r@v1#sub"], tmp_path, github=offline).load("o/a").id == "o/a"
    assert len(hub.asked) == asked
    root = tmp_path / "github" / "o" / "r" / COMMIT
    assert sorted(p.name for p in root.rglob("*") if p.is_file()) == [".files.json", "a.json"]


def test_a_worker_starts_and_reloads_offline_from_a_cached_source(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    serve(hub, "tags/v1", COMMIT, archive({"sub/a.json": pack_file("o/a")}))
    settings = Settings(
        model=str(make_tiny(tmp_path / "tiny")), device="cpu", packs=(PackEntry("o/a"),), pack_sources=("github:o/r@v1#sub",), cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip

    def nobody(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    with monkeypatch.context() as offline:
        offline.setattr("socket.create_connection", nobody)
        with pytest.raises(UsageError, match=r"github:o/r@v1#sub"):
            open_live(settings)
    Github(settings.cache() / "packs", hub.url).open(parse_spec("github:o/r@v1#sub"))  # as on an earlier start, of github.com
    asked = len(hub.asked)
    with monkeypatch.context() as offline:
        offline.setattr("socket.create_connection", nobody)
        live = open_live(settings)
        assert [a.pack.pack.id for a in live.asks if a.pack] == ["o/a"]
        assert live.reload(lambda batch: live.engine.collect(live.engine.submit(batch))) == (False, [])
    assert len(hub.asked) == asked and caplog.records == []


def test_a_branch_stays_at_its_commit_until_refreshed(hub: Hub, tmp_path: Path) -> None:
    serve(hub, "heads/main", COMMIT, archive({"a.json": pack_file("o/a", "1")}))
    gh = Github(tmp_path, hub.url)
    catalog = open_catalog(["github:o/r@main"], tmp_path, github=gh)
    assert catalog.load("o/a").version == "1" and "a branch, held at aaaa" in str(catalog.sources[1].note)
    serve(hub, "heads/main", NEXT, archive({"a.json": pack_file("o/a", "2")}, NEXT))
    assert open_catalog(["github:o/r@main"], tmp_path, github=gh).load("o/a").version == "1"
    assert open_catalog(["github:o/r@main"], tmp_path, refresh=True, github=gh).load("o/a").version == "2"


def test_a_commit_is_not_resolved(hub: Hub, tmp_path: Path) -> None:
    serve(hub, "unused", COMMIT, archive({"a.json": pack_file("o/a")}))
    assert Github(tmp_path, hub.url).open(parse_spec(f"github:o/r@{COMMIT}")).commit == COMMIT
    assert not any("/commits/" in path for path in hub.asked)


def test_a_changed_cache_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    serve(hub, "tags/v1", COMMIT, archive({"a.json": pack_file("o/a")}))
    gh = Github(tmp_path, hub.url)
    root = gh.open(parse_spec("github:o/r@v1")).root
    for spoil in (
        lambda: (root / "a.json").write_bytes(b"{}"),
        lambda: (root / "planted.json").write_bytes(pack_file("o/b")),
        lambda: ((root / "a.json").unlink(), (root / "a.json").symlink_to("/etc/hostname")),
        lambda: (root / ".files.json").write_text("[]"),
    ):
        spoil()
        assert json.loads((gh.open(parse_spec("github:o/r@v1")).root / "a.json").read_bytes())["pack"] == "o/a"
        assert not (root / "planted.json").exists()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (archive({"../../evil.json": b"{}"}), "name that is not allowed"),
        (archive({"a.json": b"{}"}, NEXT), "of another commit"),
        (archive({"a.json": b"{}"})[:60], "cannot be unpacked"),
        (b"no gzip", "cannot be unpacked"),
        (gzip.compress(b"\0" * 2**20), "no file that a pack"),
    ],
)  # fmt: skip
def test_archives_that_are_refused(hub: Hub, tmp_path: Path, data: bytes, text: str) -> None:
    serve(hub, "tags/v1", COMMIT, data)
    with pytest.raises(PackError, match=text):
        Github(tmp_path, hub.url).open(parse_spec("github:o/r@v1"))
    assert not (tmp_path / "evil.json").exists()
    assert [p.name for p in (tmp_path / "github" / "o" / "r").iterdir()] == ["refs.json"]


def test_sizes_are_capped(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(hub, "tags/v1", COMMIT, archive({f"{i}.json": b" " * 2**16 for i in range(20)}))
    for name, value, text in (("LARGEST_UNPACKED", 2**20, "unpacks to more"), ("LARGEST_KEPT", 2**20, "more text"),
                              ("MOST_MEMBERS", 5, "too many files"), ("LARGEST_ARCHIVE", 100, "sends more than")):  # fmt: skip
        with monkeypatch.context() as m:
            m.setattr(github, name, value)
            with pytest.raises(PackError, match=text):
                Github(tmp_path, hub.url).open(parse_spec("github:o/r@v1"))


def test_a_source_that_is_away_costs_its_own_packs_alone(hub: Hub, tmp_path: Path) -> None:
    mine = folder(tmp_path / "mine", {"a.json": pack_file("my/a")})
    catalog = open_catalog([str(mine), "github:o/r@v1"], tmp_path, github=Github(tmp_path, "http://127.0.0.1:9"))
    assert catalog.load("my/a").id == "my/a"
    with pytest.raises(PackError, match="not in the cache, and the server cannot be reached"):
        catalog.load("o/a")
    with pytest.raises(PackError, match="no tag or branch 'v1'"):
        Github(tmp_path, hub.url).open(parse_spec("github:o/r@v1"))
    hub.answers["/repos/o/r/commits/tags/v1"] = (403, b"")
    with pytest.raises(Away, match="GITHUB_TOKEN"):
        Github(tmp_path, hub.url).open(parse_spec("github:o/r@v1"))
