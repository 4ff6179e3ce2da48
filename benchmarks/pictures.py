"""Plots of the performance page: small PNGs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

WIDTH_IN, DPI = 7.0, 100
COLOURS = ["#1f6fb4", "#d9822b", "#4a9c5d", "#8a5fb0"]


def bars_of_ratios(path: Path, rows: Sequence[tuple[str, Sequence[float], float]]) -> Path:
    """Draw a bar per ratio, with its range, and a mark at what is wanted."""
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.5 * len(rows) + 1.0), layout="constrained")
    for place, (_, samples, wanted) in enumerate(rows):
        middle = median(samples)
        around = [[middle - min(samples)], [max(samples) - middle]]
        axes.barh(place, middle, 0.6, xerr=around, color=COLOURS[0], ecolor="#444444", capsize=3)
        axes.plot([wanted, wanted], [place - 0.4, place + 0.4], color=COLOURS[1], linewidth=2.5)
    axes.set_yticks(range(len(rows)), [title for title, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    figure.supxlabel("times as many per second; orange: what is wanted", fontsize="medium")
    return _saved(figure, path)


def curves(path: Path, series: Mapping[str, Mapping[float, Sequence[float]]], x: str, y: str) -> Path:
    """Draw medians with their range over a logarithmic axis, a curve per series."""
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.2), layout="constrained")
    for colour, (title, points) in zip(COLOURS, series.items(), strict=False):
        places = sorted(points)
        middles = [median(points[place]) for place in places]
        around = [
            [middle - min(points[place]) for middle, place in zip(middles, places, strict=True)],
            [max(points[place]) - middle for middle, place in zip(middles, places, strict=True)],
        ]
        axes.errorbar(places, middles, yerr=around, marker="o", capsize=3, color=colour, label=title)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend()
    return _saved(figure, path)


def _saved(figure: plt.Figure, path: Path) -> Path:
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return path
