"""Removes one rule of the protocol after another, and counts the seeds until a promise is broken."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

import scrapy_dq
from simulation.plan import SHARDED

ROOT = Path(scrapy_dq.__file__).parents[1]
TESTS = Path(__file__).parents[1]
APART = 100_000
"""Distance between the first seeds of two tries."""
LUA = "scrapy_dq/frontier/lua/"
WORKER = "scrapy_dq/frontier/worker/"
SHARDING = "scrapy_dq/sharding/"


@dataclass(frozen=True)
class Mutation:
    """A rule of docs/internals/evidence.md, and the replacements of text that remove it."""

    rule: str
    """The rule's number in "The thirteen rules of the protocol", GUARD for "Other guards", or SHARDS."""
    what: str
    changes: tuple[tuple[str, str, str], ...]
    test: str = ""
    """A pytest test that fails without the rule, if the simulator's plans hardly ever need the rule."""


GUARD = "guard"
SHARDS = "shards"
RULES = "unit/test_shard_rules.py::test_"

MUTATIONS = (
    Mutation("1", "an exchange is applied out of sequence", (
        (LUA + "transitions/exchange.lua", "not last_seq or seq ~= last_seq + 1", "not last_seq"),
    )),
    Mutation("2", "the log keeps nothing", (
        (WORKER + "replay_log.py", "        put.source = None\n", "        return\n"),
    )),
    Mutation("2", "the log keeps no children", (
        (WORKER + "replay_log.py", "        put.source = None\n", "        if put.parent: return\n"),
    )),
    Mutation("3", "the log retires puts at once, and does not report it", (
        (WORKER + "replay_log.py", "return confirmed_at + self._horizon_s", "return confirmed_at"),
        (WORKER + "replay_log.py", "return self._retired_seq > last_seq,", "return False,"),
        (WORKER + "replay_log.py", "self._retired_parentless_seq > last_seq", "False"),
    )),
    Mutation("3", "a roll-back beyond the log is not noticed", (
        (WORKER + "protocol.py", "if forgot:\n", "if False:\n"),
        (WORKER + "protocol.py", "unknown or self._must_restart(*self.log.forgot(last_seq))", "False"),
    )),
    Mutation("4", "the run is not compared", (
        (LUA + "lib/state.lua", "  if state.run > run then return 'FINISHED' end\n", ""),
        (LUA + "lib/state.lua", " or state.run > run and member and is_member(member)", ""),
        (LUA + "transitions/rejoin.lua", "state.run > run and (by_late_copy", "false and (by_late_copy"),
    )),
    Mutation("4", "the epoch is not compared", (
        (LUA + "lib/state.lua", "not state.epoch or state.epoch ~= epoch", "not state.epoch"),
        (LUA + "transitions/rejoin.lua", "if state.epoch ~= epoch or", "if not state.epoch or"),
    )),
    Mutation("5", "an earlier run is not noticed", (
        (LUA + "lib/state.lua", "if state.run < run or state.run > run", "if state.run > run"),
        (LUA + "transitions/rejoin.lua", "if state.run < run then", "if false then"),
    )),
    Mutation("6", "the end ignores seeding workers", (
        (LUA + "moves/finish.lua", "busy = busy or level ~= '0'", ""),
    )),
    Mutation("6", "an interrupted start() is forgotten", (
        (LUA + "lib/starts.lua", "  return note_broken(name, worker_id, seeding == AGAIN)", "  return ''"),
    )),
    Mutation("7", "the count of leases is not compared", (
        (LUA + "transitions/exchange.lua", "if held ~= key_sizes.in_flight then", "if false then"),
    )),
    Mutation("8", "a repeat of an exchange has other contents", (
        (WORKER + "protocol.py", "if self._pending is None:\n            try:",
         "if not isinstance(self._pending, Rejoin):\n            try:"),
    )),
    Mutation("8", "a rejoin releases nothing", (
        (LUA + "transitions/rejoin.lua",
         "      release(old_id, leases[i], read_lease(old_id, leases[i]))\n", ""),
    )),
    Mutation("9", "a new put does not open a finished run", (
        (LUA + "moves/put.lua", "  if state.stored_phase ~= 'open' then open_run() end\n", ""),
    )),
    Mutation("9", "data for a worker that may come back is unlinked", (
        (LUA + "lib/member.lua", "key.failed, key.dead, key.absent) > 0", "key.failed, key.dead) > 0"),
    )),
    Mutation("10", "any worker that leaves clears a finished run", (
        (LUA + "transitions/leave.lua", "if last == 1 and (over or state.phase", "if (over or state.phase"),
    )),
    Mutation("10", "a named run is run twice", (
        (LUA + "lib/member.lua", "if ours.run_name ~= '' then return ours.run_name == was[1] and -1 end", ""),
    )),
    Mutation("11", "a worker gets several suspects", (
        (LUA + "moves/lease.lua", "may_exist('quarantine') and not holds_suspect", "may_exist('quarantine')"),
    )),
    Mutation("11", "each lease of a dead worker is charged", (
        (LUA + "transitions/drain.lua", "if lease and lease.quarantined then", "if lease then"),
    )),
    Mutation("12", "a drain without a fence", (
        (LUA + "transitions/drain.lua", "if fenced ~= '1' then return { 'NOT_FENCED' } end", ""),
        (WORKER + "reclaim.py", "await self._frontier.fence(worker_id, epoch, run, gone, by)", '"OK", ""'),
    )),
    Mutation("12", "exchanges of a fenced worker are applied", (
        (LUA + "transitions/exchange.lua", "if record[2] == '1' then return { 'RESYNC' } end", ""),
    )),
    Mutation("13", "ids are used again", (
        ("scrapy_dq/scheduling/admission.py", "prefix = os.urandom(8)", "prefix = bytes(8)"),
    )),
    Mutation(GUARD, "a worker counts as alive although its exchanges get no answer", (
        (WORKER + "heartbeat.py", "        if not self._was_cut_off:\n", "        if True:\n"),
    )),
    Mutation(GUARD, "Redis looks only for the newest id of a worker", (
        (LUA + "transitions/rejoin.lua", "== 1 then known = i end", "== 1 then known = 1 end"),
    ), test="frontier/test_two_masters.py::test_no_put_counts_as_lost_within_the_horizon"),
    Mutation(GUARD, "each put counts as new", (
        (LUA + "moves/put.lua", "if not admit[admission](token) then return KNOWN end",
         "admit[admission](token)"),
    )),
    Mutation(GUARD, "a repeat of an exchange brings no leases", (
        (LUA + "transitions/exchange.lua", "repeat_grants(worker_id, record[5] or '')", ""),
    )),
    Mutation(GUARD, "a lease that is in progress here is started again", (
        (WORKER + "leases.py", "if lease.entry_id in self._running or lease.entry_id in self._settling:",
         "if False:"),
    )),
    Mutation(GUARD, "leases in flight do not keep the run open", (
        (LUA + "moves/finish.lua", "if busy or held or", "if busy or"),
        (LUA + "moves/finish.lua", "if not held and (waiting > 0 or state.in_flight > 0)",
         "if waiting > 0"),
    )),
    Mutation(GUARD, "delayed entries do not keep the run open", (
        (LUA + "moves/finish.lua", "if busy or held or delayed then", "if busy or held then"),
        (LUA + "moves/finish.lua", "  if state.delayed > 0 then damaged('entries') end\n", ""),
    )),
    Mutation(GUARD, "a worker that leaves takes its leases with it", (
        (LUA + "transitions/leave.lua",
         "for _, id in ipairs(ids) do release(worker_id, id, read_lease(worker_id, id)) end\n", ""),
    )),
    Mutation(GUARD, "a worker whose frontier is gone has finished", (
        (WORKER + "protocol.py", "if receipt.status is Status.LOST:\n            self._lose()",
         "if receipt.status is Status.LOST:\n            self._finish(over=True)"),
    )),
    Mutation(GUARD, "leases are kept whose children were lost on disk", (
        (WORKER + "protocol.py", "self.outbox.clear()\n        self._forfeit()", "self.outbox.clear()"),
    )),
    Mutation(GUARD, "a paused crawl continues", (
        (LUA + "transitions/exchange.lua", "if state.hold ~= '' then want, claims = 0, false end", ""),
    )),
    Mutation(GUARD, "an entry is buried although a present worker may serve it", (
        (LUA + "moves/finish.lua", "  if not all_have_declined(members) then return false end\n", ""),
    )),
    Mutation(GUARD, "one look is enough to declare a worker dead", (
        (WORKER + "heartbeat.py", "if span >= self._ttl_s and times >= 3:", "if times >= 1:"),
    ), test="worker/test_heartbeat.py::test_a_worker_is_declared_dead_after_three_looks_at_the_earliest"),
    Mutation(GUARD, "a host's requests in flight are not in its budget", (
        (LUA + "moves/lease.lua", "budget - used_by(partition)", "budget - spent_by(partition)"),
    )),
    Mutation(GUARD, "seeding and listening workers count as unable to add requests", (
        (LUA + "moves/finish.lua", "adding = adding or level == '1' or level == '3'", ""),
    )),
    Mutation(GUARD, "a message is acknowledged with its start payload", (
        (LUA + "moves/put.lua", "    count_message(payload, 1)\n", ""),
    )),
    Mutation(GUARD, "requests in flight are not in the budget", (
        (LUA + "transitions/exchange.lua", " - state.failed - state.in_flight", " - state.failed"),
    )),
    Mutation(GUARD, "an entry to be done again counts as done", (
        (LUA + "moves/endings.lua", "AGAIN then again(worker_id, id, lease, ending)",
         "AGAIN then ack(worker_id, { id })"),
    )),
    Mutation(GUARD, "a late copy of its join takes a worker into the next run", (
        (LUA + "transitions/exchange.lua", "if registered ~= '0' and record[8] and", "if false and"),
        (LUA + "transitions/rejoin.lua", "since * registered > 0 and since ~= registered", "false"),
    ), test="frontier/test_late.py::test_a_late_copy_of_a_join_takes_no_worker_into_the_next_run"),
    Mutation(GUARD, "partitions without entries hide the partitions behind them", (
        (LUA + "moves/lease.lua", "until want <= 0 or unleasable == 0", "until true or unleasable == 0"),
    ), test="frontier/test_damage.py::test_partitions_without_entries_do_not_hide_those_behind_them"),
    Mutation(SHARDS, "an ack waits for no put in another shard", (
        (SHARDING + "worker.py", "elif self._deferred.defers(shard, ending):", "elif False:"),
    )),
    Mutation(SHARDS, "an entry that waits for a put in another shard is not in the budget", (
        (LUA + "lib/politeness.lua", " + busy_of(DEFERRED .. partition)", ""),
    )),
    Mutation(SHARDS, "an ack waits until its puts are confirmed", (
        (WORKER + "protocol.py",
         "return self.log.retired if self.log or self.outbox.puts else self.outbox.last_put",
         "return self.outbox.last_put - self.outbox.puts"),
    )),
    # The list has no mutation in which an ack does not wait for an earlier put of one of its links: 2,694
    # seeds in which a worker is cut off from a shard and declared dead did not find this fault. The model
    # checker finds it (`defer_for_known` of verification/).
    Mutation(SHARDS, "a put without a parent does not wait for home", (
        (SHARDING + "closing.py", "            each.may_seed = self.is_raised\n", "            pass\n"),
    ), test=RULES + "a_put_without_a_parent_waits_for_home"),
    Mutation(SHARDS, "the level does not wait for puts elsewhere", (
        (SHARDING + "closing.py", "        return bool(self._last)\n", "        return False\n"),
    ), test=RULES + "a_level_stays_until_its_puts_are_certain"),
    Mutation(SHARDS, "the level does not wait for its raise", (
        (SHARDING + "closing.py",
         "while self._last and self._protocols[0].raise_retired:", "while self._last:"),
    ), test=RULES + "a_level_stays_until_its_raise_is_certain_at_home"),
    Mutation(SHARDS, "the level counts as raised until Redis has lowered it", (
        (SHARDING + "protocol.py",
         "            self._lower()  # from now on the lower level may arrive\n", "            pass\n"),
        (SHARDING + "protocol.py", "        if sent.call.seeding in _LOWERED:\n            return\n",
         "        if sent.call.seeding in _LOWERED:\n            return self._lower()\n"),
    ), test=RULES + "a_level_counts_as_lowered_once_the_lower_level_is_sent"),
    Mutation(SHARDS, "a level that is raised does not open home", (
        (LUA + "moves/finish.lua",
         "ELSEWHERE or finish_at and seeding ~= '0' and seeding ~= '3'", "ELSEWHERE"),
    ), test="simulation/test_seeds.py::test_seeds_that_found_a_bug_keep_passing"),
    Mutation(SHARDS, "the shards are asked once", (
        (SHARDING + "closing.py", "            self._next(_Stage.AGAIN, *range(1, len(self._protocols)))\n",
         "            home.finish_at = self._versions[0]\n            self._next(_Stage.FINISHING, 0)\n"),
    ), test=RULES + "all_shards_answer_twice_before_home_may_finish"),
    Mutation(SHARDS, "their versions are not compared", (
        (SHARDING + "closing.py",
         "(shard > 0 and part.census", "(False and part.census"),
    ), test=RULES + "a_shard_that_changed_between_its_answers_restarts_the_collect"),
    Mutation(SHARDS, "home finishes although it has changed", (
        (LUA + "moves/finish.lua",
         "not finish_at or finish_at == state.sequence", "not finish_at or finish_at >= 0"),
    ), test="frontier/test_shards.py::test_home_finishes_only_with_the_version_of_the_collect"),
    Mutation(SHARDS, "a finished home retires no log", (
        (WORKER + "protocol.py", "            if receipt.commands is not None:\n", "            if False:\n"),
    ), test=RULES + "a_home_that_is_finished_retires_its_log"),
    Mutation(SHARDS, "a lost shard is created again", (
        (LUA + "transitions/join.lua", "  if exists then return 'LOST' end\n", ""),
    ), test="frontier/test_shards.py::"
        "test_a_shard_that_is_gone_after_all_shards_existed_is_lost"),
    Mutation(SHARDS, "a shard stays in an older run", (
        (LUA + "transitions/join.lua", "return state.run < of_run or", "return"),
    ), test="simulation/test_seeds.py::test_seeds_that_found_a_bug_keep_passing"),
    Mutation(SHARDS, "a page that is done is charged with its worker's death", (
        (LUA + "transitions/drain.lua", "lease.quarantined = not lease.deferred", "lease.quarantined = true"),
    ), test="frontier/test_shards.py::test_a_kept_lease_does_not_count_as_a_suspect"),
    Mutation(SHARDS, "a worker gets a suspect of each shard at once", (
        (SHARDING + "protocol.py",
         "no_suspects=not self._may_lease_suspect(demand.want)", "no_suspects=False"),
    ), test=RULES + "one_shard_at_a_time_may_bring_a_suspect"),
    Mutation(SHARDS, "leases of other shards are kept when an outbox is lost", (
        (SHARDING + "protocol.py", "            other.forfeit()\n", "            pass\n"),
        (SHARDING + "protocol.py", "        self.common.give_up_deferred()\n", ""),
    ), test=RULES + "a_lost_outbox_gives_up_the_leases_of_all_shards"),
    Mutation(SHARDS, "a worker that is cut off from a shard returns no leases", (
        (SHARDING + "reach.py", "            self._end(own, Release(entry_id))\n", "            pass\n"),
        (SHARDING + "worker.py", "if self._deferred.waits_for(", "if False and ("),
    ), test="worker/test_shards_reach.py"),
    Mutation(SHARDS, "lost requests of a shard are not noted at home", (
        (SHARDING + "worker.py",
         "                self.home.dialogue.note(Gone(each, gone))\n", "                pass\n"),
    ), test="worker/test_shards_end_of_run.py::test_losses_of_another_shard_are_counted_at_home"),
)  # fmt: skip


def main() -> int:
    """Print, for each removed rule, the number of seeds until a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m simulation.mutations", description=main.__doc__)
    parser.add_argument("--rule", action="append", help="only this rule; may be given several times")
    parser.add_argument("--tries", type=int, default=5, help="of which the median counts (default: 5)")
    parser.add_argument("--most", type=int, default=2000, help="seeds of a try (default: 2000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    table = Table("rule", "taken out", "seeds", "median", "what the simulator says")
    found = True
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutation in MUTATIONS:
            if options.rule and mutation.rule not in options.rule:
                continue
            if mutation.test:
                is_found = fails(mutation)
                of_tries = "test", "", "fails" if is_found else "passes"
            else:
                least = SHARDED if mutation.rule == SHARDS else 0
                firsts = [least + number * APART for number in range(options.tries)]
                tries = list(pool.map(lambda first, m=mutation: _try(m, first, options.most), firsts))
                counts = [count for count, _ in tries]
                is_found = (middle := median(counts)) <= options.most
                shown = ", ".join(str(count) if count <= options.most else "-" for count in counts)
                failure = next((text for _, text in tries if text), "nothing")
                of_tries = shown, f"{middle:.0f}", failure[:60]
            found = found and is_found
            row = (mutation.rule, mutation.what, *of_tries)
            console.print(*row, sep=" | ", markup=False, highlight=False)
            table.add_row(*row)
    console.print(table)
    return int(not found)


def mutated(mutation: Mutation, folder: Path) -> dict[str, str]:
    """Copy the package and the simulator into *folder* without a rule.

    Return the environment for a process that uses the copy.
    """
    for name in ("scrapy_dq", "tests/simulation", "tests/support"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in mutation.changes:
        path = folder / name
        path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(folder / "tests"), str(folder)))}


def fails(mutation: Mutation) -> bool:
    """Return whether the test of *mutation* fails without the rule."""
    with tempfile.TemporaryDirectory(prefix="dq-mutation-") as folder:
        # Copy the tests next to the package, where each test finds its imports.
        env = mutated(mutation, Path(folder))
        shutil.copytree(
            TESTS, Path(folder, "tests"), dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "pyproject.toml", folder)
        # The test often fails only after a wait, which need not be as long here as on a busy machine.
        waiting = Path(folder, "tests", "support", "waiting.py")
        text = waiting.read_text("utf-8")
        assert "\nSLACK = 12\n" in text
        waiting.write_text(text.replace("\nSLACK = 12\n", "\nSLACK = 2\n"), "utf-8")
        options = ("-q", "-m", "not soak", "-p", "no:cacheprovider")
        command = [sys.executable, "-m", "pytest", *options, f"tests/{mutation.test}"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, check=False)
        assert done.returncode in (0, 1), done.stdout + done.stderr  # otherwise the test could not run
        return done.returncode == 1


def _try(mutation: Mutation, first: int, most: int) -> tuple[int, str]:
    """Return the number of seeds until one fails (above *most*: none has failed), and the broken promise."""
    with tempfile.TemporaryDirectory(prefix="dq-mutation-") as folder:
        env = mutated(mutation, Path(folder))
        command = [sys.executable, "-m", "simulation", "--json", "--first", str(first), "--seeds", str(most)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=folder) as child:
            assert child.stdout is not None
            for line in child.stdout:
                failures = {int(seed): failure for seed, failure in json.loads(line)["failures"].items()}
                if failures:
                    child.terminate()
                    seed = min(failures)
                    return seed - first + 1, failures[seed]
        assert child.returncode == 0, f"the simulator exits with {child.returncode}"
    return most + 1, ""


if __name__ == "__main__":
    sys.exit(main())
