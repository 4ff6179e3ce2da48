"""`scrapy dq workers`: the workers of a crawl, and whether each is alive."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.frontier.model import Member

INTERVAL_S = 1.0
WAIT_S = 2.5
"""A live worker has a heartbeat at least once a second."""
COLUMNS = ("host", "pid", "since", "beat", "leases", "pages/s", "state")
WIDE = 110
"""Minimum width, in columns, for showing ids."""


class Workers(Subcommand):
    """Judges as a new worker does: by the process if it is on this machine, else by the heartbeat."""

    name = "workers"
    arguments = "[<spider>]"
    summary = "the workers of a crawl"
    description = (
        f"Shows the workers that are registered in a spider's crawl, watched for {INTERVAL_S:g} s. For those "
        f"on this machine, it checks whether their processes exist; for others, --wait watches their "
        f"heartbeats for {WAIT_S:g} s."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        how_long = parser.add_mutually_exclusive_group()
        how_long.add_argument("--wait", action="store_true", help=f"watch the heartbeats for {WAIT_S:g} s")
        how_long.add_argument("--no-rate", action="store_true", help="do not watch: no pages per second")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json, print_table, width

        with looking.place_of(settings, options) as place:
            wait_s = 0.0 if options.no_rate else WAIT_S if options.wait else INTERVAL_S
            workers = read_workers(place, wait_s)
        if options.json:
            print_json(workers)
        elif not workers:
            print("No worker is registered.")
        else:
            columns = (*COLUMNS, "id") if width() >= WIDE else COLUMNS
            numbers = ("pid", "since", "beat", "leases", "pages/s")
            rows = [[row[name] for name in columns] for row in map(_row, workers)]
            print_table(columns, rows, numbers=numbers, wraps=("host", "id"), most=looking.MOST)
        return DONE


def read_workers(place: looking.Place, wait_s: float) -> list[dict[str, Any]]:
    """Return the state of each worker, after watching them for *wait_s* seconds; 0: without watching.

    Raises:
        CommandError: there is no such crawl.
    """
    from scrapy_dq.frontier.worker.identity import own_identity

    before: dict[str, Member] = {}
    own = own_identity()
    began = time.monotonic()
    if wait_s:
        before = {member.worker_id: member for member in place.overview().members}
        time.sleep(wait_s)
    members, passed = place.overview().members, time.monotonic() - began
    now = place.now()
    return [
        {
            "id": member.worker_id,
            "host": str(_identity(member).get("host", "?")),
            "pid": _identity(member).get("pid"),
            "since": member.since or None,
            "since_s": round(max(0.0, now - member.since), 1) if member.since else None,
            "beat": member.beat,
            "leases": member.in_flight,
            "done": member.done,
            "pages_per_s": _rate(member, before.get(member.worker_id), passed),
            "fenced": member.fenced,
            "state": _state(member, before.get(member.worker_id), wait_s >= WAIT_S, own),
        }
        for member in sorted(members, key=lambda member: member.worker_id)
    ]


def _rate(member: Member, before: Member | None, passed_s: float) -> float | None:
    if before is None:
        return None
    # Fewer than before: Redis was rolled back, or the next run has started.
    return round(max(0, member.done - before.done) / passed_s, 1)


def _state(member: Member, before: Member | None, long_enough: bool, own: dict[str, Any]) -> str:
    """Return the state; a missing heartbeat means something only if it was watched *long_enough*."""
    from scrapy_dq.frontier.worker.identity import certainly_dead, on_this_machine

    if member.fenced:
        return "fenced"
    if certainly_dead(_identity(member), own):
        return "dead"
    if before is not None and member.beat != before.beat:
        return "alive"
    here = on_this_machine(_identity(member), own)
    if before is not None and long_enough:
        return "stalled" if here else "silent"
    return "running" if here else "unknown"


def _row(worker: dict[str, Any]) -> dict[str, Any]:
    from scrapy_dq.commands.output.display import span

    rate, since_s = worker["pages_per_s"], worker["since_s"]
    return worker | {
        "pid": str(worker["pid"] or "?"),
        "since": "?" if since_s is None else span(since_s),
        "pages/s": "" if rate is None else f"{rate:,.1f}",
    }


def _identity(member: Member) -> dict[str, Any]:
    # Untrusted: another program may have written it.
    return member.identity if isinstance(member.identity, dict) else {}
