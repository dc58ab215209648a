"""The Grafana board, without Grafana: it resolves its datasource, asks for metrics that exist, explains every panel."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import services as processes
import yaml
from ops_files import BOARD, COMPOSE, board, exported, metrics_in, panels, queries, rules

PROVISIONING = COMPOSE / "grafana" / "provisioning"
ROWS = ["Is it fine?", "Flow", "Batching", "Time", "Trouble", "Hardware"]


def test_datasources_resolve() -> None:
    """File provisioning never fills in an __inputs placeholder: panels name a variable whose default is the fixed uid."""
    assert "__inputs" not in board() and "${DS_" not in BOARD.read_text("utf-8")
    uids = {d["uid"] for d in yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"]}
    variable = next(v for v in board()["templating"]["list"] if v["type"] == "datasource")
    assert variable["name"] == "datasource" and variable["current"]["value"] in uids
    named = re.findall(r'"uid": "([^"]*)"', json.dumps([board()["panels"], board()["annotations"], board()["templating"]]))
    assert set(named) == {"${datasource}"}


def test_six_rows_and_at_most_thirty_panels() -> None:
    assert [p["title"] for p in board()["panels"] if p["type"] == "row"] == ROWS
    assert 20 <= len(panels()) <= 30
    ids = [p["id"] for p in board()["panels"]]
    titles = [p["title"] for p in panels()]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for p in board()["panels"]:
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken and g["x"] + g["w"] <= 24, p["title"]
        taken |= cells


def test_each_panel_has_unit_description_and_words_for_no_data() -> None:
    for p in panels():
        defaults = p["fieldConfig"]["defaults"]
        assert defaults["unit"] and defaults["noValue"], p["title"]
        assert len(p["description"]) > 30, p["title"]
        assert re.search(r"(spinf_stream|process)_\w+", p["description"]), f"{p['title']} does not name its metric"
        assert all(t["legendFormat"] or len(p["targets"]) == 1 for t in p["targets"]), p["title"]


def test_every_metric_is_in_a_worker_s_scrape() -> None:
    recorded = {r["record"] for r in rules() if "record" in r}
    for q in queries():
        assert metrics_in(q.expr) and metrics_in(q.expr) <= exported() | recorded | {"up"}, q


# of section 5.2 of the streaming reference, what a board is asked for; where a name ends is a matter of its type
WANTED = {
    "records_consumed_total", "records_total", "questions_scored_total", "tokens_total", "batch_tokens", "batch_fill_ratio", "batch_closed_total",
    "stage_seconds", "end_to_end_seconds", "lag_records", "lag_seconds", "inflight_records", "inflight_tokens", "paused", "event_loop_stall_seconds",
    "rebalances_total", "revoke_drain_seconds", "dead_letters_total", "dedup_requests_total", "dedup_seconds", "engine_passes_total", "engine_oom_total",
    "nonfinite_scores_total", "producer_resets_total", "token_budget_effective", "floors", "score_drift_psi", "engine_busy_seconds_total",
}  # fmt: skip


def test_what_people_ask_for_is_on_the_board() -> None:
    shown = set().union(*(metrics_in(q.expr) for q in queries() if q.where.startswith("panel ")))
    families = {re.sub("_(bucket|sum|count)$", "", name).removeprefix("spinf_stream_") for name in shown}
    assert WANTED - families == set()


def test_descriptions_name_metrics_that_exist() -> None:
    families = {n.removesuffix(end) for n in exported() for end in ("", "_bucket")}
    for p in panels():
        assert set(re.findall(r"(?:spinf_stream|process)_\w+", p["description"])) <= families, p["title"]


def test_variables_are_defined_and_no_other_is_used() -> None:
    defined = {v["name"] for v in board()["templating"]["list"]} | {"__rate_interval", "__range"}
    used = set(re.findall(r"\$\{?(\w+)", " ".join(t["expr"] for p in panels() for t in p["targets"])))
    assert used <= defined
    slo = next(v for v in board()["templating"]["list"] if v["name"] == "slo")
    edges = set(re.findall(r'end_to_end_seconds_bucket\{le="([^"]+)"\}', scrape()))
    assert set(slo["query"].split(",")) <= edges


def scrape() -> str:
    from spinf_stream.metrics import Metrics

    return Metrics(2048).text().decode()


def test_expressions_parse(tmp_path: Path) -> None:
    """promtool parses them as the rules of a generated file; one that does not parse is named by its place."""
    processes.need("promtool", "prometheus")
    made = [{"record": f"q{i}", "expr": q.expr, "labels": {"place": re.sub(r"\W", "_", q.where)}} for i, q in enumerate(queries())]
    (tmp_path / "q.yml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": made}]}), "utf-8")
    done = subprocess.run(["promtool", "check", "rules", "q.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["datasources", "dashboards"])
def test_provisioning_is_one_file_a_folder(folder: str) -> None:
    assert [p.suffix for p in (PROVISIONING / folder).iterdir()] == [".yml"]
