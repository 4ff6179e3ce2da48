"""Every setting, parsed once into a frozen Config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from scrapy_dq.frontier.keys import MOST_SHARDS
from scrapy_dq.frontier.model import Limits, Order, Seen, StartQueue
from scrapy_dq.hostnames import with_usual_spellings
from scrapy_dq.settings import peers
from scrapy_dq.settings.errors import ConfigError
from scrapy_dq.settings.peers import order_of_queue
from scrapy_dq.settings.redis_place import name_place, names_redis
from scrapy_dq.settings.scrapy_queues import breadth_first_queues, start_queue
from scrapy_dq.settings.setting import (
    Backoff,
    Budget,
    PartitionSettings,
    Setting,
    backoff,
    boolean,
    budget,
    choice,
    encoding,
    host,
    integer,
    limits,
    loadable,
    mapping,
    number,
    order_choice,
    path,
    revisit_policy,
    schemes,
    serializer,
    setting_field,
    text,
    texts,
    url,
    web_address,
)
from scrapy_dq.text import prose_without_logins

ORDERS = tuple(order.value for order in Order)
REDIS_TIMEOUT_S = 2.0
"""Below a third of the default DQ_WORKER_TTL: one reply that never comes does not make a worker look dead."""
_FOR_ITEMS = (
    "DQ_ITEMS_TYPE", "REDIS_ITEMS_KEY", "REDIS_ITEMS_SERIALIZER", "DQ_SHUTDOWN_GRACE", "DQ_ROLLBACK_HORIZON",
    "DQ_DATA_DIR", "REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All settings of one worker, checked. Times in seconds, sizes in bytes.

    Each field is the only definition of its setting: SETTINGS, the checks and the documentation use it.
    """

    crawl: str = setting_field(
        "DQ_CRAWL", "%(spider)s", text, "The name of the crawl, shared by its workers", required=True
    )
    run_name: str = setting_field("DQ_RUN_NAME", "", text, "The name of one run, such as a job id or a date")
    order: Order = setting_field(
        "DQ_ORDER", "priority-lifo", order_choice, "The order within a partition", choices=ORDERS
    )
    start_queue: StartQueue = StartQueue.FIFO
    """Where the start requests of this worker are queued: from Scrapy's own setting."""
    strict_order: bool = setting_field(
        "DQ_STRICT_ORDER", False, boolean, "Lease one request at a time, always the best one"
    )
    partition_by: str = setting_field(
        "DQ_PARTITION_BY", "slot", choice, "How the backlog is divided", choices=("slot", "none")
    )
    shards: int = setting_field(
        "DQ_SHARDS", 1, integer, "Over how many shards the crawl is spread", "shards", 1, MOST_SHARDS
    )
    max_pages: int = setting_field(
        "DQ_MAX_PAGES",
        0,
        integer,
        "The most requests of a run, over all workers; 0: any number",
        "requests",
        0,
        10**12,
    )
    domain_delay_s: float = setting_field(
        "DQ_DOMAIN_DELAY", 0.0, number, "Time between requests of a partition, all workers", "s", 0, 86_400
    )
    domain_concurrency: int = setting_field(
        "DQ_DOMAIN_CONCURRENCY", 0, integer, "Requests of a partition in flight", "requests", 0, 1_000_000
    )
    domain_budget: Budget = setting_field(
        "DQ_DOMAIN_BUDGET", 0, budget, "The most requests of a partition in a run, or (`1000/day`) on a day"
    )
    domain_limits: dict[str, PartitionSettings] = setting_field(
        "DQ_DOMAIN_LIMITS", {}, limits, "Delay, concurrency and budget of single partitions"
    )
    retry_backoff: Backoff = setting_field(
        "DQ_RETRY_BACKOFF",
        {},
        backoff,
        "How long a retry waits, and the longest `Retry-After` that is obeyed",
    )
    seen: str = setting_field(
        "DQ_SEEN", "exact", choice, "How fingerprints are stored in Redis", choices=("exact", "compact")
    )
    seen_ttl_s: float = setting_field(
        "DQ_SEEN_TTL", 0.0, number, "A new run forgets older fingerprints", "s", 0, 3_153_600_000
    )
    revisit: Any = setting_field(
        "DQ_REVISIT", "", revisit_policy, "When pages are visited again, such as `fixed:1d`; empty: never"
    )
    """Text, or a class."""
    seed_once: bool = setting_field(
        "DQ_SEED_ONCE", True, boolean, "Crawl equal requests of `start()` once per run"
    )
    idle_before_close_s: float = setting_field(
        "SCHEDULER_IDLE_BEFORE_CLOSE", 0.0, number, "Idle time until any spider closes", "s", 0, 31_536_000
    )
    max_idle_time_s: float = setting_field(
        "MAX_IDLE_TIME_BEFORE_CLOSE", 0.0, number, "Idle time of a `RedisSpider`", "s", 0, 31_536_000
    )
    start_urls_key: str = setting_field(
        "REDIS_START_URLS_KEY", "%(name)s:start_urls", text, "The Redis key that start requests are read from"
    )
    start_urls_as_set: bool = setting_field(
        "REDIS_START_URLS_AS_SET", False, boolean, "The start key is a set"
    )
    start_urls_as_zset: bool = setting_field(
        "REDIS_START_URLS_AS_ZSET", False, boolean, "The start key is a sorted set"
    )
    start_urls_as_stream: bool = setting_field(
        "REDIS_START_URLS_AS_STREAM", False, boolean, "The start key is a stream"
    )
    redis_encoding: str = setting_field(
        "REDIS_ENCODING", "utf-8", encoding, "The text encoding of start payloads"
    )
    worker_ttl_s: float = setting_field(
        "DQ_WORKER_TTL", 30.0, number, "A worker without a heartbeat for this long is dead", "s", 1, 3600
    )
    shutdown_grace_s: float = setting_field(
        "DQ_SHUTDOWN_GRACE", 8.0, number, "The time that a closing worker has", "s", 0, 3600
    )
    max_attempts: int = setting_field(
        "DQ_MAX_ATTEMPTS", 3, integer, "How many workers may die while they process a request", "", 1, 100
    )
    rollback_horizon_s: float = setting_field(
        "DQ_ROLLBACK_HORIZON", 10.0, number, "How much new data Redis may lose safely", "s", 1, 600
    )
    wait_replicas: int = setting_field(
        "DQ_WAIT_REPLICAS", 0, integer, "How many replicas have to have what a worker stores", "", 0, 16
    )
    max_entry_bytes: int = setting_field(
        "DQ_MAX_ENTRY_BYTES", 1_048_576, integer, "The largest stored request", "bytes", 1024, 4_194_304
    )
    url_schemes: tuple[str, ...] = setting_field(
        "DQ_URL_SCHEMES", ("http", "https"), schemes, "The URL schemes that may be stored"
    )
    types: tuple[str, ...] = setting_field(
        "DQ_TYPES", (), texts, "Further classes whose instances requests may contain"
    )
    serializer: Any = setting_field(
        "SCHEDULER_SERIALIZER", "", serializer, "Writes requests instead of the built-in format"
    )
    """An object with `dumps` and `loads`."""
    trust_pickle: bool = setting_field(
        "DQ_TRUST_PICKLE", False, boolean, "Allow a serializer that may read pickles"
    )
    notify_url: str = setting_field(
        "DQ_NOTIFY_URL",
        "",
        web_address,
        "A webhook that is told of ends, dead letters and deaths",
        repr=False,
    )
    trace: float = setting_field(
        "DQ_TRACE", 0.0, number, "The share of start requests that OpenTelemetry traces", "", 0, 1
    )
    tune_gc: bool = setting_field(
        "DQ_TUNE_GC", True, boolean, "Collect less garbage: not what was loaded before the crawl"
    )
    data_dir: str = setting_field("DQ_DATA_DIR", "", path, "The folder for all files")
    persist: bool = setting_field(
        "SCHEDULER_PERSIST", False, boolean, "Keep the fingerprints after a finished run"
    )
    flush_on_start: bool = setting_field(
        "SCHEDULER_FLUSH_ON_START", False, boolean, "Delete the crawl before this worker joins"
    )
    redis_url: str = setting_field("REDIS_URL", "", url, "The URL of Redis", repr=False)
    redis_host: str = setting_field("REDIS_HOST", "", host, "The host of Redis")
    redis_port: int = setting_field("REDIS_PORT", 6379, integer, "The port of Redis", "", 1, 65_535)
    redis_db: int = setting_field(
        "REDIS_DB", 0, integer, "The number of the Redis database", "", 0, 1_000_000
    )
    redis_params: dict[str, Any] = setting_field(
        "REDIS_PARAMS", {}, mapping, "Further arguments of redis-py's `Redis`", repr=False
    )
    enabled: bool = setting_field(
        "DQ_ENABLED", True, boolean, "False: leave the crawl to Scrapy's own scheduler"
    )
    items_type: str = setting_field(
        "DQ_ITEMS_TYPE", "list", choice, "The type of the key of items", choices=("list", "stream")
    )
    items_key: str = setting_field(
        "REDIS_ITEMS_KEY", "%(spider)s:items", text, "The key that items are stored in"
    )
    items_serializer: Any = setting_field(
        "REDIS_ITEMS_SERIALIZER", "", loadable, "Converts an item to text or bytes; empty: Scrapy's JSON"
    )

    @property
    def embedded(self) -> bool:
        """Whether the embedded Redis is used: no other is named."""
        return not (self.redis_url or self.redis_host or names_redis(self.redis_params))

    @property
    def redis_timeout_s(self) -> float:
        """How long one reply of Redis, or a connection, may take."""
        return float(self.redis_params.get("socket_timeout") or REDIS_TIMEOUT_S)

    @property
    def seen_kind(self) -> Seen:
        """How a crawl keeps what it has seen."""
        return Seen.EXPIRING if self.seen_ttl_s else Seen(self.seen)

    @property
    def start_kind(self) -> str:
        """The type of the start keys."""
        kinds = {
            "set": self.start_urls_as_set,
            "zset": self.start_urls_as_zset,
            "stream": self.start_urls_as_stream,
        }
        return next((kind for kind, chosen in kinds.items() if chosen), "list")

    @property
    def limits(self) -> Limits:
        """The limits of a partition, for all workers together."""
        own = with_usual_spellings(self.domain_limits)
        own_budgets = {name: each[2] for name, each in own.items() if each[2] is not None}
        return Limits(
            self.domain_delay_s,
            self.domain_concurrency,
            {name: each[:2] for name, each in own.items()},
            self.domain_budget.most,
            self.domain_budget.daily or any(each.daily for each in own_budgets.values()),
            {name: each.most for name, each in own_budgets.items()},
        )

    @classmethod
    def read(cls, settings: Mapping[str, Any], names: Mapping[str, str]) -> Config:
        """Check every setting and return the Config.

        Args:
            settings: Scrapy's settings, or any mapping of names to values.
            names: the values of the placeholders in DQ_CRAWL and DQ_RUN_NAME.
        Raises:
            ConfigError: at the first setting that is unknown or wrong.
        """
        _check_names(settings, "DQ_", "REDIS_")
        values = _parse(settings, _BY_NAME)
        values["start_queue"] = start_queue(settings)
        for setting in (_BY_NAME["DQ_CRAWL"], _BY_NAME["DQ_RUN_NAME"]):
            values[setting.field] = _fill(setting, values[setting.field], names)
            if any("\ud800" <= char <= "\udfff" for char in values[setting.field]):
                # A command-line argument whose bytes are not UTF-8: Redis keys and values are UTF-8.
                raise setting.wrong(values[setting.field], "text that can be written as UTF-8")
        # Even if this crawl does not use it.
        _fill(_BY_NAME["REDIS_START_URLS_KEY"], values["start_urls_key"], {"name": "x", "spider": "x"})
        if not values["crawl"]:
            raise _BY_NAME["DQ_CRAWL"].wrong(settings.get("DQ_CRAWL"), "a name that is not empty")
        if values["partition_by"] == "none" and values["domain_limits"]:
            raise ConfigError(
                "DQ_DOMAIN_LIMITS names partitions, and with DQ_PARTITION_BY = 'none' there is only one, "
                "which has no name: set DQ_DOMAIN_DELAY and DQ_DOMAIN_CONCURRENCY for it, or remove "
                "DQ_PARTITION_BY"
            )
        if values["shards"] > 1 and values["strict_order"]:
            raise ConfigError(
                f"DQ_SHARDS = {values['shards']}: each shard has an order of its own, so DQ_STRICT_ORDER "
                f"cannot be kept. Remove one of the two"
            )
        per_ip = int(settings.get("CONCURRENT_REQUESTS_PER_IP") or 0)
        if values["shards"] > 1 and values["partition_by"] == "slot" and per_ip:
            raise ConfigError(
                f"DQ_SHARDS = {values['shards']}: a request belongs into the shard of its download slot, and "
                f"with CONCURRENT_REQUESTS_PER_IP = {per_ip} that depends on what DNS answers: it would be "
                f"crawled in several. Set CONCURRENT_REQUESTS_PER_DOMAIN instead, or DQ_PARTITION_BY = 'none'"
            )
        budgets = [values["domain_budget"], *(own.budget for own in values["domain_limits"].values())]
        if len({each.daily for each in budgets if each and each.most}) > 1:
            raise ConfigError(
                "DQ_DOMAIN_BUDGET, DQ_DOMAIN_LIMITS: all budgets of a crawl are for a run or all are for a "
                "day. Write /day after each of them, or after none"
            )
        limited = values["domain_delay_s"] or values["domain_concurrency"] or values["domain_budget"].most
        if values["shards"] > 1 and values["partition_by"] == "none" and limited:
            raise ConfigError(
                f"DQ_SHARDS = {values['shards']}: with DQ_PARTITION_BY = 'none' each shard would keep "
                f"DQ_DOMAIN_DELAY and DQ_DOMAIN_CONCURRENCY by itself. Remove DQ_PARTITION_BY, or the limits"
            )
        if values["seen_ttl_s"] and not values["persist"]:
            raise ConfigError(
                f"DQ_SEEN_TTL = {values['seen_ttl_s']:g}: without SCHEDULER_PERSIST = True no fingerprints "
                f"are kept from run to run, so none can expire. Set both, or neither"
            )
        if values["seen_ttl_s"] and values["revisit"]:
            raise ConfigError(
                f"DQ_REVISIT = {values['revisit']!r} visits pages again by itself, and with DQ_SEEN_TTL = "
                f"{values['seen_ttl_s']:g} links would bring them once more. Remove one of the two"
            )
        if values["seen_ttl_s"] and values["seen"] == "compact":
            raise ConfigError(
                f"DQ_SEEN = 'compact' stores no times, but DQ_SEEN_TTL = {values['seen_ttl_s']:g} needs "
                f"them: remove one of the two"
            )
        kinds = [kind for kind in ("set", "zset", "stream") if values[f"start_urls_as_{kind}"]]
        if len(kinds) > 1:
            several = " and ".join(f"REDIS_START_URLS_AS_{kind.upper()}" for kind in kinds)
            raise ConfigError(f"{several} are True: set one of them, or none for a list")
        return cls(**values)

    @classmethod
    def for_items(cls, settings: Mapping[str, Any]) -> Config:
        """Check only the settings of Redis and of items; the result belongs to no crawl.

        Raises:
            ConfigError: at the first of these settings that is wrong, or unknown name with REDIS_ in front.
        """
        _check_names(settings, "REDIS_")
        return cls("", **_parse(settings, _FOR_ITEMS))


SETTINGS = tuple(
    replace(each.metadata["setting"], field=each.name)
    for each in fields(Config)
    if "setting" in each.metadata
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


REMOVED = {
    "DQ_START_META": (
        "a start payload may have any meta but what makes Scrapy import code. Remove it; to allow less, "
        "override make_request_from_data()"
    ),
    "DQ_START_HOSTS": (
        "set allowed_domains, and let make_request_from_data() return requests that Scrapy's offsite "
        "middleware checks (docs/from-scrapy-redis.md, 'Which hosts are fed')"
    ),
    "DQ_SIGNING_KEYS": (
        "who may write to Redis can stop or change the crawl, whatever its entries look like. Give Redis a "
        "password, ACLs and TLS (docs/security.md)"
    ),
}
"""What replaces settings of earlier versions."""
REMOVED |= {
    name: f"write {instead}"
    for name, instead in {
        "DQ_REVISIT_PRIORITY": "DQ_REVISIT = 'fixed:1d, priority=-10'",
        "DQ_REVISIT_FIELD": "DQ_REVISIT = 'fixed:1d, field=price'",
        "DQ_DOMAIN_BUDGET_PERIOD": "DQ_DOMAIN_BUDGET = '1000/day' for a day, and a number for a run",
        "DQ_RETRY_AFTER_MAX": "DQ_RETRY_BACKOFF = {'retry_after': 600}",
        "DQ_REDIS_TIMEOUT": "REDIS_PARAMS = {'socket_timeout': 2}",
        "DQ_SPILL_DIR": "DQ_DATA_DIR, which is the folder for all files",
        "DQ_LOG_INTERVAL": "LOGSTATS_INTERVAL, which is Scrapy's own",
        "DQ_FAILED_STATUSES": "RETRY_HTTP_CODES, which is Scrapy's own",
    }.items()
}
REMOVED |= {
    name: f"{what}. Remove it"
    for name, what in {
        "DQ_STATS_INTERVAL": "each worker reports its stats every five seconds",
        "DQ_LOCAL_SEEN": "a worker remembers 100,000 fingerprints",
        "DQ_STALL_TIMEOUT": "a worker whose event loop is blocked for 300 s stops its heartbeat",
        "DQ_KEEP_FAILED": "a crawl keeps its 10,000 newest failed requests",
        "DQ_RESTART_WINDOW": "it is 60 s; with another DQ_RUN_NAME a new run begins at once",
        "DQ_REDIS_SERVER": "the embedded Redis runs the server that is found first on the PATH",
    }.items()
}


_OF_THE_CLIENT = {
    "REDIS_PASSWORD": "password", "REDIS_USER": "username", "REDIS_USERNAME": "username", "REDIS_SSL": "ssl",
    "REDIS_TIMEOUT": "socket_timeout",
}  # fmt: skip
"""Names that users expect, and the arguments of redis-py that they mean."""


def _check_names(settings: Mapping[str, Any], *prefixes: str) -> None:
    """Refuse names with these prefixes that are no setting of ours, nor an unused one of scrapy-redis."""
    for name in settings:
        if not (isinstance(name, str) and name.startswith(prefixes)):
            continue
        if name in REMOVED:
            raise ConfigError(f"{name} was removed: {REMOVED[name]}")
        if name in _BY_NAME or name in peers.UNUSED:
            continue
        bare = name.removeprefix("DQ_")
        near = [bare] if bare in _BY_NAME else difflib.get_close_matches(name, _BY_NAME, 1)
        near = near or difflib.get_close_matches(bare, _BY_NAME, 1)
        hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all of them."
        if name in _OF_THE_CLIENT:
            hint = f"write REDIS_PARAMS = {{{_OF_THE_CLIENT[name]!r}: ...}}."
        more = "" if name.startswith("DQ_") else " A setting of your own needs another prefix than REDIS_"
        raise ConfigError(f"{name} is not a setting of scrapy_dq: {hint}{more}")


def enabled(settings: Mapping[str, Any]) -> bool:
    """Return DQ_ENABLED; an invalid value counts as True here, and is refused when the crawl opens."""
    try:
        return bool(_parse(settings, ("DQ_ENABLED",))["enabled"])
    except ConfigError:
        return True


def fill_items_key(template: str, spider: str) -> str:
    """Return REDIS_ITEMS_KEY for a spider.

    Raises:
        ConfigError: it has a placeholder other than %(spider)s.
    """
    return _fill(_BY_NAME["REDIS_ITEMS_KEY"], template, {"spider": spider})


def _parse(settings: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Check the settings of these *names*; return their values by the fields of Config."""
    values = {}
    for setting in map(_BY_NAME.__getitem__, names):
        value = settings.get(setting.name)
        if value is None and setting.name == "DQ_ORDER":
            value = _order_of(settings)
        if value is None:
            value = setting.default
        values[setting.field] = setting.parse(setting, value)
    if "redis_url" in values:
        name_place(settings, values, _BY_NAME["REDIS_HOST"])
    return values


def _order_of(settings: Mapping[str, Any]) -> str:
    breadth_first = breadth_first_queues(settings)
    return (order_of_queue(settings) or (Order.PRIORITY_FIFO if breadth_first else Order.PRIORITY_LIFO)).value


def _fill(setting: Setting, template: str, names: Mapping[str, str]) -> str:
    try:
        if "%" in re.sub(r"%%|%\(", "", template):  # `"%s" % names` would be the text of the whole dict
            raise ValueError("a literal % is written %%")
        return template % names
    except KeyError as error:
        allowed = ", ".join(f"%({name})s" for name in sorted(names) if name[0] != "_")
        ours = setting.field in ("crawl", "run_name")
        argument = f", or pass the spider's argument: -a {error.args[0]}=..." if ours else ""
        raise ConfigError(
            f"{setting.name} = {prose_without_logins(template)!r}: there is no {error.args[0]!r} here; use "
            f"{allowed}{argument}"
        ) from None
    except (TypeError, ValueError) as error:
        raise setting.wrong(template, f"placeholders such as %(spider)s ({error})") from None
