"""The simulator itself: what it runs in `make test` and `make soak`, and that it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def simulate(*words: str, module: str = "simulation") -> subprocess.CompletedProcess[str]:
    """Run the simulator, or its mutations, in a process of its own: it replaces the clock."""
    env = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True, text=True, env=env, check=False, timeout=3600,
    )  # fmt: skip


@pytest.mark.parametrize("seeds", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_no_promise_is_broken(seeds: int) -> None:
    done = simulate("--seeds", str(seeds))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{seeds:,} schedules in" in done.stdout


@pytest.mark.parametrize("seed", [7, 11, 292])
def test_a_seed_is_the_same_schedule_each_time(seed: int) -> None:
    first, second = (simulate("--replay", str(seed)) for _ in range(2))
    assert first.stdout == second.stdout
    assert "digest" in first.stdout


@pytest.mark.parametrize("rule", ["1", "13"])
def test_a_rule_that_is_taken_out_is_found(rule: str) -> None:
    """The other rules: `make simulate-mutations`."""
    done = simulate("--rule", rule, "--tries", "1", "--most", "1000", module="simulation.mutations")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_failing_seed_is_shrunk_to_the_command_that_repeats_it(tmp_path: Path) -> None:
    """A worker in which every id is used again."""
    from simulation.mutations import MUTATIONS, mutated

    rule = next(each for each in MUTATIONS if each.rule == "13")
    env = mutated(rule, tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "simulation", "--seeds", "200", "--jobs", "1"],
        capture_output=True, text=True, env=env, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    seed = run.stdout.partition("Seed ")[2].partition(":")[0]
    assert f"make simulate ARGS='--replay {seed}'" in run.stdout
    shrunk = subprocess.run(
        [sys.executable, "-m", "simulation", "--shrink", seed],
        capture_output=True, text=True, env=env, cwd=tmp_path, check=False,
    )  # fmt: skip
    smallest = shrunk.stdout.partition("ARGS='")[2].partition("'")[0].split()
    assert smallest[:2] == ["--replay", seed]
    again = subprocess.run(
        [sys.executable, "-m", "simulation", *smallest],
        capture_output=True, text=True, env=env, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert again.returncode == 1
