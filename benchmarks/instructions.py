"""Counts Redis's instructions per request of an exchange. This figure does not depend on the machine's load.

Run with PYTHONPATH=tests. The module needs valgrind. To compare with another checkout, run this file with the
other checkout's folders: `PYTHONPATH=OTHER:OTHER/tests python benchmarks/instructions.py`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from statistics import median
from typing import Any

from benchmarks.exchange_cost import BACKLOG, ByExchange
from benchmarks.redis_here import NO_REWRITES, found_kinds
from benchmarks.sample import puts
from support.redis_server import RedisServer

FEW, MANY = 1_000, 6_000
"""The numbers of requests of two runs.

The difference of the runs excludes the start of Redis, the backlog and the loading of scripts.
"""
LONGEST_START_S = 60.0


class CountedServer(RedisServer):
    """A redis-server whose instructions valgrind counts. It is about 50 times slower."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind, args=[*NO_REWRITES, "--hz", "1"])
        self._counts = self.folder.parent / "counts"
        self._command[:0] = ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={self._counts}"]

    def instructions(self) -> int:
        """End the process and return the number of its instructions."""
        self.stop()
        found = re.search(r"^(?:summary|totals): (\d+)", self._counts.read_text(), re.MULTILINE)
        assert found, "callgrind wrote no sum"
        return int(found[1])


def count(kind: Any, batch: int, requests: int) -> int:
    """Return the instructions of a server for the put, lease and ack of *requests* requests."""
    everything = list(puts(range(BACKLOG + requests)))
    server = CountedServer(kind)
    try:
        worker = ByExchange(server.start(LONGEST_START_S))
        worker.round(everything[:BACKLOG], 0)
        worker.round([], batch)
        for begin in range(BACKLOG, len(everything), batch):
            worker.round(everything[begin : begin + batch], batch)
        worker.close()
        return server.instructions()
    finally:
        server.close()


def main() -> None:
    """Print the median per size of batch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[20, 100], help="requests of an exchange")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--server", choices=found_kinds(), default=found_kinds()[0])
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("Install valgrind: it counts the instructions.")
    for batch in options.batch:
        found = [
            (count(options.server, batch, MANY) - count(options.server, batch, FEW)) / (MANY - FEW)
            for _ in range(options.repetitions)
        ]
        print(
            f"batches of {batch}: {median(found):,.0f} instructions per request "
            f"({min(found):,.0f} to {max(found):,.0f})"
        )


if __name__ == "__main__":
    main()
