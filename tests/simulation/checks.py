"""What must hold in each schedule, whatever strikes it."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.keys import HOME
from simulation import faults
from simulation.crawler import FEED, Visit, parts
from simulation.site import Page
from simulation.store import CRAWL
from support.stored import Place, place_in, stored_state, waiting_places

if TYPE_CHECKING:
    from simulation.crawler import Crawler
    from simulation.schedule import Schedule

KEPT = {
    b"meta", b"seen", b"absent", b"limits", b"beats", b"failed", b"dead", b"seeds", b"admitted", b"discarded",
    b"decliners", b"blocked", b"earliest", b"spent", b"samples", b"minutes", b"journal",
}  # fmt: skip
"""Keys of a crawl that may be left when its run is finished."""
IMPOLITE = {"freeze", "block", "stall", "redis_clock", "redis_frozen", "shard_apart", *faults.LOSSES}
"""Faults after which a worker may download what was given to another one meanwhile."""
CLAIMED = b"\x01"
"""The partition of start payloads."""
LEAST: Place = (-(2**63), -(2**64))
Identity = tuple[int, str]
"""A page, and where it was found if it is not filtered."""


class Violation(AssertionError):
    """A promise was broken."""


def expected(pages: list[Page], starts: tuple[int, ...], origin: str) -> set[Identity]:
    """Return what a whole crawl processes, if it starts from *starts*."""
    found: set[Identity] = set()
    waiting: list[Identity] = [(page, origin) for page in starts]
    while waiting:
        if (each := waiting.pop()) in found:
            continue
        found.add(each)
        for ordinal, link in enumerate(pages[each[0]].links):
            waiting.append((link.page, "" if link.filtered else f"{each[0]}-{ordinal}"))
    return found


def nothing_lost(schedule: Schedule, crawler: Crawler) -> None:
    """Check, when a worker says `finished` or `unserved`, that nothing else of its run is missing."""
    run = crawler.worker.epoch, crawler.worker.run
    done = [visit for visit in schedule.visits() if visit.last]
    if schedule.losses:
        # What was processed in a run may belong to another one now, but not what was before it began.
        began = min(each.joined_at for each in schedule.crawlers if each.first_run == crawler.first_run)
        here = {visit.identity for visit in done if visit.ended_at >= began or visit.run == run}
    else:
        here = {visit.identity for visit in done if visit.run == run}
    # docs/reliability.md, "A process that Redis has forgotten, and that was away for long".
    outrun = crawler.outrun and crawler.forgotten(schedule.losses)
    # What others take meanwhile belongs to the next run, which they finish.
    missing = set() if outrun else schedule.from_start(crawler) - here
    missing |= set() if outrun else schedule.from_feed() - {each.identity for each in done}
    # A dead letter yields nothing.
    dead = schedule.dead | expected(schedule.plan.pages, tuple({page for page, _ in schedule.dead}), "")
    missing -= dead
    if not missing:
        return
    violation = Violation(
        f"a worker closes with reason finished, and these were never crawled: {sorted(missing)}"
    )
    # Further back than the logs reach: docs/reliability.md, "One shard of several".
    further = any(at - taken_at > schedule.setup.horizon_s for taken_at, at in schedule.losses)
    if schedule.setup.shards == 1 or not further:
        raise violation
    schedule.doubts.append((crawler, violation))


def another_says_so(schedule: Schedule) -> None:
    """Check that, if a worker says `finished` over a loss, who had stored it says otherwise, or is dead."""
    for crawler, violation in schedule.doubts:
        others = [each for each in schedule.crawlers if each is not crawler and each.runs & crawler.runs]
        if all(each.process.alive and each.ending == "finished" for each in others):
            raise violation


def no_exception(schedule: Schedule) -> None:
    """Check that nothing has raised what nobody handles."""
    # Who was killed may have been about to look at it.
    processes = (each.process for each in chain(schedule.crawlers, schedule.others()) if each.process.alive)
    loops = (process.loop for process in processes)
    for error in (*schedule.world.errors, *(error for loop in loops for error in loop.unretrieved())):
        raise Violation(f"an exception that nobody handles: {error!r}") from error


def extras(schedule: Schedule) -> None:
    """Check that what a worker has added, and Redis has confirmed, was processed."""
    done = {visit.identity for visit in schedule.visits() if visit.last} | schedule.dead
    for crawler in schedule.crawlers:
        if crawler.extra is None or schedule.losses or not crawler.process.alive:
            continue
        if crawler.spill_lost:
            continue  # no page and no start() yields it again; a log line says that this may be so
        if crawler.extra in schedule.put - done:
            raise Violation(f"{crawler.process.name} has added {crawler.extra}, and it was never crawled")


def pushed(schedule: Schedule) -> None:
    """Check that what was pushed, and Redis has confirmed, was processed."""
    done = {visit.identity for visit in schedule.visits() if visit.last} | schedule.dead
    stored = {each for process in schedule.others() for each in process.stored}
    if not schedule.losses and (missing := stored - done):
        raise Violation(f"these were pushed, and never crawled: {sorted(missing)}")


def applied(
    schedule: Schedule, worker_id: str, last: int, number: int, answer: list[Any], shard: int
) -> None:
    """Check an exchange: it follows the last one, its worker is not fenced, no key contradicts the counts."""
    if number != last + 1 and not schedule.losses:
        raise Violation(f"exchange {number} of {worker_id} is applied after exchange {last}")
    of_worker = f"{keys.prefix(keys.Shard(CRAWL, shard))}worker:{worker_id}"
    heard = worker_id in schedule.fenced and answer[1] == 1  # 0: the run is finished
    if heard and schedule.store.run("HGET", of_worker, "fenced") == b"1":
        raise Violation(f"an exchange of {worker_id} is applied, which is fenced")
    if answer[10]:
        raise Violation(f"keys contradict the counts: {answer[10].decode()}")


def within_budget(schedule: Schedule, answer: list[Any]) -> None:
    """Check that no more of the run is in flight, or sent and done or failed, than its workers may have."""
    most = {each.max_pages for each in schedule.crawlers}
    if None in most or not answer[4] or schedule.commands["queue"] or schedule.commands["feed"]:
        return
    _, in_flight, done, _, _, _, _, failed, *_ = answer[3]
    never_sent = answer[3][13]
    pages = in_flight + done + failed - never_sent
    if pages > max(most):
        raise Violation(f"{pages} requests are leased or done, and {most} are allowed")


def within_domain_budgets(schedule: Schedule, records: list[bytes], shard: int) -> None:
    """Check that of no host more is in flight and done than its budget."""
    budget = schedule.setup.budget_at(schedule.world.now)
    if not budget or not records or schedule.commands["limit"]:
        return
    prefix = keys.prefix(keys.Shard(CRAWL, shard))
    run = schedule.store.run("HGET", prefix + "meta", "run")
    for partition in {record[9:].partition(b"\0")[0] for record in records} - {CLAIMED}:
        spent = schedule.store.run("HGET", prefix + "spent", partition) or b"0 0"
        busy = sum(
            int(schedule.store.run("HGET", prefix + "busy", mark + partition) or 0) for mark in (b"", b"\2")
        )
        of_run, count = spent.split()
        # A shard that was rolled back to the run before still has what was spent in that.
        if int(count) * (of_run == run) + busy > budget:
            raise Violation(
                f"{spent.decode()} and {busy} in flight of {partition!r}, at a budget of {budget}"
            )


def over_budget(schedule: Schedule, answer: list[Any], shard: int) -> None:
    """Check, when an answer says that only what is over the budgets is left, that this is so."""
    in_flight, over = answer[3][1], answer[3][12]
    if not over or schedule.commands["limit"]:
        return
    of, prefix = keys.Shard(CRAWL, shard), keys.prefix(keys.Shard(CRAWL, shard))
    limiting = schedule.store.run("HGET", keys.meta(of), "limiting") or b""
    budget = int((*limiting.split(), 0, 0, 0)[2])
    for partition in waiting_places(schedule.store.reader, of):
        spent = schedule.store.run("HGET", prefix + "spent", partition) or b"0 0"
        if not 0 < budget <= int(spent.split()[1]):
            raise Violation(f"{partition!r} is not over its budget: {spent.decode()} of {budget}")
    for member in schedule.store.run("SMEMBERS", prefix + "members"):
        if schedule.store.run("HGET", f"{prefix}worker:{member.decode()}", "seeding") in (b"1", b"3"):
            raise Violation(f"{member.decode()} may still add something")
    if in_flight or schedule.store.run("EXISTS", prefix + "delayed"):
        raise Violation(f"more than what is over budgets is left in shard {shard}")


def closes_over_budget(schedule: Schedule, crawler: Crawler) -> None:
    """Check, when a worker closes because of budgets, that nothing is in flight, if nothing came since."""
    if schedule.losses or schedule.commands["limit"] or not schedule.setup.budget_at(schedule.world.now):
        return
    found = []
    for shard, of in enumerate(crawler.worker.dialogues):
        counts = schedule.store.run("HGET", keys.meta(keys.Shard(CRAWL, shard)), "counts") or b"0 0 0"
        sequence, _, in_flight, *_ = map(int, counts.split())
        if sequence != of.protocol.census.version:
            return
        found.append(in_flight)
    if any(found):
        raise Violation(f"{crawler.process.name} closes over budgets, with {found} in flight in the shards")


def drained(schedule: Schedule, worker_id: str) -> None:
    """Check that only a worker that is fenced is drained: else it may take leases meanwhile."""
    if worker_id not in schedule.fenced:
        raise Violation(f"{worker_id} is drained, and was not fenced")


def left(schedule: Schedule, shard: int, *, last: bool) -> None:
    """Check that a worker that leaves removes no other one."""
    if not last and not schedule.store.run("EXISTS", keys.prefix(keys.Shard(CRAWL, shard)) + "members"):
        raise Violation("a worker that leaves has removed the others")


def start_noted(schedule: Schedule, worker_id: str, level: str, broken: bytes) -> None:
    """Check that the start() of a worker that is fenced or leaves is noted as interrupted, if it is.

    Args:
        level: its last seeding level that Redis knows of.
        broken: the name of its start(), as the script says; empty: it is complete, or an equal one is.
    """
    if broken or level not in ("1", "2", "4") or schedule.losses:
        return
    if not any(worker_id in each.ids for each in schedule.crawlers):
        return  # it has none
    phase, starts = schedule.store.run("HMGET", keys.meta(CRAWL), "phase", "starts")
    complete = starts and "done" in msgpack.unpackb(starts).values()
    if phase == b"open" and not complete:
        raise Violation(f"{worker_id} has not completed its start(), and nothing says so")


def may_end(schedule: Schedule, crawler: Crawler) -> None:
    """Check that a worker whose run is not followed by another one can hand in what it has."""
    stored = schedule.store.run("HMGET", keys.meta(CRAWL), "epoch", "run")
    here = [crawler.worker.epoch.encode(), b"%d" % crawler.worker.run]
    if crawler.ending == "run_over" and stored == here and not schedule.losses:
        raise Violation(f"{crawler.process.name} closes with reason run_over in the run that is the last one")


def leased(schedule: Schedule, answer: list[Any], shard: int, *, with_order: bool) -> None:
    """Check what an exchange has leased: nothing while the crawl is on hold, and the best that waited."""
    records, declined = answer[4], answer[11]
    if not records:
        return
    held = schedule.commands["pause"] + schedule.commands["drain"]
    # Only home knows, and a worker learns it from its next exchange with home.
    if held and not shard and (hold := schedule.store.run("HGET", keys.meta(CRAWL), "hold")):
        raise Violation(f"requests are leased while the crawl is {hold.decode()}")
    if not with_order:
        return
    last: dict[bytes, Place] = {}
    for record in records:  # rank(8) flags(1) partition 0 turn(8) id(12) payload
        partition, _, rest = record[9:].partition(b"\0")
        # Not a suspect, nor what others have declined: that may come before better ones. Nor a start payload
        # that was claimed just now: that is behind all others.
        if record[8] < 128 and partition != CLAIMED and rest[8:20] not in declined:
            last[partition] = max(last.get(partition, LEAST), place_in(record[:8] + rest[:8]))
    for partition, places in waiting_places(schedule.store.reader, keys.Shard(CRAWL, shard)).items():
        if partition in last and min(places) < last[partition]:
            raise Violation(f"a worse request of {partition!r} is leased than one that waits")


def same_frontier(schedule: Schedule, crawler: Crawler) -> None:
    """Check, when a worker says `finished`, that its frontier is the same, and has lost nothing for good."""
    # What it finds while it closes comes too late for its reason, and is logged.
    if crawler.unnoticed and crawler.worker.ending == "finished":
        raise Violation(f"{crawler.process.name} has not noticed that Redis was rolled back beyond its log")
    epoch = schedule.store.run("HGET", keys.meta(CRAWL), "epoch")
    # Its last answer may be a moment old, or older if it was frozen since.
    replaced = schedule.replaced_at(crawler.worker.epoch) < crawler.decided_at - 0.1
    frozen = {"freeze", "block"} & set(schedule.report.faults)
    if replaced and not frozen and epoch and epoch.decode() != crawler.worker.epoch:
        raise Violation(f"{crawler.process.name} closes with reason finished, but its frontier is gone")


def dead_letters(schedule: Schedule) -> None:
    """Check that only a page that kills its workers is given up."""
    deadly = ("kill", "sigterm_kill", "freeze", "block", "stall", "shard_apart")
    kills = sum(schedule.report.faults[name] for name in deadly)
    # The first time that an entry kills its worker, it is not the suspect; another one may be.
    kills += len({each.killer for each in schedule.crawlers if each.killer})
    # A Redis that was rolled back has ids of workers that have left, or got new ones: they look dead.
    rolled_back = bool(set(schedule.report.faults) & set(faults.LOSSES))
    for entry_id, page in schedule.buried.items():
        if entry_id in schedule.unserved:
            continue
        charges = kills + schedule.taken_for_dead[entry_id] * rolled_back
        if not schedule.plan.pages[page].kills and charges < schedule.plan.setup.max_attempts:
            raise Violation(f"page {page} became a dead letter, and did nothing")


def unserved(schedule: Schedule, buried: set[bytes], shard: int) -> None:
    """Check that no worker which is a member could have served what an exchange has given up."""
    name = keys.prefix(keys.Shard(CRAWL, shard)) + "members"
    members = {each.decode() for each in schedule.store.run("SMEMBERS", name)}
    for entry_id in buried:
        page = schedule.buried[entry_id]
        able = [each for each in schedule.crawlers if each.serves(page) and each.ids & members]
        if able and not schedule.losses:
            names = [each.process.name for each in able]
            raise Violation(f"page {page} became a dead letter, and {names} could have served it")
    schedule.unserved |= buried


def repeats(schedule: Schedule) -> None:
    """Check that no page is processed again, unless the end of its lease was not stored, or was lost."""
    visits: dict[tuple[Any, ...], list[Visit]] = defaultdict(list)
    for visit in schedule.visits():
        visits[visit.run, visit.entry_id].append(visit)
        # If Redis is set back to an earlier run, that one's entries stay, and its fingerprints do not.
        if visit.origin in ("", "start") and not visit.attempt and not schedule.losses:
            visits[visit.run, visit.identity].append(visit)
    for (_, what), each in visits.items():
        without_reason = [visit for visit in each if not _undone(schedule, visit)]
        # What was forgotten is stored twice, and so each retry brings both.
        most = (1 + schedule.commands["forget"]) * (1 + schedule.commands["retry"])
        most += schedule.put_again[what] if isinstance(what, bytes) else 0
        if len(without_reason) > most:
            raise Violation(f"{what!r} was processed {len(each)} times: {[str(v) for v in each]}")


def _undone(schedule: Schedule, visit: Visit) -> bool:
    """Tell whether Redis does not know that a page was processed."""
    if not visit.settled:
        return True
    grants = [at for at in schedule.granted[visit.by, visit.entry_id] if at <= visit.taken_at]
    granted_at = max(grants, default=visit.taken_at)
    # Whoever left after an end that home has forgotten has cleared the other shards, or will do so.
    if visit.entry_id in schedule.granted_elsewhere and any(granted_at <= at for at in schedule.ends_lost):
        return True
    # What was stored a moment before is lost with what Redis loses; a put may be stored again after its page.
    return any(taken_at <= visit.confirmed_at and granted_at <= at for taken_at, at in schedule.losses)


def runs(schedule: Schedule) -> None:
    """Check that a worker stays in its run, and that a run with a name is not run again."""
    for each in schedule.crawlers:
        epochs = {epoch for epoch, _ in each.runs}
        # A late copy of its join may have made it a member of the next run.
        may_change = schedule.losses or each.ids & schedule.late_members
        if len(epochs) > 1 or (len(each.runs) > 1 and not may_change):
            raise Violation(f"{each.process.name} has taken part in several runs: {each.runs}")
    found = {run for crawler in schedule.crawlers for run in crawler.runs}
    if schedule.plan.setup.run_name and not schedule.losses and len(found) > 1:
        raise Violation(f"a run of a name was run again: {found}")


def limited(partition: bytes) -> bool:
    """Tell whether limits hold for a partition: start payloads have one of their own, without any."""
    return partition.startswith(b"host")


def politeness(schedule: Schedule) -> None:
    """Check the delay and the concurrency of each host, over all workers."""
    setup, struck = schedule.plan.setup, set(schedule.report.faults)
    if struck & IMPOLITE or schedule.commands["limit"]:
        return
    if setup.delay_s:
        by_host: dict[Any, list[float]] = defaultdict(list)
        for crawler in schedule.crawlers:
            for at, host, run in crawler.sends:
                if limited(host):
                    by_host[host, run].append(at)
        for (host, _), times in by_host.items():
            times.sort()
            gap = min((b - a for a, b in pairwise(times)), default=1.0)
            if gap < setup.delay_s - 0.001:
                raise Violation(
                    f"two requests to {host!r} within {gap:.4f} s, at a delay of {setup.delay_s} s"
                )


def concurrency(schedule: Schedule) -> None:
    """Check, as a request is sent, how many of its host are under way."""
    most = schedule.plan.setup.concurrency
    if not most or schedule.commands["limit"] or set(schedule.report.faults) & IMPOLITE:
        return
    running: Counter[bytes] = Counter()
    for crawler in schedule.crawlers:
        if crawler.there:
            running.update(filter(limited, crawler.downloading.values()))
    if any(count > most for count in running.values()):
        raise Violation(f"more than {most} requests to one host at once: {dict(running)}")


def acknowledged(schedule: Schedule) -> None:
    """Check that no message of a stream was acknowledged before all that was made of it was processed."""
    if not schedule.setup.streams or schedule.setup.shards > 1 or schedule.losses:
        return
    done = {visit.entry_id for visit in schedule.visits()} | set(schedule.buried)
    for message in schedule.acknowledged():
        if missing := schedule.made_of[message] - done:
            raise Violation(f"{message!r} is acknowledged, and {missing} were not processed")


def stored(schedule: Schedule) -> None:
    """Check all that is stored, key by key."""
    acknowledged(schedule)
    for shard in range(schedule.setup.shards):
        _stored(schedule, shard)


def _stored(schedule: Schedule, shard: int) -> None:
    order = schedule.plan.setup.order
    try:
        state = stored_state(
            schedule.store.reader, keys.Shard(CRAWL, shard), order, strict=False,
            forgotten=lambda payload: parts(payload)[0] in schedule.forgotten,
        )  # fmt: skip
    except AssertionError as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line
        raise Violation(f"the stored state is wrong: {error!r} in {line}") from error
    charged = sum(attempts for _, attempts, _, _ in state["entries"].values())
    charged += sum(attempts for _, attempts, _ in state["dead"].values())
    if charged > len(schedule.fenced):
        raise Violation(f"{charged} attempts are charged for {len(schedule.fenced)} workers that have died")
    suspects = Counter(where for where, _, suspect, _ in state["entries"].values() if suspect)
    waiting = ("backlog", "declined")
    if any(where not in waiting and count > 1 for where, count in suspects.items()):
        raise Violation(f"a worker has more than one suspect: {dict(suspects)}")


def _epoch(schedule: Schedule, shard: int) -> Any:
    return schedule.store.run("HGET", keys.meta(keys.Shard(CRAWL, shard)), "epoch")


def keys_left(schedule: Schedule) -> None:
    """Check that nothing is left of a finished run that should not be."""
    # A worker that dies when nothing is left stays a member until the next run begins.
    # So does one that has given up, or whose join arrives later, or whose leave was rolled back.
    rolled_back = bool(set(schedule.report.faults) & set(faults.LOSSES))
    members = {
        worker_id
        for each in chain(schedule.crawlers, schedule.others())
        for worker_id in each.ids
        if rolled_back or not each.process.alive or each.gave_up
    }
    members |= schedule.late_members
    names = schedule.store.names(0)
    for shard in range(1, schedule.setup.shards):
        of_shard = schedule.store.names(shard)
        # Rolled back after the end, it may have a dead member, and what is done, also when its last worker
        # has left, for which it had another version; and if home was lost, all of another crawl: the next run
        # clears it.
        dead = rolled_back and keys.prefix(keys.Shard(CRAWL, shard)).encode() + b"members" in of_shard
        dead = dead or any(at >= each.told_at for each in schedule.crawlers for _, at in schedule.losses)
        if not dead and _epoch(schedule, shard) == _epoch(schedule, HOME):
            names |= of_shard
    left = {key.rpartition(b"}:")[2] for key in names} - KEPT - {FEED.encode()}
    left -= {b"members", *(b"worker:" + each.encode() for each in members)} if members else set()
    left = {name for name in left if not name.startswith(b"seen:")}
    if left:
        raise Violation(f"keys are left: {left}")


def gone_on(schedule: Schedule) -> bool:
    """Tell whether something of the crawl is left that the next command would take up."""
    store = schedule.store
    return store.run("HGET", keys.meta(CRAWL), "phase") == b"open" or (
        schedule.plan.setup.fed > 0 and bool(schedule.unread())
    )
