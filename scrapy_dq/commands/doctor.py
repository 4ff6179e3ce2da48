"""`scrapy dq doctor`: whether this Redis is fit for a crawl, and what to change."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, FAILED, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.health import Finding

PINGS = 20


class Doctor(Subcommand):
    """Looks at Redis, not at a crawl."""

    name = "doctor"
    arguments = "[<spider>]"
    summary = "whether Redis is fit for a crawl"
    description = (
        "Looks at the Redis of the project (or of a spider, if its own settings name one): version, "
        "persistence, eviction, memory, latency, clock, scripts. Exit status 1: something is bad."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.display import print_json, print_table
        from scrapy_dq.health import BAD

        with looking.opened(looking.config_named(settings, options)) as place:
            findings = examine(place)
        bad = any(finding.level == BAD for finding in findings)
        if options.json:
            print_json(
                {"redis": place.target, "fit": not bad, "findings": [asdict(finding) for finding in findings]}
            )
        else:
            print(f"Redis at {place.target}{', the embedded one' if place.config.embedded else ''}")
            print_table(
                ("", "what", "found"), [(finding.level, finding.what, finding.text) for finding in findings]
            )
        return FAILED if bad else DONE


def examine(place: looking.Place) -> list[Finding]:
    """Return what is found, the rules of `scrapy_dq.health` first."""
    from scrapy_dq import health
    from scrapy_dq.frontier.look import info_of, refused_scripts

    info = info_of(place.client)
    if info is None:
        text = "INFO is not allowed, so version, eviction and persistence are unknown. Allow this user INFO"
        findings = [health.Finding("INFO", health.WARN, text)]
    else:
        findings = [*health.needed(info, place.target, embedded=place.config.embedded), *health.at_work(info)]
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        place.client.ping()
        trips.append(time.perf_counter() - began)
    findings.append(health.latency(statistics.median(trips)))
    before = time.time()
    now = place.now()
    findings.append(health.clock(now - (before + time.time()) / 2))
    findings.append(
        health.scripts(*refused_scripts(place.client, place.config.order, place.config.seen_kind))
    )
    return findings
