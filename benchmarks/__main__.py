"""`make bench` measures every part, and writes docs/performance.md and docs/performance-details.md.

Run with PYTHONPATH=tests in the root of the repository.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import page
from benchmarks.part import Part
from benchmarks.ran_on import ran_on
from benchmarks.tables import tell

NAMES = (
    "crawls",
    "many_workers",
    "driven",
    "growth",
    "memory",
    "blocking",
    "items",
    "times",
)
"""Modules of this folder, in the order of their sections on the pages."""
DOCS = Path(__file__).parents[1] / "docs"


def parts() -> Iterator[Part]:
    """Yield all existing parts."""
    for name in NAMES:
        if importlib.util.find_spec(f"benchmarks.{name}"):
            yield importlib.import_module(f"benchmarks.{name}").PART


def parse_args(known: list[Part]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="PYTHONPATH=tests python -m benchmarks",
        description=f"Measure, and write {page.PAGE}, {page.DETAILS}, {page.SAMPLES} and the plots again.",
        epilog="parts:\n" + "\n".join(f"  {part.name:10}{part.title}" for part in known),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", choices=[part.name for part in known], metavar="PART",
        help="measure these parts, and keep the samples of the others (default: measure all)",
    )  # fmt: skip
    parser.add_argument("--render", action="store_true", help="measure nothing, write the pages again")
    parser.add_argument(
        "--docs", type=Path, default=DOCS, metavar="FOLDER", help="the folder of the pages (default: docs)"
    )
    return parser.parse_args()


def main() -> None:
    """Measure the chosen parts and write the pages."""
    known = list(parts())
    options = parse_args(known)
    measured = page.load(options.docs)
    for part in known:
        if options.render or (options.only and part.name not in options.only):
            continue
        tell(f"{part.name}: {part.title}")
        began = time.monotonic()
        found = part.measure(tell)
        seconds = time.monotonic() - began
        measured[part.name] = {"ran_on": ran_on(), "seconds": seconds, "found": found}
        # Save immediately, because a later part may fail.
        page.save(options.docs, measured)
        tell(f"{part.name} took {seconds:.0f} s")
    if not measured:
        raise SystemExit("nothing has been measured yet")
    tell(str(page.write(options.docs, known, measured)))


if __name__ == "__main__":
    main()
