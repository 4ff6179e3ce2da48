"""`scrapy dq workers`: who works on a crawl, and whether each is alive."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.frontier.model import Member

WAIT_S = 2.5
"""A live worker beats at least once a second."""


class Workers(Subcommand):
    """Judges as a new worker does: by the process on this machine, else by whether it beats."""

    name = "workers"
    arguments = "[<spider>]"
    summary = "who works on a crawl"
    description = (
        "Shows the workers that are registered in a spider's crawl. Of one on this machine it is known "
        f"whether its process is gone; of another, --wait watches for {WAIT_S:g} s whether it beats."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument("--wait", action="store_true", help=f"watch for {WAIT_S:g} s who beats")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.display import print_json, print_table

        with looking.place_of(settings, options) as place:
            workers = read_workers(place, WAIT_S if options.wait else 0.0)
        if options.json:
            print_json(workers)
        elif not workers:
            print("No worker is registered.")
        else:
            columns = ("host", "pid", "beat", "leases", "state", "id")
            rows = [[worker[name] for name in columns] for worker in workers]
            print_table(
                columns, [[r[0], str(r[1] or "?"), *r[2:]] for r in rows], numbers=("pid", "beat", "leases")
            )
        return DONE


def read_workers(place: looking.Place, wait_s: float) -> list[dict[str, Any]]:
    """Return what is known of each worker, after *wait_s* in which its beats are watched.

    Raises:
        CommandError: there is no such crawl.
    """
    before = {member.worker_id: member.beat for member in place.overview().members} if wait_s else {}
    time.sleep(wait_s)
    members = sorted(place.overview().members, key=lambda member: member.worker_id)
    return [
        {
            "id": member.worker_id,
            "host": str(_identity(member).get("host", "?")),
            "pid": _identity(member).get("pid"),
            "beat": member.beat,
            "leases": member.in_flight,
            "fenced": member.fenced,
            "state": _state(member, before),
        }
        for member in members
    ]


def _state(member: Member, before: dict[str, int]) -> str:
    """Return fenced, dead, alive or silent; if nobody watched, running or unknown."""
    from scrapy_dq.frontier.identity import certainly_dead, on_this_machine, own_identity

    own = own_identity()
    if member.fenced:
        return "fenced"
    if certainly_dead(_identity(member), own):
        return "dead"
    if member.worker_id in before:
        return "alive" if member.beat != before[member.worker_id] else "silent"
    return "running" if on_this_machine(_identity(member), own) else "unknown"


def _identity(member: Member) -> dict[str, Any]:
    # A stranger may have written it.
    return member.identity if isinstance(member.identity, dict) else {}
