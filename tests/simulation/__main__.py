"""The command line of the simulator."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from simulation import virtual

virtual.install()  # before the import of scrapy_dq

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402

from simulation import plan  # noqa: E402
from simulation.runner import Totals, runner  # noqa: E402
from support.redis_server import KINDS  # noqa: E402

SHOWN = 10
"""Maximum number of failures shown."""


def main() -> int:
    """Run each seed's crawl and its faults in virtual time; return 1 if a promise was broken.

    A failing seed prints the command that repeats it.
    """
    parser = argparse.ArgumentParser(prog="python -m simulation", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many schedules (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=jobs, help=f"how many processes (default: {jobs})")
    parser.add_argument("--redis", choices=KINDS, help="which redis-server (default: the first that is here)")
    parser.add_argument("--json", action="store_true", help="print the figures of each batch as JSON")
    parser.add_argument("--these", type=_numbers, help="only these seeds, with --json, in this process: 3,17")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule, and print what happens")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the redis-server ends
    if options.replay is not None:
        return _replay(options)
    if options.these:
        return _batches([range(seed, seed + 1) for seed in options.these], options.redis)
    seeds = range(options.first, options.first + options.seeds)
    if not options.json:
        return _all(seeds, options)
    firsts = range(seeds.start, seeds.stop, plan.SAME_SCRIPTS)
    return _batches(
        [range(first, min(first + plan.SAME_SCRIPTS, seeds.stop)) for first in firsts], options.redis
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _replay(options: argparse.Namespace) -> int:
    of = plan.drawn(options.replay)
    with runner(options.redis, log=True) as run:
        report, failure = run.run(of, trace=True)
    print(of.setup, of.rates, *of.strikes, *of.commands, *report.trace, sep="\n")
    print(failure or f"No promise is broken; digest {report.digest}")
    return int(bool(failure))


def _batches(batches: list[range], kind: Any) -> int:
    def show(totals: Totals) -> None:
        print(json.dumps(totals.as_dict()), flush=True)

    with runner(kind) as run:
        return int(sum(run.apart(batch, show) for batch in batches) > 0)


def _all(seeds: range, options: argparse.Namespace) -> int:
    totals, lock = Totals(), threading.Lock()
    console = Console(width=None if sys.stdout.isatty() else 130)
    began = time.monotonic()
    jobs = max(1, min(options.jobs, len(seeds)))
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        bar = progress.add_task("schedules", total=len(seeds))

        def read(job: subprocess.Popen[str]) -> None:
            assert job.stdout is not None
            for line in job.stdout:
                with lock:
                    before = totals.schedules
                    totals.add(json.loads(line))
                    rate, failed = totals.schedules / (time.monotonic() - began), len(totals.failures)
                    text = f"{rate:.0f} schedules/s, {failed} failed"
                    progress.update(bar, advance=totals.schedules - before, description=text)

        children = [
            _child(seeds[i * len(seeds) // jobs : (i + 1) * len(seeds) // jobs], options) for i in range(jobs)
        ]
        try:
            readers = [threading.Thread(target=read, args=(child,)) for child in children]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        finally:
            for child in children:
                child.terminate()
        for child in children:
            child.wait()
    _report(totals, time.monotonic() - began, jobs, console)
    if totals.schedules < len(seeds):
        console.print(f"{len(seeds) - totals.schedules:,} schedules did not run: see the errors above")
        return 2
    return int(bool(totals.failures))


def _child(seeds: range, options: argparse.Namespace) -> subprocess.Popen[str]:
    words = ["--json", "--first", str(seeds.start), "--seeds", str(len(seeds))]
    words += ["--redis", options.redis] if options.redis else []
    return subprocess.Popen([sys.executable, "-m", "simulation", *words], stdout=subprocess.PIPE, text=True)


def _report(totals: Totals, took_s: float, jobs: int, console: Console) -> None:
    number = max(1, totals.schedules)
    console.print(
        f"{totals.schedules:,} schedules in {took_s:,.0f} s: {totals.schedules / took_s:.1f} per second in "
        f"{jobs} processes; each {totals.exchanges / number:.0f} exchanges, {totals.calls / number:.0f} "
        f"calls, {totals.simulated_s / number:.1f} s of virtual time. {totals.repeats:,} pages were "
        "processed again."
    )
    struck = ", ".join(f"{fault} {count:,}" for fault, count in sorted(totals.faults.items()))
    console.print(f"Faults: {struck}", highlight=False)
    for seed, failure in sorted(totals.failures.items())[:SHOWN]:
        text = f"Seed {seed}: {failure}\n  make simulate ARGS='--replay {seed}'"
        console.print(text, markup=False, highlight=False)
    failed = f"{len(totals.failures):,} schedules failed"
    console.print(failed if totals.failures else "No promise was broken.")


if __name__ == "__main__":
    sys.exit(main())
