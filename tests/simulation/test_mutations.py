"""If a rule or a guard is taken out, the simulator finds a broken promise, or a test fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.mutations import MUTATIONS, ROOT, Mutation, fails, mutated
from simulation.process import simulate


def test_code_to_be_taken_out_is_there() -> None:
    """Each text of a mutation occurs once. Otherwise the mutation would remove nothing, or something else."""
    for mutation in MUTATIONS:
        for name, old, _ in mutation.changes:
            assert (ROOT / name).read_text("utf-8").count(old) == 1, f"{mutation.what}: {name} has changed"


def test_a_rule_that_is_taken_out_is_found() -> None:
    """`make simulate-mutations` tests the other rules."""
    done = simulate("--rule", "1", "--tries", "1", "--most", "1000", module="simulation.mutations")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.test], ids=lambda mutation: mutation.what
)
def test_a_guard_that_is_taken_out_is_found(mutation: Mutation) -> None:
    assert fails(mutation)


def test_a_failing_seed_is_printed_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    """Without rule 13, workers use the same entry ids again, so some seed fails."""
    rule = next(each for each in MUTATIONS if each.rule == "13")
    env = mutated(rule, tmp_path)
    run = simulate("--seeds", "200", "--jobs", "1", env=env, cwd=tmp_path)
    assert run.returncode == 1
    seed = run.stdout.partition("Seed ")[2].partition(":")[0]
    assert f"make simulate ARGS='--replay {seed}'" in run.stdout
    assert simulate("--replay", seed, env=env, cwd=tmp_path).returncode == 1
