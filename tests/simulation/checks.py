"""Checks of each schedule (a simulated crawl), whatever its faults: at a close, at any time, at the end."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from itertools import chain, pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.keys import HOME
from simulation import faults
from simulation.site import Page
from simulation.store import CRAWL
from simulation.visits import FEED, Visit, parts
from support.stored import stored_state

if TYPE_CHECKING:
    from simulation.crawler import Crawler
    from simulation.schedule import Schedule

KEPT = {
    b"meta", b"seen", b"absent", b"accused", b"limits", b"beats", b"failed", b"dead", b"seeds", b"admitted",
    b"discarded", b"decliners", b"blocked", b"earliest", b"spent", b"samples", b"minutes", b"journal",
}  # fmt: skip
"""Keys that a finished crawl may leave."""
IMPOLITE = {
    "freeze",
    "block",
    "stall",
    "redis_clock",
    "redis_frozen",
    "shard_apart",
    "exchanges_cut",
    "shard_cut",
    *faults.LOSSES,
}
"""Faults that may exceed limits: a worker may download a page that another one has got in the meantime."""
Identity = tuple[int, str]
"""A page, and the place where its request was found (empty if the request is filtered)."""


class Violation(AssertionError):
    """A promise was broken."""


def expected(pages: list[Page], starts: tuple[int, ...], origin: str) -> set[Identity]:
    """Return the pages that a whole crawl from *starts* processes."""
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
    """Check that only dead letters are missing when a worker closes with `finished` or `unserved`."""
    run = crawler.worker.epoch, crawler.worker.run
    done = [visit for visit in schedule.visits() if visit.last]
    if schedule.losses:
        # After a loss of data, a visit of this run may be recorded for another run. So all visits since this
        # run began count.
        began = min(each.joined_at for each in schedule.crawlers if each.first_run == crawler.first_run)
        here = {visit.identity for visit in done if visit.ended_at >= began or visit.run == run}
    else:
        here = {visit.identity for visit in done if visit.run == run}
    # See docs/reliability.md, "A process that Redis has forgotten, and that was away for long".
    overtaken = crawler.overtaken and crawler.forgotten(schedule.losses)
    # In this case, other workers lease the remaining pages in the next run, and finish them there.
    missing = set() if overtaken else schedule.from_start(crawler) - here
    missing |= set() if overtaken else schedule.from_feed() - {each.identity for each in done}
    # A dead letter yields no requests.
    dead = schedule.dead | expected(schedule.plan.pages, tuple({page for page, _ in schedule.dead}), "")
    missing -= dead
    if not missing:
        return
    violation = Violation(
        f"a worker closes with reason finished, and these were never crawled: {sorted(missing)}"
    )
    # Redis was set back further than the logs reach. See docs/reliability.md, "One shard of several".
    further = any(at - taken_at > schedule.setup.horizon_s for taken_at, at in schedule.losses)
    if schedule.setup.shards == 1 or not further:
        raise violation
    schedule.doubts.append((crawler, violation))


def other_reports_loss(schedule: Schedule) -> None:
    """If a worker has closed with `finished` although pages are missing, check that another one did not.

    The other worker of the run must report the loss, or be dead.
    """
    for crawler, violation in schedule.doubts:
        others = [each for each in schedule.crawlers if each is not crawler and each.runs & crawler.runs]
        if all(each.process.alive and each.ending == "finished" for each in others):
            raise violation


def no_exception(schedule: Schedule) -> None:
    """Check that there was no unhandled exception."""
    # A killed process may have been about to handle its exception.
    processes = (each.process for each in chain(schedule.crawlers, schedule.others()) if each.process.alive)
    loops = (process.loop for process in processes)
    for error in (*schedule.world.errors, *(error for loop in loops for error in loop.unretrieved())):
        raise Violation(f"unhandled exception: {error!r}") from error


def extras(schedule: Schedule) -> None:
    """Check that each request that a worker added, and Redis confirmed, was processed."""
    done = {visit.identity for visit in schedule.visits() if visit.last} | schedule.dead
    for crawler in schedule.crawlers:
        if crawler.extra is None or schedule.losses or not crawler.process.alive:
            continue
        if crawler.spill_lost:
            continue  # no page and no start() yields the request again; the log reports this possible loss
        if crawler.extra in schedule.put - done:
            raise Violation(f"{crawler.process.name} has added {crawler.extra}, and it was never crawled")


def pushed(schedule: Schedule) -> None:
    """Check that each pushed page that Redis confirmed was processed."""
    done = {visit.identity for visit in schedule.visits() if visit.last} | schedule.dead
    stored = {each for process in schedule.others() for each in process.stored}
    if not schedule.losses and (missing := stored - done):
        raise Violation(f"these were pushed, and never crawled: {sorted(missing)}")


def closes_over_budget(schedule: Schedule, crawler: Crawler) -> None:
    """Check that nothing is in flight when a worker closes because of budgets.

    The check is skipped if something was added since the worker's last census.
    """
    if schedule.losses or schedule.commands["limit"] or not schedule.setup.budget_at(schedule.world.now):
        return
    found = []
    for shard, of in enumerate(crawler.worker.parts):
        counts = schedule.store.run("HGET", keys.meta(keys.Shard(CRAWL, shard)), "counts") or b"0 0 0"
        sequence, _, in_flight, *_ = map(int, counts.split())
        if sequence != of.protocol.census.version:
            return
        found.append(in_flight)
    if any(found):
        raise Violation(f"{crawler.process.name} closes over budgets, with {found} in flight in the shards")


def may_end(schedule: Schedule, crawler: Crawler) -> None:
    """Check that a worker does not close with `run_over` while its run is the last one."""
    stored = schedule.store.run("HMGET", keys.meta(CRAWL), "epoch", "run")
    here = [crawler.worker.epoch.encode(), b"%d" % crawler.worker.run]
    if crawler.ending == "run_over" and stored == here and not schedule.losses:
        raise Violation(f"{crawler.process.name} closes with reason run_over in the run that is the last one")


def has_lost(schedule: Schedule, crawler: Crawler) -> None:
    """Check that Redis was rolled back beyond a worker's log if the worker reports this."""
    # Take all losses together: a late copy of a call may bring back lost data, which the next loss removes.
    ends, begins = [at for _, at in schedule.losses], [taken_at for taken_at, _ in schedule.losses]
    longest = max(ends, default=0.0) - min(begins, default=0.0)
    # A worker that closes empties its log when its puts are on Redis's disk. A failover may still lose them.
    emptied_at = min(getattr(each.protocol.log, "emptied_at", inf) for each in crawler.worker.parts)
    if longest < schedule.setup.horizon_s and emptied_at > max(ends, default=0.0):
        raise Violation(
            f"{crawler.process.name} finds Redis rolled back beyond its log, after {longest:.2f} s"
        )


def same_frontier(schedule: Schedule, crawler: Crawler) -> None:
    """Check that a worker that closes with `finished` has its frontier, and has noticed each loss of data."""
    # A worker that notices a loss while it closes logs the loss, and keeps its close reason.
    if crawler.unnoticed and crawler.worker.ending == "finished":
        raise Violation(f"{crawler.process.name} has not noticed that Redis was rolled back beyond its log")
    epoch = schedule.store.run("HGET", keys.meta(CRAWL), "epoch")
    # The worker knows only its last answer, which is a moment old, or older if the worker was frozen since.
    knew_at = min(crawler.decided_at - 0.1, schedule.network.answered_at.get(crawler.process, 0.0))
    replaced = schedule.replaced_at(crawler.worker.epoch) < knew_at
    frozen = {"freeze", "block"} & set(schedule.report.faults)
    if replaced and not frozen and epoch and epoch.decode() != crawler.worker.epoch:
        raise Violation(f"{crawler.process.name} closes with reason finished, but its frontier is gone")


def dead_letters(schedule: Schedule) -> None:
    """Check that only pages that kill their workers become dead letters."""
    deadly = ("kill", "sigterm_kill", "freeze", "block", "stall", "shard_apart", "exchanges_cut", "shard_cut")
    kills = sum(schedule.report.faults[name] for name in deadly)
    # When an entry first kills its worker, it is not a suspect yet. Another entry may be the suspect of this
    # worker, and is charged.
    kills += len({each.killer for each in schedule.crawlers if each.killer})
    # A rolled-back Redis has ids of workers that have left or have new ids. These ids look like dead workers.
    rolled_back = bool(set(schedule.report.faults) & set(faults.LOSSES))
    for entry_id, page in schedule.buried.items():
        if entry_id in schedule.unserved:
            continue
        charges = kills + schedule.taken_for_dead[entry_id] * rolled_back
        if not schedule.plan.pages[page].kills and charges < schedule.plan.setup.max_attempts:
            raise Violation(f"page {page} became a dead letter, although it kills no worker")


def repeats(schedule: Schedule) -> None:
    """Check that no page is processed again, except if the end of its lease was not stored, or was lost."""
    visits: dict[tuple[Any, ...], list[Visit]] = defaultdict(list)
    for visit in schedule.visits():
        visits[visit.run, visit.entry_id].append(visit)
        # If Redis is set back to an earlier run, its entries stay, but their fingerprints do not. So after a
        # loss, a page may have two entries.
        if visit.origin in ("", "start") and not visit.attempt and not schedule.losses:
            visits[visit.run, visit.identity].append(visit)
    for (_, what), each in visits.items():
        without_reason = [visit for visit in each if not _undone(schedule, visit)]
        # A page with a cleared fingerprint is stored twice, and each retry brings back both entries.
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
    # Home has forgotten an end of the run. A worker that leaves after that end clears the other shards.
    if visit.entry_id in schedule.granted_elsewhere and any(granted_at <= at for at in schedule.ends_lost):
        return True
    # Redis loses recent data in a loss. Then a worker may put a page again although it was processed.
    return any(taken_at <= visit.confirmed_at and granted_at <= at for taken_at, at in schedule.losses)


def runs(schedule: Schedule) -> None:
    """Check that a worker stays in its run, and that a named run does not run again."""
    for each in schedule.crawlers:
        epochs = {epoch for epoch, _ in each.runs}
        # A late copy of its join may have made the worker a member of the next run.
        may_change = schedule.losses or each.ids & schedule.late_members
        if len(epochs) > 1 or (len(each.runs) > 1 and not may_change):
            raise Violation(f"{each.process.name} has taken part in several runs: {each.runs}")
    found = {run for crawler in schedule.crawlers for run in crawler.runs}
    if schedule.plan.setup.run_name and not schedule.losses and len(found) > 1:
        raise Violation(f"a named run was run again: {found}")


def limited(partition: bytes) -> bool:
    """Tell whether a partition can have limits; the partition of start payloads has none."""
    return partition.startswith(b"host")


def politeness(schedule: Schedule) -> None:
    """Check each host's delay over all workers."""
    setup, struck = schedule.plan.setup, set(schedule.report.faults)
    if struck & IMPOLITE or schedule.taken_for_dead or schedule.commands["limit"]:
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
    """Check each host's number of running requests when a request is sent."""
    most, struck = schedule.plan.setup.concurrency, set(schedule.report.faults)
    if not most or struck & IMPOLITE or schedule.taken_for_dead or schedule.commands["limit"]:
        return
    running: Counter[bytes] = Counter()
    for crawler in schedule.crawlers:
        if crawler.there:
            running.update(filter(limited, crawler.downloading.values()))
    if any(count > most for count in running.values()):
        raise Violation(f"more than {most} requests to one host at once: {dict(running)}")


def acknowledged(schedule: Schedule) -> None:
    """Check that no stream message was acknowledged before all of its requests were processed."""
    if not schedule.setup.streams or schedule.setup.shards > 1 or schedule.losses:
        return
    done = {visit.entry_id for visit in schedule.visits()} | set(schedule.buried)
    for message in schedule.acknowledged():
        if missing := schedule.made_of[message] - done:
            raise Violation(f"{message!r} is acknowledged, and {missing} were not processed")


def stored(schedule: Schedule) -> None:
    """Check all stored keys."""
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
    """Check that a finished run leaves only the keys that it should."""
    # A worker that dies when nothing is left stays a member until the next run begins. So does a worker that
    # has given up, a worker whose leave was rolled back, and an id that a late copy of a call registered.
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
        # A shard that was rolled back after the end may have a dead member and old counts. Its last worker
        # had left with another version of the counts. If home was lost, the shard may have all keys of
        # another crawl, which the next run clears.
        dead = rolled_back and keys.prefix(keys.Shard(CRAWL, shard)).encode() + b"members" in of_shard
        dead = dead or any(at >= each.finished_at for each in schedule.crawlers for _, at in schedule.losses)
        if not dead and _epoch(schedule, shard) == _epoch(schedule, HOME):
            names |= of_shard
    left = {key.rpartition(b"}:")[2] for key in names} - KEPT - {FEED.encode()}
    left -= {b"members", *(b"worker:" + each.encode() for each in members)} if members else set()
    left = {name for name in left if not name.startswith(b"seen:")}
    if left:
        raise Violation(f"keys are left: {left}")


def gone_on(schedule: Schedule) -> bool:
    """Tell whether the next command would find something of the crawl to continue."""
    store = schedule.store
    return store.run("HGET", keys.meta(CRAWL), "phase") == b"open" or (
        schedule.plan.setup.fed > 0 and bool(schedule.unread())
    )
