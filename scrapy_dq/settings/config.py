"""Every setting, parsed once into a frozen Config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapy_dq.frontier.model import Limits, Order, Seen, StartQueue
from scrapy_dq.settings.peers import order_of_queue
from scrapy_dq.settings.redis_place import name_place, names_redis
from scrapy_dq.settings.scrapy_queues import breadth_first_queues, start_queue
from scrapy_dq.settings.setting import (
    ConfigError,
    Setting,
    backoff,
    boolean,
    choice,
    encoding,
    folder,
    host,
    hosts,
    integer,
    limits,
    loadable,
    mapping,
    need_program,
    number,
    program,
    serializer,
    signing_keys,
    text,
    texts,
    url,
)

ORDERS = tuple(order.value for order in Order)
SETTINGS = (
    Setting("DQ_CRAWL", "crawl", "%(spider)s", text),
    Setting("DQ_RUN_NAME", "run_name", "", text),
    Setting("DQ_RESTART_WINDOW", "restart_window_s", 60.0, number, "s", 0, 86_400),
    Setting("DQ_ORDER", "order", "priority-lifo", choice, choices=ORDERS),
    Setting("DQ_STRICT_ORDER", "strict_order", False, boolean),
    Setting("DQ_PARTITION_BY", "partition_by", "slot", choice, choices=("slot", "none")),
    Setting("DQ_DOMAIN_DELAY", "domain_delay_s", 0.0, number, "s", 0, 86_400),
    Setting("DQ_DOMAIN_CONCURRENCY", "domain_concurrency", 0, integer, "requests", 0, 1_000_000),
    Setting("DQ_DOMAIN_LIMITS", "domain_limits", {}, limits),
    Setting("DQ_RETRY_AFTER_MAX", "retry_after_max_s", 600.0, number, "s", 0, 86_400),
    Setting("DQ_RETRY_BACKOFF", "retry_backoff", {}, backoff),
    Setting("DQ_SEEN", "seen", "exact", choice, choices=("exact", "compact")),
    Setting("DQ_SEEN_TTL", "seen_ttl_s", 0.0, number, "s", 0, 3_153_600_000),
    Setting("DQ_SEED_ONCE", "seed_once", True, boolean),
    Setting("SCHEDULER_IDLE_BEFORE_CLOSE", "idle_before_close_s", 0.0, number, "s", 0, 31_536_000),
    Setting("MAX_IDLE_TIME_BEFORE_CLOSE", "max_idle_time_s", 0.0, number, "s", 0, 31_536_000),
    Setting("REDIS_START_URLS_KEY", "start_urls_key", "%(name)s:start_urls", text),
    Setting("REDIS_START_URLS_AS_SET", "start_urls_as_set", False, boolean),
    Setting("REDIS_START_URLS_AS_ZSET", "start_urls_as_zset", False, boolean),
    Setting("DQ_START_META", "start_meta", (), texts),
    Setting("DQ_START_HOSTS", "start_hosts", (), hosts),
    Setting("REDIS_ENCODING", "redis_encoding", "utf-8", encoding),
    Setting("DQ_WORKER_TTL", "worker_ttl_s", 30.0, number, "s", 1, 3600),
    Setting("DQ_STALL_TIMEOUT", "stall_timeout_s", 300.0, number, "s", 1, 86_400),
    Setting("DQ_SHUTDOWN_GRACE", "shutdown_grace_s", 8.0, number, "s", 0, 3600),
    Setting("DQ_MAX_ATTEMPTS", "max_attempts", 3, integer, "", 1, 100),
    Setting("DQ_KEEP_FAILED", "keep_failed", 10_000, integer, "requests", 0, 10_000_000),
    Setting("DQ_ROLLBACK_HORIZON", "rollback_horizon_s", 10.0, number, "s", 1, 600),
    Setting("DQ_MAX_ENTRY_BYTES", "max_entry_bytes", 1_048_576, integer, "bytes", 1024, 4_194_304),
    Setting("DQ_LOCAL_SEEN", "local_seen", 100_000, integer, "fingerprints", 0, 100_000_000),
    Setting("DQ_SPILL_DIR", "spill_dir", "", folder),
    Setting("DQ_SIGNING_KEYS", "signing_keys", (), signing_keys),
    Setting("DQ_URL_SCHEMES", "url_schemes", ("http", "https"), texts),
    Setting("DQ_TYPES", "types", (), texts),
    Setting("SCHEDULER_SERIALIZER", "serializer", "", serializer),
    Setting("DQ_TRUST_PICKLE", "trust_pickle", False, boolean),
    Setting("DQ_LOG_INTERVAL", "log_interval_s", 60.0, number, "s", 0, 86_400),
    Setting("DQ_REDIS_TIMEOUT", "redis_timeout_s", 2.0, number, "s", 0.1, 60),
    Setting("DQ_REDIS_SERVER", "redis_server", "", program),
    Setting("SCHEDULER_PERSIST", "persist", False, boolean),
    Setting("SCHEDULER_FLUSH_ON_START", "flush_on_start", False, boolean),
    Setting("REDIS_URL", "redis_url", "", url),
    Setting("REDIS_HOST", "redis_host", "", host),
    Setting("REDIS_PORT", "redis_port", 6379, integer, "", 1, 65_535),
    Setting("REDIS_DB", "redis_db", 0, integer, "", 0, 1_000_000),
    Setting("REDIS_PARAMS", "redis_params", {}, mapping),
    Setting("DQ_ENABLED", "enabled", True, boolean),
    Setting("DQ_ITEMS_TYPE", "items_type", "list", choice, choices=("list", "stream")),
    Setting("REDIS_ITEMS_KEY", "items_key", "%(spider)s:items", text),
    Setting("REDIS_ITEMS_SERIALIZER", "items_serializer", "", loadable),
    Setting("DQ_STATS_INTERVAL", "stats_interval_s", 5.0, number, "s", 0.1, 3600),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_FOR_ITEMS = (
    "DQ_ITEMS_TYPE", "REDIS_ITEMS_KEY", "REDIS_ITEMS_SERIALIZER", "DQ_SHUTDOWN_GRACE", "DQ_REDIS_TIMEOUT",
    "DQ_ROLLBACK_HORIZON", "DQ_REDIS_SERVER", "REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_DB",
    "REDIS_PARAMS",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All settings of one worker, checked. Times in seconds, sizes in bytes."""

    crawl: str
    order: Order = Order.PRIORITY_LIFO
    start_queue: StartQueue = StartQueue.FIFO
    """Where the start requests of this worker stand: by Scrapy's own setting."""
    run_name: str = ""
    restart_window_s: float = 60.0
    strict_order: bool = False
    partition_by: str = "slot"
    domain_delay_s: float = 0.0
    domain_concurrency: int = 0
    domain_limits: dict[str, tuple[float | None, int | None]] = field(default_factory=dict)
    retry_after_max_s: float = 600.0
    retry_backoff: tuple[float, float] | None = None
    """Base and cap, in seconds."""
    seen: str = "exact"
    seen_ttl_s: float = 0.0
    seed_once: bool = True
    idle_before_close_s: float = 0.0
    max_idle_time_s: float = 0.0
    start_urls_key: str = "%(name)s:start_urls"
    start_urls_as_set: bool = False
    start_urls_as_zset: bool = False
    start_meta: tuple[str, ...] = ()
    start_hosts: tuple[str, ...] = ()
    redis_encoding: str = "utf-8"
    worker_ttl_s: float = 30.0
    stall_timeout_s: float = 300.0
    shutdown_grace_s: float = 8.0
    max_attempts: int = 3
    keep_failed: int = 10_000
    rollback_horizon_s: float = 10.0
    max_entry_bytes: int = 1_048_576
    local_seen: int = 100_000
    spill_dir: str = ""
    signing_keys: tuple[str, ...] = field(default=(), repr=False)
    url_schemes: tuple[str, ...] = ("http", "https")
    types: tuple[str, ...] = ()
    serializer: Any = None
    """An object with `dumps` and `loads`."""
    trust_pickle: bool = False
    log_interval_s: float = 60.0
    redis_timeout_s: float = 2.0
    redis_server: str = ""
    persist: bool = False
    flush_on_start: bool = False
    redis_url: str = field(default="", repr=False)
    redis_host: str = ""
    redis_port: int = 6379
    redis_db: int = 0
    redis_params: dict[str, Any] = field(default_factory=dict, repr=False)
    enabled: bool = True
    items_type: str = "list"
    items_key: str = "%(spider)s:items"
    items_serializer: Any = ""
    """A function, its dotted path, or "" for Scrapy's JSON."""
    stats_interval_s: float = 5.0

    @property
    def embedded(self) -> bool:
        """No Redis is named: the embedded one serves."""
        return not (self.redis_url or self.redis_host or names_redis(self.redis_params))

    @property
    def seen_kind(self) -> Seen:
        """How a crawl keeps what it has seen."""
        return Seen.EXPIRING if self.seen_ttl_s else Seen(self.seen)

    @property
    def limits(self) -> Limits:
        """What a partition may have, all workers together."""
        return Limits(self.domain_delay_s, self.domain_concurrency, self.domain_limits)

    @classmethod
    def read(cls, settings: Mapping[str, Any], names: Mapping[str, str]) -> Config:
        """Check every setting and return the Config.

        Args:
            settings: Scrapy's settings, or any mapping of names to values.
            names: what the placeholders of DQ_CRAWL and DQ_RUN_NAME stand for.
        Raises:
            ConfigError: at the first setting that is unknown or wrong.
        """
        for name in settings:
            if isinstance(name, str) and name.startswith("DQ_") and name not in _BY_NAME:
                near = difflib.get_close_matches(name, [n for n in _BY_NAME if n.startswith("DQ_")], 1)
                hint = f"did you mean {near[0]}?" if near else "see docs/settings.md for all of them"
                raise ConfigError(f"{name} is not a setting of scrapy_dq: {hint}")
        values = _parse(settings, _BY_NAME)
        values["order"] = Order(values["order"])
        values["start_queue"] = start_queue(settings)
        for setting in (_BY_NAME["DQ_CRAWL"], _BY_NAME["DQ_RUN_NAME"]):
            values[setting.field] = _fill(setting, values[setting.field], names)
            if any("\ud800" <= char <= "\udfff" for char in values[setting.field]):
                # An argument of the command line whose bytes are no UTF-8: Redis keys and values are UTF-8.
                raise setting.wrong(values[setting.field], "text that can be written as UTF-8")
        # Whether or not this crawl has use for it.
        _fill(_BY_NAME["REDIS_START_URLS_KEY"], values["start_urls_key"], {"name": "x", "spider": "x"})
        if not values["crawl"]:
            raise _BY_NAME["DQ_CRAWL"].wrong(settings.get("DQ_CRAWL"), "a name that is not empty")
        if values["partition_by"] == "none" and values["domain_limits"]:
            raise ConfigError(
                "DQ_DOMAIN_LIMITS names partitions, and with DQ_PARTITION_BY = 'none' there is only one, "
                "which has no name: set DQ_DOMAIN_DELAY and DQ_DOMAIN_CONCURRENCY for it, or leave "
                "DQ_PARTITION_BY out"
            )
        if values["seen_ttl_s"] and not values["persist"]:
            raise ConfigError(
                f"DQ_SEEN_TTL = {values['seen_ttl_s']:g}: without SCHEDULER_PERSIST = True nothing is kept "
                f"from run to run that could be forgotten. Set both, or neither"
            )
        if values["seen_ttl_s"] and values["seen"] == "compact":
            raise ConfigError(
                f"DQ_SEEN = 'compact' keeps no times, and DQ_SEEN_TTL = {values['seen_ttl_s']:g} goes by "
                f"them: leave one of both out"
            )
        if values["start_urls_as_set"] and values["start_urls_as_zset"]:
            raise ConfigError(
                "REDIS_START_URLS_AS_SET and REDIS_START_URLS_AS_ZSET are both True: a key is one of them, "
                "or neither (a list)"
            )
        config = cls(**values)
        if config.embedded:
            need_program(_BY_NAME["DQ_REDIS_SERVER"], config.redis_server)
        return config

    @classmethod
    def for_items(cls, settings: Mapping[str, Any]) -> Config:
        """Check what says where Redis is and how items go there, and no more: it belongs to no crawl.

        Raises:
            ConfigError: at the first of these settings that is wrong.
        """
        return cls("", **_parse(settings, _FOR_ITEMS))


def enabled(settings: Mapping[str, Any]) -> bool:
    """Return DQ_ENABLED; a value that is none counts as True here, and is refused as the crawl opens."""
    try:
        return bool(_parse(settings, ("DQ_ENABLED",))["enabled"])
    except ConfigError:
        return True


def fill_items_key(template: str, spider: str) -> str:
    """Return REDIS_ITEMS_KEY for a spider.

    Raises:
        ConfigError: it refers to something else than %(spider)s.
    """
    return _fill(_BY_NAME["REDIS_ITEMS_KEY"], template, {"spider": spider})


def _parse(settings: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Check the settings of these *names*; return their values by the fields of Config."""
    values = {}
    for setting in map(_BY_NAME.__getitem__, names):
        value = settings.get(setting.name)
        if value is None:
            value = _order_of(settings) if setting.name == "DQ_ORDER" else setting.default
        values[setting.field] = setting.parse(setting, value)
    if "redis_url" in values:
        name_place(settings, values, _BY_NAME["REDIS_HOST"], _BY_NAME["REDIS_PORT"])
    return values


def _order_of(settings: Mapping[str, Any]) -> str:
    breadth_first = breadth_first_queues(settings)
    return (order_of_queue(settings) or (Order.PRIORITY_FIFO if breadth_first else Order.PRIORITY_LIFO)).value


def _fill(setting: Setting, template: str, names: Mapping[str, str]) -> str:
    try:
        if "%" in re.sub(r"%%|%\(", "", template):  # `"%s" % names` would be the text of the whole dict
            raise ValueError("a % that is meant as one is written %%")
        return template % names
    except KeyError as error:
        known = ", ".join(f"%({name})s" for name in sorted(names))
        raise ConfigError(
            f"{setting.name} = {template!r}: nothing is named {error.args[0]!r} here; known are {known}"
        ) from None
    except (TypeError, ValueError) as error:
        raise setting.wrong(template, f"placeholders such as %(spider)s ({error})") from None
