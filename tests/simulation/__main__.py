"""The command line of the simulator."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from simulation import virtual

virtual.install()  # before scrapy_dq is imported
REAL_S = time.perf_counter

from scrapy_dq.frontier import scripts  # noqa: E402
from simulation import crawler, schedule  # noqa: E402
from simulation.store import under_virtual_time  # noqa: E402
from support.redis_server import RedisServer  # noqa: E402


def main() -> int:
    """Run schedules; return 1 after the first that fails, with the command that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and print its faults")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL if options.replay is None else logging.DEBUG)
    plain = scripts.source
    scripts.source = lambda *args: under_virtual_time(plain(*args))  # type: ignore[assignment]
    crawler.install()
    seeds = range(options.first, options.first + options.seeds)
    if options.replay is not None:
        seeds = range(options.replay, options.replay + 1)
    server = RedisServer(unix=True)
    server.start()
    try:
        return _run(seeds, str(server.socket), trace=options.replay is not None)
    finally:
        server.kill()


def _run(seeds: range, socket: str, *, trace: bool) -> int:
    faults: Counter[str] = Counter()
    calls, began_s = 0, REAL_S()
    for seed in seeds:
        one = schedule.Schedule(seed, socket)
        try:
            report = one.run()
        except (schedule.Violation, virtual.Endless) as error:
            print("\n".join(one.report.trace))
            print(f"seed {seed}: {error}\nRepeat: PYTHONPATH=tests python -m simulation --replay {seed}")
            return 1
        if trace:
            print("\n".join(report.trace))
            print(schedule.digest(report))
        faults += report.faults
        calls += report.calls
    took_s = REAL_S() - began_s
    print(f"{len(seeds):,} schedules, {calls:,} calls, {len(seeds) / took_s:.1f} schedules per second")
    print(", ".join(f"{count:,} {name}" for name, count in sorted(faults.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
