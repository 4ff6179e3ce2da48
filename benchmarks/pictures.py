"""The plots of parts without a crawl: bars of ratios, and curves of costs against sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.plots import COLOURS, picture


def bars_of_ratios(path: Path, rows: Sequence[tuple[str, Sequence[float], float]]) -> Path:
    """Draw a bar for each ratio, with its range and a mark at its target."""
    with picture(path, height=0.5 * len(rows) + 0.9) as axes:
        for place, (_, samples, wanted) in enumerate(rows):
            middle = median(samples)
            around = [[middle - min(samples)], [max(samples) - middle]]
            axes.barh(place, middle, 0.6, xerr=around, color=COLOURS["ours"], ecolor="black", capsize=3)
            axes.plot([wanted, wanted], [place - 0.4, place + 0.4], color="black", linewidth=2.5)
        axes.set_yticks(range(len(rows)), [title for title, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_title("times as many per second; black: what is wanted", fontsize="medium", loc="right")
    return path


def curves(path: Path, series: Mapping[str, Mapping[float, Sequence[float]]], x: str, y: str) -> Path:
    """Draw medians with their range over a logarithmic axis, with one curve per series."""
    with picture(path, height=3.0) as axes:
        for colour, (title, points) in zip(COLOURS.values(), series.items(), strict=False):
            places = sorted(points)
            middles = [median(points[place]) for place in places]
            below = [middle - min(points[place]) for middle, place in zip(middles, places, strict=True)]
            above = [max(points[place]) - middle for middle, place in zip(middles, places, strict=True)]
            axes.errorbar(
                places, middles, yerr=[below, above], marker="o", capsize=3, color=colour, label=title
            )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend()
    return path
