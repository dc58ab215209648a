"""`spinf-stream questions check`: the table, the warnings, the problems, the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from questions_bpe import ENCODER

from spinf_stream.cli import main

GOOD = """
[[queries]]
id = "rate"
template = "\\n\\nHow bad, 1 to 10?\\nAnswer:{?}"
options = [" 1", " 2", " 10"]

[[queries]]
id = "about"
template = "\\n\\nIs it about {F}?\\nAnswer:{?}"
options = [" yes", " no"]
combinations = "all"
values.F = ["oil", "gas"]
ends = true
empty_floor = false

[[queries]]
id = "who"
template = '\\n\\nThe company is "{*}"'
"""


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    path = tmp_path / "tokenizer.json"
    path.write_text(ENCODER._tok.to_str())
    return str(path)


def check(path: Path, tokenizer: str) -> int:
    return main(["questions", "check", str(path), "--tokenizer", tokenizer])


def test_a_good_file(tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.toml"
    path.write_text(GOOD)
    assert check(path, tokenizer) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert err == ""
    assert lines[0] == "query prompts options spellings tokens"
    assert lines[1].startswith("rate 1 3 5 ") and lines[1].endswith("floor, any case")
    assert lines[2].startswith("about 2 2 8 ") and lines[2].endswith("any case, ends")
    assert lines[3].startswith("who 1 ") and lines[3].endswith("{*} searched, up to 16 tokens")
    assert lines[4] == "warning: query 'rate': option_prefix: options[0] is also the beginning of options[2]: set ends = true to tell them apart"
    assert lines[6].startswith("2 scored queries, 3 prompts, ") and lines[6].endswith("1 slot query")
    shared, alone = [int(w) for w in lines[7].split() if w.isdigit()][:2]
    assert shared < alone
    assert len(lines[8].removeprefix("digest ")) == 64


def test_a_broken_file_shows_every_problem_and_no_text(tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.toml"
    path.write_text(GOOD.replace('" 2"', '" 1 "').replace("ends = true", "endz = true").replace("The company is", "The {company is"))
    assert check(path, tokenizer) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["$.queries[0].options[1]", "$.queries[1].endz", "$.queries[2].template", str(path)]
    assert "did you mean ends?" in err and "3 problems" in err
    assert "How bad" not in err and "company" not in err


@pytest.mark.parametrize(("name", "tokens"), [("none.toml", True), ("q.toml", False)])
def test_a_missing_file_is_one_line(name: str, tokens: bool, tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.toml").write_text(GOOD)
    assert check(tmp_path / name, tokenizer if tokens else str(tmp_path / "none.json")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No such file" in line and "none" in line
