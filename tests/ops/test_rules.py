"""Recording rules and alerts: well formed, tested by promtool, each with a runbook page, over metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import services
import yaml
from ops_files import COMPOSE, RULES, alerts, exported, metrics_in, rules

from spinf_stream.cli import COMMANDS
from spinf_stream.records import Reason

WANTED = {
    "WorkerDown", "DependencyDown", "StuckPartition", "NothingScored", "LagGrowing", "LagHigh", "OffsetWentBack",
    "DeadLetterRatio", "ScoresTooLarge", "RebalanceStorm", "LoopStall", "DedupDown", "LowFill", "EngineOutOfMemory",
    "NonFiniteScores", "ScoreDrift",
}  # fmt: skip


def promtool(*args: str, cwd: Path = RULES.parent) -> str:
    services.need("promtool", "prometheus")
    done = subprocess.run(["promtool", *args], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_files() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "rules.yml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_unit_tests_of_the_rules() -> None:
    promtool("test", "rules", "rules_test.yml")


def test_every_alert_has_a_unit_test() -> None:
    tested = {t["name"] for t in yaml.safe_load((RULES.parent / "rules_test.yml").read_text("utf-8"))["tests"]}
    assert {a["alert"] for a in alerts()} <= tested


@pytest.mark.parametrize("alert", ["StuckPartition", "ScoreDrift", "LowFill"])
def test_unit_tests_notice_a_shorter_wait(alert: str, tmp_path: Path) -> None:
    """The unit tests hold the times: with half the `for` they fail."""
    text = RULES.read_text("utf-8")
    head, found, tail = text.partition(f"- alert: {alert}\n")
    shorter = re.sub(r"for: (\d+)m", lambda m: f"for: {int(m[1]) // 2 or 1}m", tail, count=1)
    assert found and shorter != tail
    (tmp_path / "rules.yml").write_text(head + found + shorter, "utf-8")
    shutil.copy(RULES.parent / "rules_test.yml", tmp_path)
    with pytest.raises(AssertionError, match=alert):
        promtool("test", "rules", "rules_test.yml", cwd=tmp_path)


def test_alerts_say_what_a_reader_needs() -> None:
    named = [a["alert"] for a in alerts()]
    assert set(named) >= WANTED and len(named) == len(set(named))
    for a in alerts():
        assert re.fullmatch(r"\d+[smh]", a["for"]), a["alert"]
        assert a["labels"]["severity"] in ("page", "warning"), a["alert"]
        assert a["annotations"]["summary"], a["alert"]
        assert a["annotations"]["runbook_url"] == f"{{{{ externalURL }}}}/consoles/{a['alert']}.md", a["alert"]


def test_each_runbook_page_belongs_to_an_alert_and_is_whole() -> None:
    pages = {p.stem: p.read_text("utf-8") for p in (COMPOSE / "runbook").glob("*.md")}
    assert pages.keys() == {a["alert"] for a in alerts()}
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n") and "{{" not in text, f"{name}: Prometheus serves it as a template"
        assert re.findall(r"^## (.+)$", text, re.M) == ["What it means", "Look first", "Do"], name


def test_runbook_pages_name_what_exists() -> None:
    for page in (COMPOSE / "runbook").glob("*.md"):
        text = page.read_text("utf-8")
        assert metrics_in(" ".join(re.findall(r"`([^`]*)`", text))) - {"up"} <= exported() | histograms(), page.name
        assert set(re.findall(r"`spinf-stream (\w+)", text)) <= COMMANDS.keys(), page.name
        assert set(re.findall(r"--reason ([a-z_]+)", text)) <= set(get_args(Reason)), page.name


def histograms() -> set[str]:
    """Families as people write them, without _bucket, _sum, _count."""
    return {name.removesuffix("_bucket") for name in exported() if name.endswith("_bucket")}


def test_rules_ask_for_metrics_that_exist() -> None:
    recorded = {r["record"] for r in rules() if "record" in r}
    for r in rules():
        assert metrics_in(r["expr"]) <= exported() | recorded | {"up"}, r
