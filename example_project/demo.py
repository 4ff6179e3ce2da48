"""Three workers share one crawl; one of them is killed halfway; nothing is lost.

    python example_project/demo.py

It runs `scrapy dq crawl books -w 3 -o books.jsonl`, and `scrapy dq web` beside it. Everything is on this
machine and in a temporary folder: the bookshop, the workers and their embedded Redis. Only report.html stays.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from bookshop.catalogue import Catalogue
from processes import running, wait_for_url

from scrapy_dq.connection import connect_url
from scrapy_dq.embedded import EmbeddedRedis
from scrapy_dq.frontier import peek

HERE = Path(__file__).resolve().parent
PROJECT = "project"
CRAWL = "books"
FEED = "books.jsonl"
REPORT = Path("report.html").absolute()
WORKERS = 3
LATENCY_S = 0.5
"""Seconds per page. Each worker sends 16 requests at a time, so the crawl lasts long enough to be watched."""
DEADLINE_S = 120
LOOK_EVERY_S = 0.25


class Demo:
    """One crawl, from its first page to the closing table."""

    def __init__(self, folder: Path, redis: Path, catalogue: Catalogue) -> None:
        self.folder = folder
        self.project = folder / PROJECT
        self.visits = folder / "visits.jsonl"
        self.catalogue = catalogue
        self.client = connect_url(f"unix://{quote(str(redis))}", timeout_s=10.0)
        self.killed = 0
        """The pid of the killed worker."""
        self.held = 0
        """The number of leases that the killed worker held at its death."""

    def run(self) -> bool:
        """Crawl the whole shop; return whether the result is as promised (see `_close`)."""
        keep_out = shutil.ignore_patterns(".*", "items", "__pycache__")
        shutil.copytree(HERE, self.project, ignore=keep_out, dirs_exist_ok=True)
        unset = ("SCRAPY_SETTINGS_MODULE", "SCRAPY_PROJECT")
        env = {name: text for name, text in os.environ.items() if name not in unset}
        with ExitStack() as stack:
            log = stack.enter_context((self.folder / "site.log").open("wb"))
            site = ("bookshop.site", "--port", "0", "--latency", str(LATENCY_S), "--log", str(self.visits))
            stack.enter_context(running(*site, cwd=self.project, env=env, output=log))
            env["BOOKSHOP_URL"] = wait_for_url(self.folder / "site.log")
            words = ("dq", "crawl", CRAWL, "-w", str(WORKERS), "-o", FEED)
            print(f"The bookshop is open at {env['BOOKSHOP_URL']}\n$ scrapy {' '.join(words)}", flush=True)
            options = ("-s", "REDIS_URL=", "-s", "FEEDS={}")
            if find_spec("starlette") and find_spec("uvicorn"):
                page = stack.enter_context((self.folder / "page.log").open("wb"))
                show = ("scrapy", "dq", "web", CRAWL, "--port", "0", *options[:2])
                stack.enter_context(running(*show, cwd=self.project, env=env, output=page))
                print(f"Watch it at {wait_for_url(self.folder / 'page.log')}", flush=True)
            crew = stack.enter_context(running("scrapy", *words, *options, cwd=self.project, env=env))
            self._kill_one_halfway(crew, time.monotonic() + DEADLINE_S)
            status = crew.wait(DEADLINE_S)
            tell = ("scrapy", "dq", "report", CRAWL, "--output", str(REPORT), *options[:2])
            stack.enter_context(running(*tell, cwd=self.project, env=env)).wait(DEADLINE_S)
        return self._close(status)

    def _kill_one_halfway(self, crew: subprocess.Popen[bytes], deadline: float) -> None:
        """Wait until half of the shop is done, and kill the worker with the most leases."""
        half = len(self.catalogue.paths) / 2
        while peek(self.client, CRAWL).census.done < half:
            if crew.poll() is not None or time.monotonic() > deadline:
                return
            time.sleep(LOOK_EVERY_S)
        held = self._leases()
        self.killed = max(held, key=held.__getitem__)
        # The worker is suspended first, so that it settles nothing between the count and the kill.
        os.kill(self.killed, signal.SIGSTOP)
        self.held = self._leases()[self.killed]
        os.kill(self.killed, signal.SIGKILL)

    def _leases(self) -> dict[int, int]:
        """Count the leases of each worker, by pid."""
        return {member.identity["pid"]: member.in_flight for member in peek(self.client, CRAWL).members}

    def _close(self, status: int) -> bool:
        """Print the counts of items and visits, and return whether the result is as promised.

        No product or page may be missing. At most as many items may be repeated as leases were lost.
        """
        found, torn = self._books()
        served = Counter(json.loads(line)["path"] for line in self.visits.read_text().splitlines())
        missing = [product for product in self.catalogue.products if not found[product.upc]]
        unseen = self.catalogue.paths - served.keys()
        twice = found.total() - len(found)
        print()
        for name, text in (
            ("products in the feed", f"{len(found):,} of {len(self.catalogue.products):,}"),
            ("in it twice", f"{twice} (the killed worker, pid {self.killed}, held {self.held} requests)"),
            ("pages served", f"{len(served):,} of {len(self.catalogue.paths):,}, {served.total():,} times"),
            ("report", str(REPORT)),
            ("exit status", f"{status}: the run is {'' if status == 0 else 'not '}finished"),
        ):
            print(f"{name:<24}{text}")
        kept = not missing and not unseen and not torn and twice <= self.held
        return bool(kept and self.killed and status == 0)

    def _books(self) -> tuple[Counter[str], int]:
        """Return how often each product is in the feed, and how many lines of the feed are not JSON."""
        found: Counter[str] = Counter()
        torn = 0
        for line in (self.project / FEED).read_text(encoding="utf-8").splitlines():
            try:
                found[json.loads(line)["upc"]] += 1
            except ValueError:
                torn += 1
        return found, torn


def main() -> int:
    """Run the demonstration, and return 0 if the result is as promised, 130 after Ctrl-C, or else 1."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="bookshop-"))
    # `scrapy dq crawl` would also start and stop the embedded Redis. The demonstration starts Redis first, so
    # that it can read Redis from beginning to end, and stops Redis even if the crew is killed.
    redis = EmbeddedRedis(folder / PROJECT / ".scrapy" / "dq")
    try:
        as_promised = Demo(folder, redis.acquire(), Catalogue()).run()
    except KeyboardInterrupt:
        print(f"\nStopped. The files are in {folder}", file=sys.stderr)
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
