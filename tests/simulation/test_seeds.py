"""The simulator in `make test` and `make soak`: no seed breaks a promise."""

from __future__ import annotations

import json

import pytest

from simulation.process import simulate


@pytest.mark.parametrize(
    "seeds",
    [*(range(first, first + 100) for first in range(0, 400, 100)),
     pytest.param(range(100_000), marks=pytest.mark.soak)],
    ids=lambda seeds: f"{seeds.start} to {seeds.stop}",
)  # fmt: skip
def test_no_seed_breaks_a_promise(seeds: range) -> None:
    done = simulate(
        "--first", str(seeds.start), "--seeds", str(len(seeds)), timeout_s=max(800, 3.2 * len(seeds))
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(seeds):,} schedules in" in done.stdout


FOUND = {
    "Redis forgets a worker with an incomplete start(), and others finish the run": 1052264,
    "Redis forgets a worker with an incomplete start(), and the next run has begun": 2169818,
    "a worker whose join is answered late is declared dead as it begins": 2344029,
    "a page kills 40 workers, in two runs": 9439490,
    "ids of workers that have left look dead after a failover": 9449828,
    "a program that closes its Queue is frozen until the run has ended": 9900578,
    "a forgotten listener learns of the next run, in which a start payload was taken": 9976634,
    "an exchange and a join of a program that has left arrive again": 10002766,
    "the run ends while a Queue closes, and the Queue joins the next run": 10203495,
    "a late copy of an exchange claims another start payload after a roll-back": 12721960,
    "a log puts a request of a stream again, after Redis has forgotten the claim": 18039834,
    "a log stores a page again that `clear --seen` has made new, so the page waits twice": 9125940,
    "a worker learns of the end, and then another frontier replaces its own": 1009561843,
    "so many heartbeats are lost that a worker is taken for dead while it downloads a page": 1009548143,
    "a late copy brings lost data back, and Redis loses the data again": 1009778398,
    "a late copy of its join replaces the record of a worker that was declared dead": 1009797313,
    "another master gets a late copy of a rejoin, and then the next rejoin of this worker": 9841406,
    "a worker gives up on a shard and leaves, and its record stays there": 1009866758,
    "the run ends while a worker joins its shards": 1000301826,
    "the run ends while a Queue joins its shards": 1000920203,
    "in a shard that was rolled back, a worker of the last run takes leases of the next run": 1001210939,
    "a worker learns of the end before it learns that a shard was rolled back": 1001224695,
    "a request is added for another shard when the next run has begun": 1001308154,
    "a shard is rolled back further than the log, and loses a put of a page of another shard": 1001237065,
    "leases are given up while an exchange brings new ones": 1001224404,
    "the next run has begun in all shards when a worker learns of the end": 1001200146,
    "leases are given up while a rejoin is under way that brings them back": 1001222408,
    "a page runs while its worker gives up an outbox that it cannot read back": 1001101448,
    "a lease waits for a put to home, which is in the next run": 1001439729,
    "a late copy of a join takes a worker into the next run, but only at home": 1001222511,
    "a worker leaves although home, in the next run, does not confirm the worker's level": 1002005198,
    "a late copy of its join makes a worker a member of the next run, in which it has no start()": 1002020019,
    "home is gone while a push waits for the disks of all shards": 1001831975,
    "a failover loses puts on the disk of the old master, while their worker closes": 1010015345,
    "another shard was cleared after the end, and home alone is set back to before the end": 1001805690,
}
"""Seeds with which the simulator found a bug, in the code or in a check."""


def test_seeds_that_found_a_bug_keep_passing() -> None:
    done = simulate("--these", ",".join(map(str, FOUND.values())))
    assert done.returncode == 0, done.stdout + done.stderr
    totals = [json.loads(line) for line in done.stdout.splitlines()]
    found = {str(seed): what for what, seed in FOUND.items()}
    assert not {found[seed]: why for each in totals for seed, why in each["failures"].items()}
    assert sum(each["schedules"] for each in totals) == len(found)


@pytest.mark.parametrize("seed", [7, 11, 292])
def test_a_seed_is_the_same_schedule_each_time(seed: int) -> None:
    first, second = (simulate("--replay", str(seed)) for _ in range(2))
    assert first.stdout == second.stdout
    assert "digest" in first.stdout
