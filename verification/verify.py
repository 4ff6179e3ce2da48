"""Check the protocol of docs/design.md, of one shard and of several, in every state that can be reached.

`make verify`: no bound has a violation, and each rule of LEFT_OUT has one when it is left out.
`--large`: bounds that take hours.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
NOTHING, VIOLATION, NOT_ALL = 0, 1, 3

BOUNDS: list[tuple[int, str]] = [
    (1, "--site chain"),
    (1, "--site chain --kill 1"),
    (1, "--site chain --fence 1"),
    (1, "--site pair --lose 1 --delay 1"),
    (1, "--site pair --kill 1 --delay 1"),
    (1, "--site one --kill 1 --roll 1"),
    (1, "--site pair --flush 1"),
    (1, "--site pair --again 1 --kill 1"),
    (1, "--site extra --roll 1"),
    (1, "--site extra --lose 1 --delay 1"),
    (1, "--site one --term 1 --roll 1"),
    (2, "--site chain"),
    (2, "--site fork"),
    (2, "--site extra"),
    (2, "--site pair --lose 1"),
    (2, "--site pair --kill 1"),
]
"""How many shards, the site, and how often each fault may strike. Two workers."""

LARGE: list[tuple[int, str]] = [
    (1, "--site pair --kill 1 --roll 1"),
    (1, "--site pair --fence 1 --roll 1"),
    (1, "--site starts --term 1 --kill 1"),
    (2, "--site pair --fence 1"),
    (2, "--site pair --roll 1"),
    (2, "--site back --roll 1"),
    (2, "--site pair --roll 1 --kill 1"),
]

LEFT_OUT: list[tuple[int, str, str]] = [
    (1, "next_number_only", "--site starts --roll 1"),
    (1, "log_of_all_puts", "--site pair --roll 1"),
    (1, "retire_by_exchange", "--site one --roll 1"),
    (1, "seeding_stays", "--site starts --term 1"),
    (1, "held", "--site pair --roll 1 --delay 1"),
    (1, "release_by_rejoin_only", "--site one"),
    (2, "raise_first", "--site extra"),
    (2, "lowered_when_sent", "--site extra"),
    (2, "collect_twice", "--site chain"),
    (2, "finish_if_unchanged", "--site extra"),
    (2, "barrier", "--site pair --kill 1"),
    (2, "barrier_of_known", "--site pair --fence 1"),
    (2, "home_before_rejoin", "--site pair --fence 1"),
]
"""Shards, the rule, and a bound in which its absence shows."""


def main() -> int:
    """Run all checks, and print a line for each; return 1 if one of them does not end as it should."""
    parser = argparse.ArgumentParser(prog="verify.py", description=main.__doc__)
    parser.add_argument("--large", action="store_true", help="the large bounds instead, which take hours")
    parser.add_argument("--most", type=int, default=50_000_000, help="most states of a bound")
    options = parser.parse_args()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("make verify needs a C++ compiler (c++, g++ or clang++)")
    with tempfile.TemporaryDirectory() as folder:
        checks = [(shards, bound, NOTHING) for shards, bound in (LARGE if options.large else BOUNDS)]
        if not options.large:
            checks += [(shards, f"{bound} --without {rule}", VIOLATION) for shards, rule, bound in LEFT_OUT]
        for shards in (1, 2):
            words = [compiler, "-std=c++17", "-O2", f"-DSHARDS={shards}", "main.cpp"]
            subprocess.run([*words, "-o", f"{folder}/explore_{shards}"], cwd=FOLDER, check=True)
        return max(_ended(f"{folder}/explore_{n}", n, bound, end, options.most) for n, bound, end in checks)


def _ended(program: str, shards: int, bound: str, end: int, most: int) -> int:
    done = subprocess.run(
        [program, *bound.split(), "--most", str(most)], capture_output=True, text=True, check=False
    )
    as_it_should = done.returncode == end
    said = " ".join((done.stdout + done.stderr).split("\n")).strip()
    print(f"{'' if as_it_should else 'WRONG: '}{shards} shard(s) {bound}: {said}", flush=True)
    return int(not as_it_should)


if __name__ == "__main__":
    sys.exit(main())
