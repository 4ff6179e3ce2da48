"""Three workers share one crawl; one of them is killed halfway; nothing is lost.

    python example_project/demo.py

Everything runs on this machine and in a temporary folder: the bookshop, the workers and their embedded Redis.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from bookshop.catalogue import Catalogue
from processes import Worker, running, wait_for_url

from scrapy_dq.connection import connect_url
from scrapy_dq.embedded import EmbeddedRedis
from scrapy_dq.frontier import Overview, peek
from scrapy_dq.frontier.model import Census

HERE = Path(__file__).resolve().parent
PROJECT = "project"
CRAWL = "books"
WORKERS = 3
LATENCY_S = 0.5
"""What a page takes; with 16 requests at once in each worker, the crawl lasts long enough to be watched."""
DEADLINE_S = 120
LOOK_EVERY_S = 0.25
SAY_EVERY_S = 2.0
RATE_OVER_S = 3.0


@dataclass
class Progress:
    """Says how far the crawl is: a line that rewrites itself on a terminal, one now and then elsewhere."""

    expected: int
    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    _said: float = 0.0

    def show(self, census: Census | None) -> None:
        now = time.monotonic()
        if census is None:
            line = "starting"
        else:
            line = (
                f"done {census.done:,} of {self.expected:,} | backlog {census.waiting:,} | "
                f"in flight {census.in_flight} | workers {census.workers} | "
                f"{self._rate(now, census.done):.0f} pages/s"
            )
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
        elif now - self._said >= SAY_EVERY_S:
            self._said = now
            print(line, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print *line* so that it stays."""
        print(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)

    def _rate(self, now: float, done: int) -> float:
        self._samples.append((now, done))
        while now - self._samples[0][0] > RATE_OVER_S:
            self._samples.popleft()
        since, before = self._samples[0]
        return (done - before) / (now - since) if now > since else 0.0


class Demo:
    """One crawl, from the first worker to the closing table."""

    def __init__(self, folder: Path, redis: Path, catalogue: Catalogue) -> None:
        self.folder = folder
        self.project = folder / PROJECT
        self.catalogue = catalogue
        self.progress = Progress(len(catalogue.paths))
        self.workers: list[Worker] = []
        self.client = connect_url(f"unix://{quote(str(redis))}", timeout_s=10.0)
        self.held = 0
        """Leases of the killed worker at its death."""
        self.took_s = 0.0

    def run(self) -> bool:
        """Crawl the whole shop; return whether everything is as promised."""
        keep_out = shutil.ignore_patterns(".*", "items", "pages", "__pycache__")
        shutil.copytree(HERE, self.project, ignore=keep_out, dirs_exist_ok=True)
        (self.project / "pages").mkdir()
        unset = ("SCRAPY_SETTINGS_MODULE", "SCRAPY_PROJECT")
        env = {name: text for name, text in os.environ.items() if name not in unset}
        with ExitStack() as stack:
            site_log = self.folder / "site.log"
            site = ("bookshop.site", "--port", "0", "--latency", str(LATENCY_S))
            stack.enter_context(running(*site, cwd=self.project, env=env, log=site_log))
            env |= {"BOOKSHOP_URL": wait_for_url(site_log), "BOOKSHOP_PAGES": "pages"}
            self.progress.say(f"The bookshop is open at {env['BOOKSHOP_URL']}; {WORKERS} workers start.")
            began = time.monotonic()
            crawl = ("scrapy", "crawl", CRAWL, "-s", "REDIS_URL=")
            for number in range(1, WORKERS + 1):
                log = self.folder / f"worker-{number}.log"
                process = stack.enter_context(running(*crawl, cwd=self.project, env=env, log=log))
                self.workers.append(Worker(number, process, log))
            in_time = self._watch(began + DEADLINE_S)
            self.took_s = time.monotonic() - began
        return self._close(in_time)

    def _watch(self, deadline: float) -> bool:
        """Show the progress until all workers have ended, and kill one halfway; False past *deadline*."""
        while any(worker.process.poll() is None for worker in self.workers):
            if time.monotonic() > deadline:
                self.progress.say(f"Not finished after {DEADLINE_S} s: stopping.")
                return False
            overview = self._look()
            self.progress.show(overview.census if overview else None)
            if overview and overview.census.done >= self.progress.expected / 2 and not self._killed:
                self._kill_one()
            time.sleep(LOOK_EVERY_S)
        return True

    def _look(self) -> Overview | None:
        """Read the crawl's state; None before the first worker has joined."""
        overview = peek(self.client, CRAWL)
        return overview if overview.phase != "absent" else None

    @property
    def _killed(self) -> bool:
        return any(worker.killed for worker in self.workers)

    def _kill_one(self) -> None:
        """Kill the worker that holds most, and note what it holds at that moment."""
        held = self._leases()
        victim = max(self.workers, key=lambda worker: held.get(worker.process.pid, 0))
        # Frozen first, so that it settles nothing between the look and the kill.
        victim.process.send_signal(signal.SIGSTOP)
        self.held = self._leases().get(victim.process.pid, 0)
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.killed = True
        self.progress.say(
            f"Halfway: killed worker {victim.number} (pid {victim.process.pid}, SIGKILL). "
            f"It held {self.held} requests."
        )

    def _leases(self) -> dict[int, int]:
        """Count the leases of each worker that still runs, by pid."""
        running_now = {worker.process.pid for worker in self.workers if worker.process.poll() is None}
        members = peek(self.client, CRAWL).members
        return {m.identity["pid"]: m.in_flight for m in members if m.identity["pid"] in running_now}

    def _close(self, in_time: bool) -> bool:
        """Count what the workers left behind, print the table, and judge."""
        found, torn = self._books()
        pages = self._pages()
        processed = Counter(path for paths in pages.values() for path in paths)
        missing = len(self.catalogue.paths - processed.keys())
        twice = processed.total() - len(processed)
        rows = [
            ("products found", f"{found:,} of {len(self.catalogue.products):,}"),
            ("pages never processed", f"{missing:,} of {self.progress.expected:,}"),
            ("pages processed twice", f"{twice} (the killed worker held {self.held})"),
            ("time", f"{self.took_s:.1f} s, {processed.total() / self.took_s:.0f} pages/s"),
        ]
        rows += [
            (f"worker {worker.number}", f"{len(pages[worker.process.pid]):,} pages, {worker.ending}")
            for worker in self.workers
        ]
        if torn:
            rows.append(("lines cut short", f"{torn}"))
        self.progress.say("")
        for name, text in rows:
            print(f"{name:<24}{text}")
        return (
            in_time
            and self._killed
            and found == len(self.catalogue.products)
            and missing == torn == 0
            and twice <= self.held
            and not any(worker.failed for worker in self.workers)
        )

    def _books(self) -> tuple[int, int]:
        """Count the distinct products in the workers' feeds, and the lines that are no JSON."""
        found: set[str] = set()
        torn = 0
        for feed in (self.project / "items").glob("*.jsonl"):
            for line in feed.read_text(encoding="utf-8").splitlines():
                try:
                    found.add(json.loads(line)["upc"])
                except ValueError:
                    torn += 1
        return len(found & {product.upc for product in self.catalogue.products}), torn

    def _pages(self) -> dict[int, list[str]]:
        """Read the paths of the pages that each worker, by pid, processed: see bookshop/pages.py."""
        pages: dict[int, list[str]] = {worker.process.pid: [] for worker in self.workers}
        for record in (self.project / "pages").iterdir():
            urls = [urlsplit(url) for url in record.read_text().splitlines()]
            pages[int(record.stem.rpartition("-")[2])] = [
                url.path + (f"?{url.query}" if url.query else "") for url in urls
            ]
        return pages


def main() -> int:
    """Run the demonstration; its exit status says whether all went as promised."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="bookshop-"))
    # The workers would start it themselves, and the last would stop it. With the demonstration as one more
    # user, it is there from the first look to the last, and is stopped whatever becomes of the workers.
    redis = EmbeddedRedis(folder / PROJECT / ".scrapy" / "dq")
    try:
        as_promised = Demo(folder, redis.acquire(), Catalogue()).run()
    except KeyboardInterrupt:
        print(f"\nStopped. The logs are in {folder}", file=sys.stderr)
        return 130
    finally:
        redis.release()
    if as_promised:
        shutil.rmtree(folder)
        return 0
    print(f"\nNot as promised. The logs are in {folder}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
