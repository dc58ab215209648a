"""Input and output files: what is theirs to blame, and what is not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spinf_stream.errors import UsageError
from spinf_stream.files import sink, source


def test_a_fault_of_the_work_between_is_not_the_files(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n\n b \r\nc")
    with pytest.raises(PermissionError, match="elsewhere"), source(str(path)) as (found, size), sink(str(tmp_path / "out")):
        assert size == 9 and next(found)[1] == b"a"
        raise PermissionError(13, "Permission denied", "elsewhere")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]


def test_lines_keep_their_numbers_over_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\r\na\n\n \t\n b \r\nc")
    with source(str(path)) as (found, _):
        assert list(found) == [(2, b"a", 4), (5, b" b ", 13), (6, b"c", 14)]


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=rf"{name}: (No such file|Is a directory)"), source(str(tmp_path / name)):
        pass


@pytest.mark.parametrize("name", ["no/such/folder", "folder"])
def test_what_cannot_be_made_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=rf"{name}: "), sink(str(tmp_path / name)):
        pass


def test_a_full_disk_is_the_outputs_fault() -> None:
    with pytest.raises(UsageError, match="/dev/full: No space left"), sink("/dev/full") as f:
        f.write(b"x" * 100_000)
    with pytest.raises(UsageError, match="/dev/full: No space left"), sink("/dev/full") as f:
        f.write(b"x")  # no more than a buffer: it is written when the file closes


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with sink(str(tmp_path / "pipe")) as f:
        f.write(b"x\n")
    reader.join(5)
    assert got == [b"x\n"]
