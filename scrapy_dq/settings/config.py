"""Every setting, parsed once into a frozen Config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from scrapy_dq.frontier.keys import MAX_SHARDS
from scrapy_dq.frontier.model import Limits, Order, Seen, StartQueue
from scrapy_dq.hostnames import with_canonical_hosts
from scrapy_dq.settings import peers
from scrapy_dq.settings import setting as kind
from scrapy_dq.settings.redis_address import host, name_place, names_redis, url
from scrapy_dq.settings.setting import Backoff, Budget, ConfigError, PartitionSettings, Setting, define
from scrapy_dq.text import prose_without_logins

ORDERS = tuple(order.value for order in Order)
REDIS_TIMEOUT_S = 2.0
"""The default of socket_timeout. It is less than a third of the default DQ_WORKER_TTL, so that one lost reply
does not make a worker look dead."""
_FOR_ITEMS = (
    "DQ_ITEMS_TYPE", "REDIS_ITEMS_KEY", "REDIS_ITEMS_SERIALIZER", "DQ_SHUTDOWN_GRACE", "DQ_ROLLBACK_HORIZON",
    "DQ_DATA_DIR", "REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All settings of one worker, checked. Times in seconds, sizes in bytes.

    Each field is the only definition of its setting: SETTINGS, the checks and the documentation use it.
    """

    crawl: str = define("DQ_CRAWL", "%(spider)s", "Crawl name, shared by its workers")
    run_name: str = define("DQ_RUN_NAME", "", "Name of one run, such as a job id or a date")
    order: Order = define(
        "DQ_ORDER", "priority-lifo", "Order within a partition", parse=kind.order_choice, choices=ORDERS
    )
    start_queue: StartQueue = StartQueue.FIFO
    """The queue of this worker's start requests, from Scrapy's own setting."""
    strict_order: bool = define(
        "DQ_STRICT_ORDER", False, "Lease one request at a time, the first in the order"
    )
    partition_by: str = define(
        "DQ_PARTITION_BY", "slot", "How to divide the backlog", choices=("slot", "none")
    )
    shards: int = define("DQ_SHARDS", 1, "Number of shards of the crawl", "shards", 1, MAX_SHARDS)
    max_pages: int = define(
        "DQ_MAX_PAGES", 0, "Maximum number of requests of a run, over all workers", "requests", 0, 10**12
    )
    domain_delay_s: float = define(
        "DQ_DOMAIN_DELAY", 0.0, "Minimum time between requests of a partition, all workers", "s", 0, 86_400
    )
    domain_concurrency: int = define(
        "DQ_DOMAIN_CONCURRENCY", 0, "Maximum number of requests of a partition in flight", "requests",
        0, 1_000_000,
    )  # fmt: skip
    domain_budget: Budget = define(
        "DQ_DOMAIN_BUDGET", 0, "Maximum number of requests of a partition per run, or (`1000/day`) per day",
        parse=kind.budget,
    )  # fmt: skip
    domain_limits: dict[str, PartitionSettings] = define(
        "DQ_DOMAIN_LIMITS", {}, "Delay, concurrency and budget of single partitions", parse=kind.limits
    )
    retry_backoff: Backoff = define(
        "DQ_RETRY_BACKOFF", {}, "Wait before a retry; longest `Retry-After` to obey", parse=kind.backoff
    )
    seen: str = define("DQ_SEEN", "exact", "How Redis stores fingerprints", choices=("exact", "compact"))
    seen_ttl_s: float = define(
        "DQ_SEEN_TTL", 0.0, "A new run forgets fingerprints older than this", "s", 0, 3_153_600_000
    )
    revisit: Any = define(
        "DQ_REVISIT", "", "When pages are visited again, such as `fixed:1d`", parse=kind.revisit_policy
    )
    """Text, or a class."""
    seed_once: bool = define("DQ_SEED_ONCE", True, "Crawl equal requests of `start()` once per run")
    idle_before_close_s: float = define(
        "SCHEDULER_IDLE_BEFORE_CLOSE", 0.0, "Idle time until any spider closes", "s", 0, 31_536_000
    )
    max_idle_time_s: float = define(
        "MAX_IDLE_TIME_BEFORE_CLOSE", 0.0, "Idle time until a `RedisSpider` closes", "s", 0, 31_536_000
    )
    start_urls_key: str = define("REDIS_START_URLS_KEY", "%(name)s:start_urls", "Key of start requests")
    start_urls_as_set: bool = define("REDIS_START_URLS_AS_SET", False, "The start key is a set")
    start_urls_as_zset: bool = define("REDIS_START_URLS_AS_ZSET", False, "The start key is a sorted set")
    start_urls_as_stream: bool = define("REDIS_START_URLS_AS_STREAM", False, "The start key is a stream")
    redis_encoding: str = define("REDIS_ENCODING", "utf-8", "Encoding of start payloads", parse=kind.encoding)
    worker_ttl_s: float = define(
        "DQ_WORKER_TTL", 30.0, "A worker without a heartbeat for this long counts as dead", "s", 1, 3600
    )
    shutdown_grace_s: float = define(
        "DQ_SHUTDOWN_GRACE", 8.0, "Time in which a closing worker finishes its requests", "s", 0, 3600
    )
    max_attempts: int = define(
        "DQ_MAX_ATTEMPTS", 3, "How many more workers a suspect request may kill", "", 1, 100
    )
    rollback_horizon_s: float = define(
        "DQ_ROLLBACK_HORIZON", 10.0, "If Redis loses data up to this age, no request is lost", "s", 1, 600
    )
    wait_replicas: int = define("DQ_WAIT_REPLICAS", 0, "How many replicas must confirm a write", "", 0, 16)
    max_entry_bytes: int = define(
        "DQ_MAX_ENTRY_BYTES", 1_048_576, "Largest stored request", "bytes", 1024, 4_194_304
    )
    url_schemes: tuple[str, ...] = define(
        "DQ_URL_SCHEMES", ("http", "https"), "URL schemes that may be stored", parse=kind.schemes
    )
    types: tuple[str, ...] = define("DQ_TYPES", (), "Further classes whose instances requests may contain")
    serializer: Any = define(
        "SCHEDULER_SERIALIZER", "", "Writes requests instead of the built-in format", parse=kind.serializer
    )
    """An object with `dumps` and `loads`."""
    trust_pickle: bool = define("DQ_TRUST_PICKLE", False, "Allow a serializer that may read pickles")
    notify_url: str = define(
        "DQ_NOTIFY_URL", "", "Webhook for the end of a run, dead letters and dead workers",
        parse=kind.web_address, repr=False,
    )  # fmt: skip
    trace: float = define("DQ_TRACE", 0.0, "Share of start requests that OpenTelemetry traces", "", 0, 1)
    tune_gc: bool = define(
        "DQ_TUNE_GC", True, "Exempt objects that exist before the crawl from garbage collection"
    )
    data_dir: str = define("DQ_DATA_DIR", "", "Folder for all files", parse=kind.path)
    persist: bool = define("SCHEDULER_PERSIST", False, "Keep the fingerprints after a finished run")
    flush_on_start: bool = define("SCHEDULER_FLUSH_ON_START", False, "Delete the crawl, then join it")
    redis_url: str = define("REDIS_URL", "", "URL of Redis", parse=url, repr=False)
    redis_host: str = define("REDIS_HOST", "", "Host of Redis", parse=host)
    redis_port: int = define("REDIS_PORT", 6379, "Port of Redis", "", 1, 65_535)
    redis_db: int = define("REDIS_DB", 0, "Number of the Redis database", "", 0, 1_000_000)
    redis_params: dict[str, Any] = define("REDIS_PARAMS", {}, "Arguments of redis-py's `Redis`", repr=False)
    enabled: bool = define("DQ_ENABLED", True, "False: leave the crawl to Scrapy's own scheduler")
    items: str = define(
        "DQ_ITEMS", "local", "Where workers put items for shared feeds", choices=("local", "redis")
    )
    items_type: str = define("DQ_ITEMS_TYPE", "list", "Type of the items' key", choices=("list", "stream"))
    items_key: str = define("REDIS_ITEMS_KEY", "%(spider)s:items", "Key of stored items")
    items_serializer: Any = define(
        "REDIS_ITEMS_SERIALIZER", "", "Converts an item to text; empty: Scrapy's JSON", parse=kind.loadable
    )

    @property
    def embedded(self) -> bool:
        """Whether the crawl uses the embedded Redis, because the settings name no other Redis."""
        return not (self.redis_url or self.redis_host or names_redis(self.redis_params))

    @property
    def redis_timeout_s(self) -> float:
        """Seconds that one reply of Redis, or a connection, may take."""
        return float(self.redis_params.get("socket_timeout") or REDIS_TIMEOUT_S)

    @property
    def seen_kind(self) -> Seen:
        """How Redis stores the fingerprints of a crawl."""
        return Seen.EXPIRING if self.seen_ttl_s else Seen(self.seen)

    @property
    def start_kind(self) -> str:
        """The type of the start keys."""
        kinds = ("set", "zset", "stream")
        return next((each for each in kinds if getattr(self, f"start_urls_as_{each}")), "list")

    @property
    def limits(self) -> Limits:
        """The limits of a partition, for all workers together."""
        own = with_canonical_hosts(self.domain_limits)
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
        values["start_queue"] = peers.start_queue(settings)
        for setting in (_BY_NAME["DQ_CRAWL"], _BY_NAME["DQ_RUN_NAME"]):
            values[setting.field] = _fill(setting, values[setting.field], names)
            if any("\ud800" <= char <= "\udfff" for char in values[setting.field]):
                # The bytes of a command-line argument may not be UTF-8, but Redis keys and values are.
                raise setting.wrong(values[setting.field], "text that can be written as UTF-8")
        # The key is checked even if this crawl does not use it.
        _fill(_BY_NAME["REDIS_START_URLS_KEY"], values["start_urls_key"], {"name": "x", "spider": "x"})
        if not values["crawl"]:
            raise _BY_NAME["DQ_CRAWL"].wrong(settings.get("DQ_CRAWL"), "a name that is not empty")
        config = cls(**values)
        config._refuse_contradictions(int(settings.get("CONCURRENT_REQUESTS_PER_IP") or 0))
        return config

    def _refuse_contradictions(self, per_ip: int) -> None:
        """Raise ConfigError for settings that contradict each other; *per_ip*: CONCURRENT_REQUESTS_PER_IP."""
        whole, many = self.partition_by == "none", self.shards > 1
        ttl_s, shards = self.seen_ttl_s, f"DQ_SHARDS = {self.shards}"
        ttl = f"DQ_SEEN_TTL = {ttl_s:g}"
        limited = self.domain_delay_s or self.domain_concurrency or self.domain_budget.most
        budgets = [self.domain_budget, *(own.budget for own in self.domain_limits.values() if own.budget)]
        periods = {each.daily for each in budgets if each.most}
        kinds = [each for each in ("SET", "ZSET", "STREAM") if getattr(self, f"start_urls_as_{each.lower()}")]
        contradictions = (
            (whole and self.domain_limits, "DQ_DOMAIN_LIMITS needs partitions: not DQ_PARTITION_BY = 'none'"),
            (len(periods) > 1, "DQ_DOMAIN_BUDGET, DQ_DOMAIN_LIMITS: write /day after each budget, or none"),
            (many and self.strict_order, f"{shards}: each shard has its own order; remove DQ_STRICT_ORDER"),
            (many and per_ip and not whole, f"{shards} needs CONCURRENT_REQUESTS_PER_IP = 0, not {per_ip}"),
            (many and whole and limited, f"{shards} with DQ_PARTITION_BY = 'none': remove DQ_DOMAIN_ limits"),
            (ttl_s and not self.persist, f"{ttl} needs SCHEDULER_PERSIST = True, which keeps fingerprints"),
            (ttl_s and self.revisit, f"{ttl}, DQ_REVISIT: both visit pages again; remove one of them"),
            (ttl_s and self.seen == "compact", f"{ttl} needs times, and DQ_SEEN = 'compact' stores none"),
            (len(kinds) > 1, f"REDIS_START_URLS_AS_{' and '.join(kinds)}: a start key has one type"),
        )
        for applies, message in contradictions:
            if applies:
                raise ConfigError(message)

    @classmethod
    def for_items(cls, settings: Mapping[str, Any]) -> Config:
        """Check only the settings of Redis and of items; the result belongs to no crawl.

        Raises:
            ConfigError: one of these settings is wrong, or the name of a REDIS_ setting is unknown.
        """
        _check_names(settings, "REDIS_")
        return cls("", **_parse(settings, _FOR_ITEMS))


SETTINGS = tuple(
    replace(each.metadata["setting"], field=each.name)
    for each in fields(Config)
    if "setting" in each.metadata
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def _check_names(settings: Mapping[str, Any], *prefixes: str) -> None:
    """Refuse names with these prefixes, except settings of scrapy_dq and unused settings of scrapy-redis."""
    for name in settings:
        if not (isinstance(name, str) and name.startswith(prefixes)):
            continue
        if name in _BY_NAME or name in peers.UNUSED:
            continue
        bare = name.removeprefix("DQ_")
        near = [bare] if bare in _BY_NAME else difflib.get_close_matches(name, _BY_NAME, 1)
        hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all of them."
        if not name.startswith("DQ_"):
            hint += " Arguments of the client belong in REDIS_PARAMS; other settings need another prefix"
        raise ConfigError(f"{name} is not a setting of scrapy_dq: {hint}")


def enabled(settings: Mapping[str, Any]) -> bool:
    """Return DQ_ENABLED. An invalid value counts as True here; the crawl refuses it when it opens."""
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
        name_place(settings, values)
    return values


def _order_of(settings: Mapping[str, Any]) -> str:
    by_recipe = Order.PRIORITY_FIFO if peers.breadth_first_queues(settings) else Order.PRIORITY_LIFO
    return (peers.order_of_queue(settings) or by_recipe).value


def _fill(setting: Setting, template: str, names: Mapping[str, str]) -> str:
    try:
        if "%" in re.sub(r"%%|%\(", "", template):  # with %s, the result would contain the whole dict
            raise ValueError("a literal % is written %%")
        return template % names
    except KeyError as error:
        allowed = ", ".join(f"%({name})s" for name in sorted(names) if name[0] != "_")
        is_name = setting.field in ("crawl", "run_name")
        argument = f", or pass the spider's argument: -a {error.args[0]}=..." if is_name else ""
        raise ConfigError(
            f"{setting.name} = {prose_without_logins(template)!r}: there is no {error.args[0]!r} here; use "
            f"{allowed}{argument}"
        ) from None
    except (TypeError, ValueError) as error:
        raise setting.wrong(template, f"placeholders such as %(spider)s ({error})") from None
