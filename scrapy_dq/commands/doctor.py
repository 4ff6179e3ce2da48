"""`scrapy dq doctor`: check whether Redis is suitable for a crawl, and suggest changes."""

from __future__ import annotations

import argparse
import ssl
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.settings import Settings

from scrapy_dq.backend import health
from scrapy_dq.backend.clients import speaks_tls
from scrapy_dq.backend.cluster import address_of
from scrapy_dq.backend.connection import Connection
from scrapy_dq.backend.health import BAD, OK, WARN, Finding
from scrapy_dq.backend.sentinel import down_after_s, pools_of
from scrapy_dq.commands import common, exclusive
from scrapy_dq.commands.output.display import print_json, print_table
from scrapy_dq.commands.subcommand import DONE, FAILED, Subcommand, WrongUsage
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin import backlog
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.answers import Audited
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable, StartKeys
from scrapy_dq.frontier.rights import ROLES, acl_of
from scrapy_dq.frontier.worker.audit import audit, findings_of
from scrapy_dq.hostnames import is_loopback
from scrapy_dq.inspection.place import Place, opened
from scrapy_dq.inspection.snapshot import WAIT_S, watched
from scrapy_dq.inspection.words import named, unanswered, uncounted, waiting
from scrapy_dq.items.pipeline import key_patterns
from scrapy_dq.settings import Config
from scrapy_dq.start_urls.keys import start_keys_of

_At = tuple[Any, Shard]
PINGS = 20


class Doctor(Subcommand):
    """Check the Redis of a crawl.

    Checks the Redis of the project, or of a spider: version, persistence, eviction, memory, latency, clock,
    scripts, compression. Exit status 1: a finding is bad.
    """

    name = "doctor"
    flags = (
        ("--audit", "also search for deleted or evicted keys; reads all partition names"),
        ("--repair", "like --audit, and rebuild keys that can be derived"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--acl", choices=tuple(ROLES), metavar="ROLE",
            help="print the command that makes a Redis user with the least rights, for this crawl or for "
            "all: " + "; ".join(f"{name} ({role.users})" for name, role in ROLES.items()),
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        if options.acl:
            return print_acl(settings, options)
        audits = options.audit or options.repair
        if audits and not (options.spider or options.crawl):
            raise WrongUsage("--audit, --repair: name a spider, or a crawl with --crawl")
        config, _, start_keys = _named(settings, options)
        with opened(config) as place:
            findings = examine(place, start_keys)
            scripts_run = all(finding.level == OK for finding in findings if finding.what == "scripts")
            if scripts_run and (options.spider or options.crawl):
                findings += examine_workers(place)
            if audits and scripts_run:
                findings += examine_crawl(place, options)
        bad = any(finding.level == BAD for finding in findings)
        if options.json:
            print_json({"redis": place.target, "fit": not bad, "findings": [*map(asdict, findings)]})
        else:
            print(f"Redis at {place.target}{', the embedded one' if place.config.embedded else ''}")
            print_table(("", "what", "found"), [(each.level, each.what, each.text) for each in findings])
        return FAILED if bad else DONE


def _named(settings: Settings, options: argparse.Namespace) -> tuple[Config, Spider | None, StartKeys | None]:
    """Return the Config, and the named spider and its start keys, if any."""
    config, crawler = common.crawler_named(settings, options)
    spider = crawler.spider if crawler else None
    return config, spider, start_keys_of(spider, config) if spider else None


def print_acl(settings: Settings, options: argparse.Namespace) -> int:
    """Print the command for an administrator, without asking Redis.

    Raises:
        WrongUsage: the role is feeder, which only has rights to a start key, and there is no start key.
    """
    config, spider, start_keys = _named(settings, options)
    if options.acl == "feeder" and not start_keys:
        raise WrongUsage("--acl feeder: name a RedisSpider; a feeder may use its start key alone")
    place = {} if config.embedded else Connection(config, Path()).blocking().get_connection_kwargs()
    rules = acl_of(
        options.acl,
        config.crawl if options.spider or options.crawl else "",
        start_keys.keys if start_keys else (),
        start_keys.kind if start_keys else "list",
        key_patterns(spider) if spider else (),
        int(place.get("db") or 0),
        config.shards,
    )
    line = f"ACL SETUSER {options.acl} on >PASSWORD {rules}"
    if options.json:
        print_json({"acl": line})
    else:
        print(line)
    return DONE


def examine_crawl(place: Place, options: argparse.Namespace) -> list[Finding]:
    """Compare the keys of a crawl with its counts; return an empty list if there is no such crawl.

    With `--repair`, rebuild the keys that can be derived from other keys, and record the loss of the rest.
    """
    overview = peek(place.shards, place.crawl)
    if overview.phase == "absent":
        return []

    silent, apart = set[int](), set(overview.apart)

    async def audit_all(frontiers: list[Frontier]) -> Audited:
        found = Audited()
        for frontier in frontiers:
            number = frontier.name.number
            if number in apart:
                continue
            try:
                found += await audit(frontier, overview.epoch, overview.run, repair=options.repair)
            except (FrontierUnavailable, FrontierRefused) as error:
                if not number:
                    raise
                (silent if isinstance(error, FrontierUnavailable) else apart).add(number)
        return found

    found = exclusive.with_frontiers(place, audit_all)
    text, level = findings_of(found), OK
    if silent:
        text, level = f"{text}; {named(silent)} could not be examined", BAD
    for line in uncounted((), apart):
        text, level = f"{text}; {line}", BAD
    if found != Audited():
        level = WARN if options.repair and not (found.gone or found.seen_gone) else BAD
        hint = ". `scrapy dq doctor --repair` rebuilds what can be derived"
        text += "; what can be derived was rebuilt" if options.repair else hint
    elif overview.census.gone:
        level = BAD
        text = f"{overview.census.gone} requests or other keys of this run were deleted or evicted"
    return [Finding("crawl", level, text)]


def examine_workers(place: Place) -> list[Finding]:
    """Report workers that wait for Redis; if there are any, watch the crawl for WAIT_S first."""
    with suppress(FrontierRefused):  # a key has another type, as `scrapy dq status` reports
        if any(member.waits_for for member in peek(place.shards, place.crawl).members):
            waits = watched(place, WAIT_S).waits
            return [Finding("workers", BAD, waiting(each)) for each in waits]
    return []


def examine(place: Place, start_keys: StartKeys | None) -> list[Finding]:
    """Return what is found at the Redis nodes that have shards of the crawl.

    A finding that is the same at several nodes is returned once. It names these nodes, unless it is true of
    all nodes.
    """

    def locate(client: Any, shard: Shard) -> tuple[str, _At]:
        if address_of(client):
            client.exists(keys.meta(shard))  # a wrong node redirects the client to the right one
        return address_of(client), (client, shard)

    nodes: dict[str, list[_At]] = {}
    for address, at in place.shards.each(locate):
        nodes.setdefault(address, []).append(at)
    found: dict[Finding, list[str]] = {}
    for address, shards in nodes.items():
        name = f"{address} ({named([shard.number for _, shard in shards])})"
        for finding in _examine_node(place, shards, start_keys):
            found.setdefault(finding, []).append(name)
    findings = [
        finding if len(names) == len(nodes) else replace(finding, text=f"{', '.join(names)}: {finding.text}")
        for finding, names in found.items()
    ]
    if len(place.shards) > 1 and all(nodes):
        where = (f"{address}: {named([shard.number for _, shard in at])}" for address, at in nodes.items())
        findings.append(Finding("shards", OK, "; ".join(where)))
    silent = unanswered(place.shards.unreachable)
    return findings + [Finding("shards", BAD, text) for text in silent]


def _examine_node(place: Place, shards: Sequence[_At], start_keys: StartKeys | None) -> list[Finding]:
    """Return the findings of a node. The module `scrapy_dq.backend.health` judges most of them."""
    client, first = shards[0]
    info = backlog.info_of(client)
    if info is None:
        text = "INFO is not allowed, so version, eviction and persistence are unknown. Allow this user INFO"
        findings = [Finding("INFO", WARN, text)]
    else:
        findings = [
            *health.check_requirements(info, place.target, embedded=place.config.embedded),
            *health.check_operation(info, place.config.wait_replicas),
        ]
        findings += _failover(client, place.config, info)
    findings += exposure(client)
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        client.time()  # with a full disk, Redis would refuse PING
        trips.append(time.perf_counter() - began)
    findings.append(health.latency(statistics.median(trips)))
    before = time.time()
    seconds, microseconds = client.time()
    findings.append(health.clock(seconds + microseconds / 1e6 - (before + time.time()) / 2))
    findings.append(_examine_scripts(shards, start_keys))
    if findings[-1].level == OK:
        if (depth := backlog.compress_depth(client)) is not None:
            findings.append(health.compression(depth, str((info or {}).get("redis_version", ""))))
        if start_keys and first.number == HOME:
            findings.append(health.start_keys(start_keys.keys, *backlog.unusable_keys(client, start_keys)))
    return findings


def _failover(client: Any, config: Config, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding about the failover of Sentinel or the cluster, unless its duration is unknown."""
    option, after_s = "down-after-milliseconds of Sentinel", down_after_s(client)
    if address_of(client) and (node_timeout_ms := backlog.configured(client, "cluster-node-timeout")):
        option, after_s = "cluster-node-timeout", node_timeout_ms / 1000
    if after_s is not None:
        guarded = config.wait_replicas > 0 or "min_slaves_good_slaves" in info
        yield health.failover(after_s, option, config.rollback_horizon_s, guarded=guarded)


def _examine_scripts(shards: Sequence[_At], start_keys: StartKeys | None) -> Finding:
    """Check that scripts run for each of these shards. The user may lack rights to keys of some shards."""
    for client, shard in shards:
        finding = health.scripts(backlog.refused_scripts(client, shard, start_keys))
        if finding.level != OK:
            where = f"{named([shard.number])}: " if len(shards) > 1 else ""
            return replace(finding, text=where + finding.text)
    return finding


def exposure(client: Any) -> Iterator[Finding]:
    """Yield warnings about the connection to a Redis on another host; *client* is from `new_client`."""
    pools = pools_of(client)
    if all(not host or is_loopback(host) for pool in pools for host in _hosts_of(pool)):
        return
    options = pools[0].connection_kwargs
    if not speaks_tls(pools[0]):
        yield Finding("TLS", WARN, "the way to Redis on another host is not encrypted. Use rediss://")
    elif options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE):
        text = "ssl_cert_reqs = none: any server that answers is taken for Redis. Set ssl_ca_certs instead"
        yield Finding("TLS", WARN, text)
    if not options.get("password") and options.get("credential_provider") is None:
        text = "Redis on another host asks for no password. Make a user (`scrapy dq doctor --acl crawler`)"
        yield Finding("password", WARN, text)


def _hosts_of(pool: Any) -> list[str]:
    """Return the hosts of *pool*; for a Redis Cluster, all hosts in its URL; "" for a socket."""
    if hasattr(pool, "route"):
        return [host for host, _ in pool.route.nodes]
    return [str(pool.connection_kwargs.get("host", ""))]
