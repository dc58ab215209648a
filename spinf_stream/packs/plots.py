"""PNG plots of calibration reports and daily series, by matplotlib: an optional extra, `pip install "spinf-stream[report]"`.

It is 60 MB that no worker needs, so it is imported here alone and only when a plot is drawn.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spinf_stream.packs.figures import Bin
from spinf_stream.questions.plan import F64

MISSING = 'no plots: they need matplotlib, `pip install "spinf-stream[report]"`'
_BEFORE, _AFTER, _NO = "#b0413e", "#1f6f8b", "#9aa5ab"
MOST_PANELS = 30


class Series(NamedTuple):
    """One line of a chart. NaN leaves a gap."""

    name: str
    x: Sequence[Any]  # dates
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    articles: Sequence[int]


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def reliability(panels: Sequence[tuple[str, list[Bin], list[Bin]]], path: Path) -> None:
    """(title, before, after) each: mean score against the rate that came true, with Wilson intervals."""
    figure, axes = _grid(min(len(panels), MOST_PANELS), 3.0)
    for ax, (title, before, after) in zip(axes, panels):
        ax.plot([0, 1], [0, 1], color="#cccccc", linewidth=1)
        for groups, color, name in ((before, _BEFORE, "before"), (after, _AFTER, "after")):
            x = [b.score for b in groups]
            spread = [[max(0.0, b.rate - b.low) for b in groups], [max(0.0, b.high - b.rate) for b in groups]]
            ax.errorbar(x, [b.rate for b in groups], yerr=spread, color=color, marker="o", markersize=3, linewidth=1, elinewidth=0.7, label=name)
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="score", ylabel="came true")
        ax.set_title(title, fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    _save(figure, path)


def histograms(panels: Sequence[tuple[str, F64, F64, float | None]], path: Path) -> None:
    """(title, scores of yes, scores of no, threshold) each."""
    figure, axes = _grid(min(len(panels), MOST_PANELS), 2.4)
    edges = [i / 20 for i in range(21)]
    for ax, (title, yes, no, threshold) in zip(axes, panels):
        ax.hist([no, yes], bins=edges, stacked=True, color=[_NO, _AFTER], label=["no", "yes"])
        if threshold is not None:
            ax.axvline(threshold, color=_BEFORE, linewidth=1)
        ax.set(xlim=(0, 1), xlabel="score", ylabel="articles")
        ax.set_title(title, fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    _save(figure, path)


def daily(series: Sequence[Series], path: Path, title: str) -> None:
    """One panel a series: value and band above its count of articles."""
    figure, axes = _grid(min(len(series), MOST_PANELS), 2.4, wide=4.6)
    for ax, s in zip(axes, series):
        behind = ax.twinx()
        behind.bar(s.x, s.articles, color="#e6eaec", width=0.9)
        behind.set_ylim(0, 4 * max(1, *s.articles))
        behind.tick_params(labelsize=6, colors="#9aa5ab")
        ax.set_zorder(behind.get_zorder() + 1)
        ax.patch.set_visible(False)
        ax.fill_between(s.x, s.low, s.high, color=_AFTER, alpha=0.25, linewidth=0)
        ax.plot(s.x, s.y, color=_AFTER, marker="o", markersize=2.5, linewidth=1)
        ax.set_title(s.name, fontsize=9)
        ax.tick_params(axis="x", labelrotation=30)
    figure.suptitle(title, fontsize=10)
    _save(figure, path)


def _grid(panels: int, tall: float, wide: float = 3.2) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(panels, 3 if wide > 4 else 5)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(wide * columns, tall * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.remove()
    for ax in axes[:panels]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=7)
        ax.xaxis.label.set_fontsize(8)
        ax.yaxis.label.set_fontsize(8)
    return figure, axes[:panels]


def _save(figure: Any, path: Path) -> None:
    # without the default metadata, whose software version would make equal plots differ in bytes
    figure.savefig(path, dpi=120, metadata={"Software": None})
