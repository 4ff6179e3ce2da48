"""The look of the page's pictures: small PNGs on white."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLOURS = {
    "ours": "#c0392b",
    "ours-2": "#e59866",
    "memory": "#34495e",
    "disk": "#7f8c8d",
    "scrapy-redis": "#2980b9",
    "raw": "#27ae60",
}
"""Each scheduler has the same colour in all pictures."""


@contextmanager
def picture(path: Path, width: float = 7.0, height: float = 3.4) -> Iterator[Any]:
    """Yield matplotlib's axes, and write the drawing to *path*. The sizes are in inches."""
    # Imported here, because only drawings need matplotlib.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
