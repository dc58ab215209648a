"""The Grafana board as a PNG, from any Prometheus: `make board PROMETHEUS=http://127.0.0.1:9090`.

Reads the board's own JSON and asks its own queries, so that a person (or a review) can look at it where no Grafana is.
Stats are tiles, heatmaps are drawn by bucket, everything else is lines; a panel without data says the board's own words.
Needs matplotlib (`pip install "spinf-stream[report]"`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

BOARD = Path(__file__).parent / "grafana" / "dashboards" / "spinf-stream.json"
POINTS = 120
CELL = (0.62, 0.42)  # inches of one grid cell
_LINES = ("#1f6f8b", "#b0413e", "#5a8f3c", "#8a5aa8", "#c98a1b", "#4d5b66", "#2fa3a0", "#d1739c")
_FAINT = "#9aa5ab"


class Line(NamedTuple):
    name: str
    labels: dict[str, str]
    at: list[float]  # minutes before the end, negative
    values: list[float]


def main() -> int:
    p = argparse.ArgumentParser(description="Draw the board into a PNG.", allow_abbrev=False)
    p.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    p.add_argument("--minutes", type=float, default=30.0, metavar="N", help="how far back (default 30)")
    p.add_argument("--out", type=Path, default=Path("board.png"), metavar="FILE")
    args = p.parse_args()
    try:
        drawn = draw(json.loads(BOARD.read_text("utf-8")), args.prometheus.rstrip("/"), args.minutes, args.out)
    except OSError as e:
        print(f"{args.prometheus}: {e}", file=sys.stderr)
        return 3
    print(f"{args.out}: {drawn[0]} panels, {drawn[1]} of them without data")
    return 0


def draw(board: dict[str, Any], url: str, minutes: float, out: Path) -> tuple[int, int]:
    """(panels, panels without data). Raises OSError when Prometheus does not answer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    width, height = 24 * CELL[0], rows * CELL[1]
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    count = empty = 0
    for panel in board["panels"]:
        g = panel["gridPos"]
        top, left = 1 - g["y"] / rows, g["x"] / 24
        if panel["type"] == "row":
            figure.text(0.006, top - 0.7 / rows, panel["title"], fontsize=11, fontweight="bold", va="center")
            continue
        lines = [line for t in panel["targets"] for line in ask(url, board, t, minutes)]
        pad = (0.9, 0.5) if panel["type"] == "stat" else (1.1, 1.2)  # cells at the left and below, for the axes
        box = (left + pad[0] / 24 * 0.5, top - (g["h"] - pad[1]) / rows, (g["w"] - pad[0]) / 24, (g["h"] - pad[1] - 1.0) / rows)
        ax = figure.add_axes(box)
        figure.text(box[0], top - 0.6 / rows, panel["title"], fontsize=7.5, va="center")
        {"stat": _stat, "heatmap": _heatmap}.get(panel["type"], _graph)(ax, panel, lines)
        count += 1
        empty += not lines
    figure.savefig(out, dpi=100, metadata={"Software": None})
    return count, empty


def ask(url: str, board: dict[str, Any], target: dict[str, Any], minutes: float) -> list[Line]:
    end = time.time()
    step = max(1, round(60 * minutes / POINTS))
    expr = filled(board, target["expr"], step, minutes)
    query = urllib.parse.urlencode({"query": expr, "start": end - 60 * minutes, "end": end, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=30) as answer:
        found = json.load(answer)["data"]["result"]
    lines = []
    for series in found:
        points = [((float(at) - end) / 60, float(v)) for at, v in series["values"]]
        points = [p for p in points if math.isfinite(p[1])]
        if points:
            own: dict[str, str] = series["metric"]
            name = re.sub(r"\{\{(\w+)\}\}", lambda m, own=own: own.get(m[1], ""), target["legendFormat"])  # type: ignore[misc]
            lines.append(Line(name, own, [p[0] for p in points], [p[1] for p in points]))
    return lines


def filled(board: dict[str, Any], expr: str, step: int, minutes: float) -> str:
    """The board's variables at their defaults; `$__rate_interval` as Grafana has it, at least four scrapes."""
    values = {"__rate_interval": f"{max(4 * step, 60)}s", "__range": f"{round(60 * minutes)}s"}
    for v in board["templating"]["list"]:
        values[v["name"]] = v.get("allValue") or v["current"]["value"]
    return re.sub(r"\$(\w+)", lambda m: values[m[1]], expr)


def shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}" + ("/s" if unit == "reqps" else "")


def _stat(ax: Any, panel: dict[str, Any], lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    words = {k: v["text"] for m in defaults.get("mappings", []) for k, v in m["options"].items()}
    said = [(line.name, words.get(f"{line.values[-1]:g}", shown(line.values[-1], defaults["unit"]))) for line in lines]
    text = "   ".join(f"{name} {value}" if len(lines) > 1 else value for name, value in said)
    steps = defaults.get("thresholds", {}).get("steps", [])
    passed = [s["color"] for s in steps if lines and (s["value"] is None or lines[0].values[-1] >= s["value"])]
    color = {"green": "#5a8f3c", "orange": "#c98a1b", "red": "#b0413e"}.get(passed[-1] if passed else "", "#22292f")
    ax.set_axis_off()
    ax.text(0, 0.45, text or defaults["noValue"], fontsize=9 if len(lines) > 1 else 15 if lines else 7, color=color if lines else _FAINT, va="center", transform=ax.transAxes)


def _graph(ax: Any, panel: dict[str, Any], lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = "stacking" in defaults["custom"]
    _axes(ax, defaults, lines)
    if stacked and lines:
        at = sorted({t for line in lines for t in line.at})
        ax.stackplot(at, *[[dict(zip(line.at, line.values)).get(t, 0.0) for t in at] for line in lines], labels=[x.name for x in lines], colors=_LINES, alpha=0.7)
    else:
        for i, line in enumerate(lines):
            ax.plot(line.at, line.values, color=_LINES[i % len(_LINES)], linewidth=1, label=line.name)
    if lines:
        handles = [h for h, name in zip(*ax.get_legend_handles_labels()) if any(any(x.values) for x in lines if x.name == name)]
        if handles:  # lines that stay at 0 are drawn and not named
            ax.legend(handles=handles, fontsize=5, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.07), ncols=4, columnspacing=1, handlelength=1)
        highest = sum(max(x.values) for x in lines) if stacked else max(max(x.values) for x in lines)
        ax.set_ylim(min(0.0, *(min(x.values) for x in lines)), defaults.get("max", 1.1 * highest or 1.0))


def _heatmap(ax: Any, panel: dict[str, Any], lines: list[Line]) -> None:
    """Cumulative buckets become counts of their own; a row a bucket, darker where more fell into it."""
    _axes(ax, panel["fieldConfig"]["defaults"], lines)
    edges = sorted({float(x.labels["le"]) for x in lines})
    at = sorted({t for x in lines for t in x.at})
    if not edges:
        return
    table = {float(x.labels["le"]): dict(zip(x.at, x.values)) for x in lines}
    rows = [[table[e].get(t, 0.0) - (table[edges[i - 1]].get(t, 0.0) if i else 0.0) for t in at] for i, e in enumerate(edges)]
    ax.pcolormesh([*at, 0.0], range(len(edges) + 1), [[max(0.0, v) for v in row] for row in rows], cmap="GnBu", vmin=0)
    ax.set_yticks([i + 1 for i in range(0, len(edges), 3)], [f"{edges[i]:g}" for i in range(0, len(edges), 3)])


def _axes(ax: Any, defaults: dict[str, Any], lines: list[Line]) -> None:
    from matplotlib.ticker import FuncFormatter

    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=5, colors="#4d5b66", length=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: shown(v, defaults["unit"])))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} min"))
    if not lines:
        ax.set(xticks=[], yticks=[])
        ax.text(0.5, 0.5, defaults["noValue"], fontsize=6, color=_FAINT, ha="center", va="center", transform=ax.transAxes, wrap=True)


if __name__ == "__main__":
    sys.exit(main())
