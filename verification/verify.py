"""Check the protocols of docs/design.md and docs/internals/shards.md in every reachable state.

`make verify` checks that no bound has a violation, and that the removal of each rule in LEFT_OUT causes a
violation. With `--large`, this program checks bounds that take hours.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
NOTHING, VIOLATION, NOT_ALL = 0, 1, 3


class Bound(NamedTuple):
    """The size of the world; `words`: the site, and the maximum number of each fault."""

    shards: int
    workers: int
    words: str


BOUNDS = [
    Bound(1, 2, "--site chain --ends"),
    Bound(1, 2, "--site chain --kill 1 --ends"),
    Bound(1, 2, "--site chain --fence 1 --ends"),
    Bound(1, 2, "--site pair --lose 1 --delay 1 --ends"),
    Bound(1, 2, "--site pair --kill 1 --delay 1 --ends"),
    Bound(1, 2, "--site one --kill 1 --roll 1 --ends"),
    Bound(1, 2, "--site pair --flush 1 --ends"),
    Bound(1, 2, "--site pair --again 1 --kill 1 --ends"),
    Bound(1, 2, "--site pair --again 1 --fence 1 --ends"),
    Bound(1, 2, "--site extra --roll 1 --ends"),
    Bound(1, 2, "--site extra --lose 1 --delay 1 --ends"),
    Bound(1, 2, "--site one --term 1 --roll 1 --ends"),
    Bound(2, 2, "--site chain --ends"),
    Bound(2, 2, "--site fork --ends"),
    Bound(2, 2, "--site extra --ends"),
    Bound(2, 2, "--site pair --lose 1 --ends"),
    Bound(2, 2, "--site pair --again 1 --ends"),
    Bound(2, 2, "--site pair --kill 1 --ends"),
    Bound(2, 2, "--site pair --fence 1 --ends"),
    Bound(2, 2, "--site away --roll 1 --ends"),
    Bound(2, 2, "--site away --flush 1 --ends"),
    Bound(2, 2, "--site inward --roll 1 --ends"),
    Bound(2, 2, "--site away --cut 1 --ends"),
    Bound(2, 2, "--site pair --cut 1 --ends"),
    Bound(2, 2, "--site inward --cut 1 --ends"),
    Bound(2, 2, "--site away --cut 1 --mend 1 --ends"),
    Bound(2, 1, "--site extra --roll 1 --pause 2 --ends"),
    Bound(2, 1, "--site pair --again 1 --roll 1 --ends"),
    Bound(2, 1, "--site pair --roll 1 --kill 1"),
    Bound(3, 2, "--site round --ends"),
    Bound(3, 1, "--site round --kill 1 --ends"),
    Bound(3, 1, "--site round --roll 1 --ends"),
]

FAULTS = ("kill", "fence", "lose", "delay", "roll", "flush", "term", "again", "cut")

LARGE = [
    Bound(1, 2, "--site pair --kill 1 --roll 1"),
    Bound(1, 2, "--site pair --fence 1 --roll 1"),
    Bound(1, 2, "--site starts --term 1 --kill 1"),
    *(Bound(2, 2, f"--site pair --{fault} 1") for fault in FAULTS),
    *(Bound(2, 2, f"--site away --{one} 1 --{other} 1") for one, other in combinations(FAULTS, 2)),
    Bound(2, 2, "--site back --roll 1"),
    Bound(2, 2, "--site extra --roll 1"),
    Bound(2, 2, "--site extra --kill 1"),
    Bound(2, 2, "--site extra --cut 1 --ends"),
    Bound(2, 2, "--site pair --roll 1 --kill 1"),
]

LEFT_OUT = {
    "next_number_only": Bound(1, 2, "--site starts --roll 1"),
    "log_of_all_puts": Bound(1, 2, "--site pair --roll 1"),
    "retire_by_exchange": Bound(1, 2, "--site one --roll 1"),
    "run_in_every_call": Bound(1, 2, "--site pair --again 1 --fence 1"),
    "resync_in_older_run": Bound(1, 2, "--site one --again 1 --roll 1"),
    "seeding_stays": Bound(1, 2, "--site starts --term 1"),
    "held": Bound(1, 2, "--site pair --roll 1 --delay 1"),
    "release_by_rejoin_only": Bound(1, 2, "--site one"),
    "puts_reopen": Bound(1, 2, "--site extra --ends"),
    "defer": Bound(2, 2, "--site pair --kill 1"),
    "defer_for_known": Bound(2, 2, "--site pair --fence 1"),
    "defer_until_retired": Bound(2, 1, "--site pair --roll 1 --kill 1"),
    "level_until_retired": Bound(2, 1, "--site extra --roll 1 --pause 1"),
    "raise_retires": Bound(2, 1, "--site extra --roll 1 --pause 2"),
    "raise_first": Bound(2, 1, "--site extra --kill 1"),
    "lowered_when_sent": Bound(2, 2, "--site extra"),
    "finished_retires": Bound(2, 2, "--site inward --roll 1 --ends"),
    "collect_twice": Bound(2, 2, "--site chain"),
    "finish_if_unchanged": Bound(2, 2, "--site extra"),
    "ask_by_exchange": Bound(2, 2, "--site extra --roll 1"),
    "raised_if_answers": Bound(2, 2, "--site extra --cut 1"),
    "gives_up_on_shard": Bound(2, 2, "--site pair --cut 1 --ends"),
    "takes_none_cut_off": Bound(2, 2, "--site pair --cut 1"),
    "closes_cut_off": Bound(2, 2, "--site away --cut 1 --ends"),
}
"""The rules, each with a bound in which its removal causes a violation."""


def main() -> int:
    """Run all checks and print a line for each; return 1 if one of them has a wrong result."""
    parser = argparse.ArgumentParser(prog="verify.py", description=main.__doc__)
    parser.add_argument("--large", action="store_true", help="check the large bounds: takes hours")
    parser.add_argument("--most", type=int, default=50_000_000, help="maximum states to visit per bound")
    options = parser.parse_args()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("make verify needs a C++ compiler (c++, g++ or clang++)")
    checks = [(bound, NOTHING) for bound in (LARGE if options.large else BOUNDS)]
    if not options.large:
        checks += [
            (at._replace(words=f"{at.words} --without {rule}"), VIOLATION) for rule, at in LEFT_OUT.items()
        ]
    with tempfile.TemporaryDirectory() as folder:
        programs = {}
        for shards, workers in {(bound.shards, bound.workers) for bound, _ in checks}:
            programs[shards, workers] = f"{folder}/explore_{shards}_{workers}"
            size = [f"-DSHARDS={shards}", f"-DWORKERS={workers}"]
            words = [compiler, "-std=c++17", "-O3", *size, "main.cpp", "-o", programs[shards, workers]]
            subprocess.run(words, cwd=FOLDER, check=True)
        ended = [
            _ended(programs[bound.shards, bound.workers], bound, end, options.most) for bound, end in checks
        ]
    return int(not all(ended))


def _ended(program: str, bound: Bound, end: int, most: int) -> bool:
    done = subprocess.run(
        [program, *bound.words.split(), "--most", str(most)], capture_output=True, text=True, check=False
    )
    as_it_should = done.returncode == end
    said = " ".join((done.stdout + done.stderr).split("\n")).strip()
    world = f"shards {bound.shards}, workers {bound.workers}"
    verdict = "" if as_it_should else "INCOMPLETE: " if done.returncode == NOT_ALL else "WRONG: "
    print(f"{verdict}{world}, {bound.words}: {said}", flush=True)
    return as_it_should


if __name__ == "__main__":
    sys.exit(main())
