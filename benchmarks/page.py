"""Writes docs/performance.md and the page of details, with tables and plots from docs/performance.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from benchmarks.part import Bar, Part
from benchmarks.ran_on import described
from benchmarks.tables import markdown, tell

PAGE, DETAILS, SAMPLES, PICTURES = "performance.md", "performance-details.md", "performance.json", "pictures"
BY_HAND = Path(__file__).with_name("not_reached.md")
"""The reasons why targets were not reached. A person writes this file."""

OPENING = """\
# Performance

These figures compare scrapy_dq (*ours*) with Scrapy's own schedulers and scrapy-redis. `make bench`
measures them again in {minutes} minutes, and writes this page, its [details]({details}) and
[performance.json]({samples}) with every sample.

Tables show the median, with the lowest and highest value in brackets. Absolute figures depend on the
machine, so compare the ratios, whose two figures come from the same repetition."""
OPENING_OF_DETAILS = """\
# Performance: the details

These measurements add to [performance]({page}). Tables show the median, with the lowest and highest value in
brackets."""


def load(docs: Path) -> dict[str, Any]:
    """Return the samples of each part by its name. Before the first measurement, the dict is empty."""
    path = docs / SAMPLES
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(docs: Path, measured: Mapping[str, Any]) -> None:
    """Write every single sample."""
    docs.mkdir(parents=True, exist_ok=True)
    (docs / SAMPLES).write_text(json.dumps(measured, indent=1) + "\n")


def write(docs: Path, parts: Sequence[Part], measured: Mapping[str, Any]) -> Path:
    """Draw the plots, write both pages into the folder *docs*, and return the path of the first page."""
    there = [part for part in parts if part.name in measured]
    first = [part for part in there if part.first_page]
    details = [part for part in there if not part.first_page]
    opening = OPENING.format(minutes=_minutes(measured, there), details=DETAILS, samples=SAMPLES)
    paragraphs = [
        opening,
        "## Targets",
        _bars([bar for part in there for bar in part.bars(measured[part.name]["found"])]),
        *([BY_HAND.read_text().strip()] if BY_HAND.exists() else []),
        "## Environment",
        *_ran_on(measured, there),
        *_sections(docs, first, measured),
    ]
    (docs / PAGE).write_text("\n\n".join(paragraphs) + "\n")
    paragraphs = [OPENING_OF_DETAILS.format(page=PAGE), *_sections(docs, details, measured)]
    (docs / DETAILS).write_text("\n\n".join(paragraphs) + "\n")
    return docs / PAGE


def _sections(docs: Path, parts: Sequence[Part], measured: Mapping[str, Any]) -> Iterator[str]:
    for part in parts:
        found = measured[part.name]["found"]
        yield f"## {part.title}"
        yield _wrapped(part.section(found).strip())
        yield from _pictures(docs, part, found)


def _wrapped(section: str) -> str:
    """Return *section* with short lines, except in tables."""
    return "\n\n".join(
        block if block.startswith("|") else fill(block, 118, break_long_words=False, break_on_hyphens=False)
        for block in section.split("\n\n")
    )


def _minutes(measured: Mapping[str, Any], parts: Sequence[Part]) -> str:
    return f"{sum(measured[part.name]['seconds'] for part in parts) / 60:.1f}"


def _bars(bars: Sequence[Bar]) -> str:
    rows, reached = [], 0
    if not bars:
        return "No measured part has a target."
    for bar in bars:
        wanted = f"{'≤' if bar.at_most else '≥'} {bar.wanted:,g}"
        if not bar.samples:
            rows.append([bar.figure, wanted, "not measured", "–"])
            continue
        middle = median(bar.samples)
        fits = middle <= bar.wanted if bar.at_most else middle >= bar.wanted
        reached += fits
        figures = [_figure(value) for value in (middle, min(bar.samples), max(bar.samples))]
        between = f" ({figures[1]}–{figures[2]})" * (len(bar.samples) > 1)
        rows.append([bar.figure, wanted, figures[0] + between, "yes" if fits else "**no**"])
    head = ["figure", "target", "measured", "reached"]
    return f"{markdown(head, rows)}\n\n{reached} of {len(bars)} are reached."


def _figure(value: float) -> str:
    """Return the value with three significant digits."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def _ran_on(measured: Mapping[str, Any], parts: Sequence[Part]) -> Iterator[str]:
    """Yield a paragraph for each set of conditions. If there are several, each names its parts."""
    by_facts: dict[str, list[str]] = {}
    for part in parts:
        by_facts.setdefault(described(measured[part.name]["ran_on"]), []).append(part.title)
    for facts, titles in by_facts.items():
        yield _wrapped(f"{facts}." if len(by_facts) == 1 else f"{', '.join(titles)}: {facts}.")


def _pictures(docs: Path, part: Part, found: dict[str, Any]) -> Iterator[str]:
    try:
        drawn = part.plots(found, docs / PICTURES)
    except ModuleNotFoundError as error:
        # The page is useful without plots. The extra `bench` has the missing package.
        tell(f"no plots of {part.name}: {error}")
        return
    for path in drawn:
        yield f"![{part.title}]({path.relative_to(docs).as_posix()})"
