"""Every Redis key of a crawl: name, type, lifetime. lua/lib/keys.lua has the same names, in this order."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote
from zlib import crc32

PREFIX = "dq:"
HOME = 0
"""The number of the shard that stores the data of the whole crawl."""


class Key(NamedTuple):
    name: str
    type: str
    lifetime: str


KEYS = (
    Key("meta", "hash", "from the first crawl on; after a finished run it is the tombstone"),
    Key("members", "set", "while workers are registered"),
    Key("beats", "hash", "while workers are registered; no TTL: an eviction policy would delete it"),
    Key("absent", "hash", "from the first worker that was declared dead until the next run starts"),
    Key("accused", "hash", "from the first worker that was declared dead until the run is over"),
    Key(
        "seen",
        "set",
        "the run; longer with SCHEDULER_PERSIST, or for a retry. A zset with DQ_SEEN_TTL; with "
        "DQ_SEEN = compact a hash, the directory of its buckets",
    ),
    Key("discarded", "hash", "while buckets of a `seen` that was dropped are not unlinked yet"),
    Key("adopted", "set", "as `seen`; fingerprints that another scheduler has seen, in its format"),
    Key("seeds", "set", "the run; longer if failed requests may be retried"),
    Key("admitted", "set", "the run; longer if failed requests may be retried"),
    Key("messages", "hash", "while an entry that was made from a message of a stream is not done"),
    Key("bands", "hash", "while an entry waits"),
    Key("more_bands", "zset", "while entries of several ranks wait in one partition"),
    Key("returned", "zset", "while entries that were released or retried wait"),
    Key("quarantine", "zset", "while a suspect waits"),
    Key("declined", "zset", "while an entry waits that some worker has declined"),
    Key("decliners", "hash", "as `admitted`; the workers that have declined an entry, and why"),
    Key("delayed", "zset", "while an entry is not due yet"),
    Key("rotation", "zset", "while a partition may be served"),
    Key("suspects", "zset", "while a partition in which only suspects wait may be served"),
    Key("resting", "zset", "while a partition with entries waits for its delay or block to end"),
    Key("saturated", "zset", "while a partition with entries waits for one of its leases to end"),
    Key("limits", "hash", "from the first partition with its own limits until the next run starts"),
    Key("busy", "hash", "while an entry is in flight"),
    Key("spent", "hash", "the run, or the day; only of partitions with a budget"),
    Key("unsent", "hash", "while a lease of a partition with a delay is not sent"),
    Key("earliest", "zset", "until the next send time of each partition has passed"),
    Key("blocked", "zset", "until the block of each partition has ended"),
    Key("dead", "hash", "until the next run starts"),
    Key("failed", "list", "until the next run starts; the newest 10,000"),
    Key("stats", "hash", "until the next run starts; only with STATS_CLASS = scrapy_dq.SharedStats"),
    Key("samples", "list", "until the crawl is deleted; the newest, of about 3 hours"),
    Key("minutes", "list", "until the crawl is deleted; the newest, of about 2 days"),
    Key("journal", "list", "until the crawl is deleted; the newest 500 events"),
    Key("never", "none", "never: see backend/cluster.py"),
    Key("backlog:<rank>:<partition>", "list", "while an entry of this rank waits in the partition"),
    Key("worker:<id>", "hash", "while the worker is registered"),
    Key("in-flight:<id>", "hash", "while the worker holds leases"),
    Key("seen:<generation>:<n>", "set", "as a compact `seen`; a dropped generation until it is swept"),
)

FIXED = tuple(key.name for key in KEYS if "<" not in key.name)


MAX_SHARDS = 1_024


SCHEMA = "7"
"""Version of the stored format. A join refuses a worker with another version: it would misread the keys."""


class Shard(NamedTuple):
    """A shard of a crawl. Number 0 is home; as an argument, the crawl's name alone means home."""

    crawl: str
    number: int

    @property
    def is_home(self) -> bool:
        return self.number == HOME

    @property
    def label(self) -> str:
        """The beginning of log lines about this shard; empty for home."""
        return "" if self.is_home else f"Shard {self.number} of crawl {self.crawl!r}: "


def schema_of(shards: int) -> str:
    """Return the version that a crawl stores.

    A crawl with several shards has a different version, so that its scripts refuse workers without DQ_SHARDS:
    such workers would use only home.
    """
    return SCHEMA if shards == 1 else f"{SCHEMA}-shards"


def prefix(owner: str | Shard) -> str:
    """Return the common prefix of all keys of a shard.

    The name of the crawl is percent-encoded, including braces, colons, slashes and stars. So no two shards
    share a key. The hash tag consists of the whole name and number, so a shard lies in one slot of a Redis
    Cluster.
    """
    crawl, number = (owner, 0) if isinstance(owner, str) else owner
    name = quote(crawl, safe="")
    return f"{PREFIX}{{{name}/{number}}}:" if number else f"{PREFIX}{{{name}}}:"


def prefixes(crawl: str, shards: int) -> list[str]:
    """Return the prefixes of the keys of all shards of a crawl, as patterns of Redis."""
    home = prefix(crawl)
    return [home] if shards == 1 else [home, home.replace("}:", "/*}:")]


def meta(owner: str | Shard) -> str:
    """Return the name of the hash that describes the crawl and its state."""
    return prefix(owner) + "meta"


def rank_of(band: bytes) -> int:
    """Return the rank of a list of the backlog from its *band*: 8 bytes in `bands` or `more_bands`."""
    return int.from_bytes(band, "big") - 2**52


def fixed(owner: str | Shard) -> tuple[str, ...]:
    """Return the fixed names of keys, which every script gets as KEYS."""
    return tuple(prefix(owner) + name for name in FIXED)


def shard_of(partition: bytes, token: bytes, shards: int) -> int:
    """Return the number of an entry's shard, by its partition or, without a partition, by its token."""
    return crc32(partition or token) % shards
