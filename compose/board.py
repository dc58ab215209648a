"""The Grafana board as a PNG, from any Prometheus: `make board PROMETHEUS=http://127.0.0.1:9090`.

Reads the board's own JSON and asks its own queries, so that a person (or a review) can look at it where no Grafana is.
Stats are tiles, heatmaps are drawn by bucket, everything else is lines, on two axes where the board has two; a panel without
data says the board's own words.
Needs matplotlib (`pip install "spinf-stream[report]"`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import textwrap
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

BOARD = Path(__file__).parent / "grafana" / "dashboards" / "spinf-stream.json"
POINTS = 120
CELL = (0.66, 0.46)  # inches of one grid cell
HEAD = 2  # rows of cells above the board: which Prometheus, and when
_LINES = ("#1f6f8b", "#b0413e", "#5a8f3c", "#8a5aa8", "#c98a1b", "#4d5b66", "#2fa3a0", "#d1739c")
_COLORS = {"green": "#3d7a23", "orange": "#b57309", "red": "#b0413e"}
_SOFT = "#5b666d"


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

    rows = HEAD + max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    figure = Figure(figsize=(24 * CELL[0], rows * CELL[1]), facecolor="white")
    FigureCanvasAgg(figure)
    until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    figure.text(0.006, 1 - 1 / rows, f"{board['title']}   {url}   {minutes:g} min until {until}", fontsize=10, color=_SOFT, va="center")
    count = empty = 0
    for panel in board["panels"]:
        g = panel["gridPos"]
        top, left = 1 - (HEAD + g["y"]) / rows, g["x"] / 24
        if panel["type"] == "row":
            figure.text(0.006, top - 0.55 / rows, panel["title"], fontsize=12, fontweight="bold", va="center")
            continue
        lines = [line for t in panel["targets"] for line in ask(url, board, t, minutes)]
        pad = (0.4, 0.3) if panel["type"] == "stat" else (1.3, 2.0)  # cells at the left and below, for axes and names
        right = 0.9 if _right(panel) else 0.2
        box = (left + pad[0] / 24, top - (g["h"] - pad[1]) / rows, (g["w"] - pad[0] - right) / 24, (g["h"] - pad[1] - 1.0) / rows)
        ax = figure.add_axes(box)
        figure.text(box[0], top - 0.6 / rows, panel["title"], fontsize=9, va="center")
        {"stat": _stat, "heatmap": _heatmap}.get(panel["type"], _graph)(ax, panel, lines, minutes)
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
    if unit == "bytes":
        return f"{value / 2**30:.3g} GiB"
    suffix = {"reqps": "/s", "count:/s": "/s", "watt": " W"}.get(unit, "")
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}{suffix}"
    return f"{value:.3g}{suffix}"


def _right(panel: dict[str, Any]) -> tuple[re.Pattern[str], str] | None:
    """Which lines have the right axis, and its unit."""
    for o in panel["fieldConfig"]["overrides"]:
        said = {p["id"]: p["value"] for p in o["properties"]}
        if said.get("custom.axisPlacement") == "right":
            names = o["matcher"]["options"]
            return re.compile(names if o["matcher"]["id"] == "byRegexp" else re.escape(names)), said.get("unit", panel["fieldConfig"]["defaults"]["unit"])
    return None


def _stat(ax: Any, panel: dict[str, Any], lines: list[Line], minutes: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    words = {k: v["text"] for m in defaults.get("mappings", []) for k, v in m["options"].items()}
    said = [(line.name, words.get(f"{line.values[-1]:g}", shown(line.values[-1], defaults["unit"]))) for line in lines]
    text = "   ".join(f"{name} {value}" if len(lines) > 1 else value for name, value in said)
    steps = defaults.get("thresholds", {}).get("steps", [])
    passed = [s["color"] for s in steps if lines and (s["value"] is None or lines[0].values[-1] >= s["value"])]
    color = _COLORS.get(passed[-1] if passed else "", "#22292f")
    ax.set(xticks=[], yticks=[], facecolor="#f4f6f7")
    ax.spines[:].set_visible(False)
    size = 12 if len(lines) > 1 else 20 if lines else 9
    ax.text(0.04, 0.45, text or _wrapped(defaults["noValue"], 26), fontsize=size, color=color if lines else _SOFT, va="center", transform=ax.transAxes)


def _graph(ax: Any, panel: dict[str, Any], lines: list[Line], minutes: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = "stacking" in defaults["custom"]
    _axes(ax, defaults, lines, minutes)
    right = _right(panel)
    sides = [(ax, [x for x in lines if not (right and right[0].fullmatch(x.name))])]
    if right and len(sides[0][1]) < len(lines):
        other = ax.twinx()
        _axes(other, {**defaults, "unit": right[1]}, lines, minutes)
        other.spines[["left", "bottom"]].set_visible(False)
        other.spines["right"].set_visible(True)
        sides.append((other, [x for x in lines if right[0].fullmatch(x.name)]))
    handles: list[Any] = []
    for side, (axis, own) in enumerate(sides):
        if stacked and own:
            at = sorted({t for line in own for t in line.at})
            table = [[dict(zip(line.at, line.values)).get(t, 0.0) for t in at] for line in own]
            drawn = list(axis.stackplot(at, *table, colors=_LINES, alpha=0.7))
        else:
            drawn = [axis.plot(x.at, x.values, color=_LINES[(i + 5 * side) % len(_LINES)], linewidth=1.3, linestyle="--" if side else "-")[0] for i, x in enumerate(own)]
        for handle, line in zip(drawn, own):
            handle.set_label(line.name + (" (right)" if side else ""))
            if any(line.values):  # lines that stay at 0 are drawn and not named
                handles.append(handle)
        if own:
            highest = sum(max(x.values) for x in own) if stacked else max(max(x.values) for x in own)
            axis.set_ylim(min(0.0, *(min(x.values) for x in own)), defaults.get("max", 1.1 * highest or 1.0) if not side else 1.1 * highest or 1.0)
    if "thresholdsStyle" in defaults["custom"]:
        for step in (s for s in defaults["thresholds"]["steps"] if s["value"] is not None):
            ax.axhline(step["value"], color=_COLORS[step["color"]], linewidth=0.8, linestyle=":")
    if handles:
        longest = max(len(h.get_label()) for h in handles)
        columns = max(1, min(4, int(panel["gridPos"]["w"] * 6 / (longest + 5))))
        ax.legend(handles=handles, fontsize=6.5, frameon=False, loc="upper left", bbox_to_anchor=(-0.04, -0.1), ncols=columns, columnspacing=1, handlelength=1)
    elif lines:
        ax.text(0.5, 0.5, "0 all the time", fontsize=8, color=_SOFT, ha="center", va="center", transform=ax.transAxes)


def _heatmap(ax: Any, panel: dict[str, Any], lines: list[Line], minutes: float) -> None:
    """Cumulative buckets become counts of their own; a row a bucket, darker where more fell into it."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    _axes(ax, panel["fieldConfig"]["defaults"], lines, minutes)
    edges = sorted({float(x.labels["le"]) for x in lines})
    at = sorted({t for x in lines for t in x.at})
    if not edges:
        return
    table = {float(x.labels["le"]): dict(zip(x.at, x.values)) for x in lines}
    rows = [[table[e].get(t, 0.0) - (table[edges[i - 1]].get(t, 0.0) if i else 0.0) for t in at] for i, e in enumerate(edges)]
    ax.pcolormesh([*at, 0.0], range(len(edges) + 1), [[max(0.0, v) for v in row] for row in rows], cmap="GnBu", vmin=0)
    marks = range(0, len(edges) - (edges[-1] == math.inf), 3)
    ax.set_yticks([i + 1 for i in marks], [shown(edges[i], unit) for i in marks])


def _axes(ax: Any, defaults: dict[str, Any], lines: list[Line], minutes: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=7, colors=_SOFT, length=2)
    ax.set_xlim(-minutes, 0)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: shown(v, defaults["unit"])))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: "now" if not v else f"{v:g} min" if minutes >= 3 else f"{60 * v:g} s"))
    if not lines:
        ax.set(xticks=[], yticks=[])
        ax.text(0.5, 0.5, _wrapped(defaults["noValue"], 34), fontsize=8, color=_SOFT, ha="center", va="center", transform=ax.transAxes)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


if __name__ == "__main__":
    sys.exit(main())
