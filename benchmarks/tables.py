"""Formats figures of the benchmarks: medians with their range, ratios within a repetition, and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median, and the range if the values differ."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Return one ratio per repetition."""
    return [a / b for a, b in zip(of, to, strict=True)]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in [head, *rows])
    return "\n".join([first, f"|{'---|' * len(head)}", *others])


def tell(text: str) -> None:
    """Print a line about the progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def write_json(path: Path | None, results: Sequence[Any]) -> None:
    """Write all results to *path*, if the user has named a file."""
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")
