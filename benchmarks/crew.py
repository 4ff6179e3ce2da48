"""Measures the speed of `scrapy dq crawl` in the bookshop with one and more workers, and prints a table.

Run with PYTHONPATH=tests. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.redis_here import measured_on, start_redis
from benchmarks.tables import markdown, ratios, spread, tell, write_json
from support.waiting import wait_until

ROOT = Path(__file__).parents[1]
LONGEST_S = 300


@dataclass
class Crawl:
    """One crawl of the whole shop."""

    latency_s: float
    workers: int
    repetition: int
    pages: int
    seconds: float
    """From the first served page to the last, without the start of the processes."""
    whole_seconds: float
    """The time that `scrapy dq crawl` prints."""

    @property
    def rate(self) -> float:
        return self.pages / self.seconds


@contextmanager
def shop(project: Path, latency_s: float, visits: Path) -> Iterator[str]:
    """Serve the bookshop and yield its URL."""
    log = project / "site.log"
    with log.open("wb") as output:
        site = subprocess.Popen(
            [sys.executable, "-m", "bookshop.site", "--port", "0", "--latency", str(latency_s),
             "--log", visits],
            cwd=project, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield wait_until(
            lambda: re.findall(r"^(http://\S+)$", log.read_text(), re.MULTILINE), "the shop is open"
        )[0]
    finally:
        site.terminate()
        site.wait(10)


def crawl(latency_s: float, workers: int, repetition: int) -> Crawl:
    """Crawl the shop with a new Redis."""
    with (
        tempfile.TemporaryDirectory() as folder,
        start_redis(aof=True) as redis,
    ):
        project, visits = Path(folder) / "project", Path(folder) / "visits.jsonl"
        shutil.copytree(ROOT / "example_project", project, ignore=shutil.ignore_patterns(".*", "items"))
        with shop(project, latency_s, visits) as url:
            done = subprocess.run(
                [sys.executable, "-m", "scrapy", "dq", "crawl", "books", "-w", str(workers),
                 "-o", "books.jsonl", "-s", "FEEDS={}", "-s", f"REDIS_URL={redis.url}", "--json"],
                cwd=project, env=os.environ | {"BOOKSHOP_URL": url}, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, timeout=LONGEST_S, check=True,
            )  # fmt: skip
        served = [json.loads(line)["time"] for line in visits.read_text().splitlines()]
        feed = (project / "books.jsonl").read_text().splitlines()
        assert len(feed) == len(set(feed)) == 1000
    summary = json.loads(done.stdout)
    return Crawl(latency_s, workers, repetition, len(served), max(served) - min(served), summary["seconds"])


def table(crawls: list[Crawl], options: argparse.Namespace) -> str:
    """Return the markdown table, with the conditions below it."""
    rows = []
    for latency_s in options.latency:
        rates = {
            workers: [c.rate for c in crawls if (c.latency_s, c.workers) == (latency_s, workers)]
            for workers in options.workers
        }
        first = rates[options.workers[0]]
        rows += [
            [f"{latency_s * 1000:g} ms", str(workers), spread(found), spread(ratios(found, first), 2)]
            for workers, found in rates.items()
        ]
    return "\n\n".join([
        markdown(["a page takes", "workers", "pages per second", f"against {options.workers[0]}"], rows),
        f"Medians (lowest–highest) of {options.repetitions} crawls of {crawls[0].pages:,} pages. "
        f"{measured_on(('scrapy',), 'AOF everysec, loopback')}; the shop and Redis on the same machine.",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--latency", type=float, nargs="+", default=[0.01, 0.25], help="seconds per page")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write every result to this file")
    options = parser.parse_args()
    crawls: list[Crawl] = []
    for repetition in range(options.repetitions):
        for latency_s in options.latency:
            for workers in options.workers:
                crawls.append(crawl(latency_s, workers, repetition))
                tell(f"{crawls[-1].rate:,.0f} pages/s: {crawls[-1]}")
    print(table(crawls, options))
    write_json(options.json, [asdict(found) for found in crawls])


if __name__ == "__main__":
    main()
