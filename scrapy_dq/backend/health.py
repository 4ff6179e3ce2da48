"""Checks whether a Redis is suitable for a crawl, for starting workers and for `scrapy dq doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scrapy_dq.embedded.binary import Version

OLDEST = (6, 2)
OK, WARN, BAD = "ok", "warn", "bad"
SNAPSHOT = "snapshot"
SLOW_S = 0.1
"""If a round trip takes this many seconds or more, `scrapy dq doctor` warns. Larger exchanges compensate for
this latency, but a starting worker waits for several trips."""
CLOCK_OFF_S = 2.0
"""If the clocks of Redis and of this host differ by this many seconds or more, doctor warns."""
LAG_S = 10
"""If a replica has sent no message for more than this many seconds, doctor warns. Usually, replicas send one
each second."""
NEARLY_FULL = 0.9
"""The share of maxmemory at which doctor warns."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    """The name of the check."""
    level: str
    """ok, warn or bad."""
    text: str
    """The result; for warn and bad also the remedy."""


def check_requirements(info: Mapping[str, Any], target: str, *, embedded: bool = False) -> Iterator[Finding]:
    """Yield a finding for each need of a worker, from the INFO of Redis.

    If a finding is bad, no worker starts.
    """
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        yield Finding("version", BAD, f"Redis at {target} is version {version}; 6.2 or newer is needed")
    else:
        yield Finding("version", OK, version)
    yield _eviction(str(info.get("maxmemory_policy", "noeviction")), target)
    if int(info.get("aof_enabled", 0)):
        yield Finding("persistence", OK, "AOF: at most the last second is lost if it is killed")
    elif embedded:
        yield Finding("persistence", OK, "no AOF reported; the embedded Redis is started with it")
    else:
        yield Finding(
            "persistence", WARN,
            f"Redis at {target} has no AOF: if it stops, the crawl is rolled back to the last snapshot, or "
            f"lost. Run `redis-cli CONFIG SET appendonly yes` to keep all but the last second",
        )  # fmt: skip


def _eviction(policy: str, target: str) -> Finding:
    if policy.startswith("allkeys"):
        return Finding(
            "eviction", BAD,
            f"Redis at {target} has maxmemory-policy {policy}: when its memory is full, it deletes parts "
            f"of the crawl. Run `redis-cli CONFIG SET maxmemory-policy noeviction`, or use another Redis",
        )  # fmt: skip
    if policy.startswith("volatile"):
        text = (
            f"Redis at {target} has maxmemory-policy {policy}: no key of a crawl has a TTL, so Redis evicts "
            "none"
        )
        return Finding("eviction", WARN, text)
    return Finding("eviction", OK, policy)


def check_operation(info: Mapping[str, Any], wait_replicas: int = 0) -> Iterator[Finding]:
    """Yield findings about the present state of Redis, from its INFO; *wait_replicas*: DQ_WAIT_REPLICAS."""
    replicas = _replicas(info)
    online = sum(each.get("state") == "online" for each in replicas)
    if info.get("role") == "slave":
        yield Finding("role", BAD, "this Redis is a replica, and accepts no writes: name its master")
    elif online < wait_replicas:
        text = f"DQ_WAIT_REPLICAS is {wait_replicas}, but replicas online: {online}; the crawl would wait"
        yield Finding("replicas", BAD, text)
    elif info.get("min_slaves_good_slaves") == 0:
        yield Finding("replicas", BAD, "no replica is in sync: Redis refuses writes (min-replicas-to-write)")
    elif replicas:
        yield _replication(info, replicas)
    for status, what, file in (
        ("aof_last_write_status", "disk", "AOF"), ("rdb_last_bgsave_status", SNAPSHOT, "snapshot")
    ):  # fmt: skip
        if info.get(status, "ok") != "ok":
            yield Finding(what, BAD, f"the last write of its {file} failed: free disk space, read its log")
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    text = f"{format_bytes(used)} used, {f'maxmemory {format_bytes(limit)}' if limit else 'no maxmemory'}"
    full = used - int(info.get("mem_not_counted_for_evict", 0)) >= limit
    if not limit or used < NEARLY_FULL * limit:
        yield Finding("memory", OK, text)
    else:
        level = BAD if full and not _evicts(info) else WARN
        yield Finding("memory", level, f"{text}: when it is full, workers wait: raise maxmemory")


def _evicts(info: Mapping[str, Any]) -> bool:
    """Tell whether a full Redis can evict keys. With `volatile-…`, it can evict only keys with a TTL."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    have_ttl = any(isinstance(each, Mapping) and each.get("expires") for each in info.values())
    return policy.startswith("allkeys") or (policy.startswith("volatile") and have_ttl)


def refusals(info: Mapping[str, Any]) -> list[str]:
    """Return the reasons why this Redis refuses writes now, as far as INFO shows them.

    A failed snapshot is left out: `save` and stop-writes-on-bgsave-error decide whether Redis then refuses
    writes, and INFO lacks both.
    """
    found = check_operation(info)
    return [finding.text for finding in found if finding.level == BAD and finding.what != SNAPSHOT]


def _replicas(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return INFO's data about each replica: ip, port, state, offset (bytes), lag (s)."""
    replicas = (info.get(f"slave{n}") for n in range(int(info.get("connected_slaves", 0))))
    return [each for each in replicas if isinstance(each, Mapping)]


def _replication(info: Mapping[str, Any], replicas: Sequence[Mapping[str, Any]]) -> Finding:
    """Judge how much a failover would lose now."""
    behind = max(int(info.get("master_repl_offset", 0)) - int(each.get("offset", 0)) for each in replicas)
    lag_s = max(int(each.get("lag", 0)) for each in replicas)
    out_of_step = [each for each in replicas if each.get("state") != "online"]
    text = (
        f"{len(replicas)} replica{'s' * (len(replicas) > 1)}, at most {format_bytes(max(behind, 0))} behind"
    )
    if out_of_step or lag_s > LAG_S:
        text += f"; {len(out_of_step)} not online; the longest silence is {lag_s} s: a failover may lose work"
        return Finding("replicas", WARN, text)
    if "min_slaves_good_slaves" not in info:
        text += ". min-replicas-to-write is 0: if this master loses them, it continues to accept writes alone"
    return Finding("replicas", OK, text)


def failover(after_s: float, option: str, horizon_s: float, *, guarded: bool) -> Finding:
    """Judge how long a master that is cut off from other nodes confirms writes that a failover then loses.

    Args:
        after_s: seconds after which another master takes over; *option*: the option that sets this time.
        horizon_s: DQ_ROLLBACK_HORIZON.
        guarded: a write is confirmed only if a replica has it, or was connected a moment ago.
    """
    text = f"a master that is cut off is replaced after {after_s:g} s ({option})"
    if guarded or after_s < horizon_s:
        return Finding("failover", OK, text)
    text += f", and DQ_ROLLBACK_HORIZON is {horizon_s:g} s: requests that it has confirmed may be missing"
    return Finding(
        "failover", WARN, f"{text}. Lower {option}, or set min-replicas-to-write or DQ_WAIT_REPLICAS"
    )


def latency(median_s: float) -> Finding:
    """Judge the round-trip time to Redis."""
    text = f"{median_s * 1000:.2f} ms for a round trip (median of 20)"
    if median_s < SLOW_S:
        return Finding("latency", OK, text)
    return Finding("latency", WARN, f"{text}. Run the workers closer to Redis")


def clock(offset_s: float) -> Finding:
    """Judge by how many seconds the clock of Redis is ahead of this host's; negative: behind."""
    if abs(offset_s) < CLOCK_OFF_S:
        return Finding("clock", OK, f"differs by {round(offset_s * 1000) or 0} ms from this host's clock")
    text = f"differs by {offset_s:+.0f} s from this host's clock, which dq_not_before uses: run NTP"
    return Finding("clock", WARN, text)


def scripts(refused: str) -> Finding:
    """Judge whether scripts run; *refused*: the error of Redis, if they do not."""
    if "undeclared" in refused:
        text = "this service runs no script with undeclared keys, so no crawl (docs/deploying.md)"
        return Finding("scripts", BAD, f"{text}: {refused}")
    if refused:
        text = f"Redis refuses scripts: {refused}. Allow this user EVAL, EVALSHA and what the scripts call"
        return Finding("scripts", BAD, text)
    return Finding("scripts", OK, "run")


def compression(depth: int, version: str) -> Finding:
    """Judge the list-compress-depth of a Redis of *version*, which is "" if it is unknown."""
    known = Version.parse(f"redis {version}")
    if known is not None and not known.compresses:
        text = f"{known} may die when a compressed list grows (github.com/redis/redis/pull/9849)"
        if not depth:
            return Finding("compression", OK, f"none: {text}")
        return Finding("compression", BAD, f"{text}. Set list-compress-depth to 0 and restart Redis")
    if depth:
        return Finding("compression", OK, "of lists: most waiting requests are stored compressed")
    text = "none. `redis-cli CONFIG SET list-compress-depth 1` stores long lists in a third of their memory"
    return Finding("compression", OK, text)


def start_keys(names: Sequence[str], refused: Sequence[str], wrong: str) -> Finding:
    """Judge the start keys of a spider.

    Args:
        refused: the keys that Redis denies this user.
        wrong: a message about a key of another type than the spider reads; empty: there is no such key.
    """
    if refused:
        rules = " ".join(f"~{name}" for name in refused)
        return Finding("start keys", BAD, f"Redis denies this user access to them. Add {rules} to its ACL")
    if wrong:
        return Finding("start keys", BAD, wrong)
    return Finding("start keys", OK, f"accessible: {', '.join(names)}")


def format_bytes(count: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
