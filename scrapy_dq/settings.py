"""Every setting: name, default, unit, range and check; parsed once into a frozen Config."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scrapy_dq.frontier.model import Order


class ConfigError(ValueError):
    """A setting cannot be used; the message names it, its value and what is allowed."""


_MAY_HOLD_A_PASSWORD = {"REDIS_URL", "REDIS_PARAMS"}


@dataclass(frozen=True)
class Setting:
    """One setting, as the docs and the checks see it."""

    name: str
    field: str
    default: Any
    parse: Callable[[Setting, Any], Any]
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def wrong(self, value: Any, expected: str) -> ConfigError:
        shown = " (not shown here)" if self.name in _MAY_HOLD_A_PASSWORD else f" = {value!r}"
        return ConfigError(f"{self.name}{shown}: expected {expected}")

    @property
    def range(self) -> str:
        """What is allowed, in words, for messages and docs."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        unit = f" {self.unit}" if self.unit else ""
        if self.high is not None:
            return f"{_plain(self.low)} to {_plain(self.high)}{unit}"
        return f"at least {_plain(self.low)}{unit}" if self.low is not None else ""


def _plain(number: float | None) -> str:
    return f"{number:.12g}"


def _number(setting: Setting, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise setting.wrong(value, f"a number, {setting.range}") from None
    low, high = setting.low, setting.high
    if not (number >= (low if low is not None else number)) or (high is not None and number > high):
        raise setting.wrong(value, setting.range)
    return number


def _integer(setting: Setting, value: Any) -> int:
    number = _number(setting, value)
    if number != int(number):
        raise setting.wrong(value, f"a whole number, {setting.range}")
    return int(number)


def _boolean(setting: Setting, value: Any) -> bool:
    if isinstance(value, str):
        known = {"true": True, "1": True, "false": False, "0": False, "": False}
        if value.lower() in known:
            return known[value.lower()]
    elif isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise setting.wrong(value, "True or False")


def _text(setting: Setting, value: Any) -> str:
    if not isinstance(value, str):
        raise setting.wrong(value, "a string")
    return value


def _folder(setting: Setting, value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        folder = os.fspath(value)
        if not folder or (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
            return str(folder)
    raise setting.wrong(value, "a folder that is there and can be written to")


def _url(setting: Setting, value: Any) -> str:
    url = urlsplit(_text(setting, value))
    # An unescaped / ? or # in a password ends the host there: a part of it would be printed as the port.
    if url.scheme in ("redis", "rediss") and "@" in url.path + url.query + url.fragment:
        raise setting.wrong(value, "a URL whose user and password are percent-encoded (/ is %2F, # is %23)")
    return str(value)


def _choice(setting: Setting, value: Any) -> str:
    if value not in setting.choices:
        near = difflib.get_close_matches(str(value), setting.choices, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise setting.wrong(value, setting.range + hint)
    return str(value)


def _texts(setting: Setting, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(v, str) for v in value):
        raise setting.wrong(value, "a list of strings")
    return tuple(value)


def _mapping(setting: Setting, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise setting.wrong(value, "a dict")
    return dict(value)


ORDERS = tuple(order.value for order in Order)
SETTINGS = (
    Setting("DQ_CRAWL", "crawl", "%(spider)s", _text),
    Setting("DQ_RUN_NAME", "run_name", "", _text),
    Setting("DQ_ORDER", "order", "priority-lifo", _choice, choices=ORDERS),
    Setting("DQ_SEED_ONCE", "seed_once", True, _boolean),
    Setting("DQ_WORKER_TTL", "worker_ttl_s", 30.0, _number, "s", 1, 3600),
    Setting("DQ_STALL_TIMEOUT", "stall_timeout_s", 300.0, _number, "s", 1, 86_400),
    Setting("DQ_SHUTDOWN_GRACE", "shutdown_grace_s", 8.0, _number, "s", 0, 3600),
    Setting("DQ_MAX_ATTEMPTS", "max_attempts", 3, _integer, "", 1, 100),
    Setting("DQ_KEEP_FAILED", "keep_failed", 10_000, _integer, "requests", 0, 10_000_000),
    Setting("DQ_ROLLBACK_HORIZON", "rollback_horizon_s", 10.0, _number, "s", 1, 600),
    Setting("DQ_MAX_ENTRY_BYTES", "max_entry_bytes", 1_048_576, _integer, "bytes", 1024, 4_194_304),
    Setting("DQ_LOCAL_SEEN", "local_seen", 100_000, _integer, "fingerprints", 0, 100_000_000),
    Setting("DQ_SPILL_DIR", "spill_dir", "", _folder),
    Setting("DQ_URL_SCHEMES", "url_schemes", ("http", "https"), _texts),
    Setting("DQ_TYPES", "types", (), _texts),
    Setting("DQ_LOG_INTERVAL", "log_interval_s", 60.0, _number, "s", 0, 86_400),
    Setting("DQ_REDIS_TIMEOUT", "redis_timeout_s", 2.0, _number, "s", 0.1, 60),
    Setting("DQ_REDIS_SERVER", "redis_server", "", _text),
    Setting("SCHEDULER_PERSIST", "persist", False, _boolean),
    Setting("SCHEDULER_FLUSH_ON_START", "flush_on_start", False, _boolean),
    Setting("REDIS_URL", "redis_url", "", _url),
    Setting("REDIS_HOST", "redis_host", "", _text),
    Setting("REDIS_PORT", "redis_port", 6379, _integer, "", 1, 65_535),
    Setting("REDIS_DB", "redis_db", 0, _integer, "", 0, 1_000_000),
    Setting("REDIS_PARAMS", "redis_params", {}, _mapping),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Config:
    """All settings of one worker, checked. Times in seconds, sizes in bytes."""

    crawl: str
    order: Order = Order.PRIORITY_LIFO
    run_name: str = ""
    seed_once: bool = True
    worker_ttl_s: float = 30.0
    stall_timeout_s: float = 300.0
    shutdown_grace_s: float = 8.0
    max_attempts: int = 3
    keep_failed: int = 10_000
    rollback_horizon_s: float = 10.0
    max_entry_bytes: int = 1_048_576
    local_seen: int = 100_000
    spill_dir: str = ""
    url_schemes: tuple[str, ...] = ("http", "https")
    types: tuple[str, ...] = ()
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

    @property
    def embedded(self) -> bool:
        """No Redis is named: the embedded one serves."""
        return not (self.redis_url or self.redis_host or _names_server(self.redis_params))

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
        values = {}
        for setting in SETTINGS:
            value = settings.get(setting.name)
            if value is None:
                value = _from_recipe(settings) if setting.name == "DQ_ORDER" else setting.default
            values[setting.field] = setting.parse(setting, value)
        values["order"] = Order(values["order"])
        for setting in (_BY_NAME["DQ_CRAWL"], _BY_NAME["DQ_RUN_NAME"]):
            values[setting.field] = _fill(setting, values[setting.field], names)
            if any("\ud800" <= char <= "\udfff" for char in values[setting.field]):
                # An argument of the command line whose bytes are no UTF-8: Redis keys and values are UTF-8.
                raise setting.wrong(values[setting.field], "text that can be written as UTF-8")
        if not values["crawl"]:
            raise _BY_NAME["DQ_CRAWL"].wrong(settings.get("DQ_CRAWL"), "a name that is not empty")
        return cls(**values)


def _names_server(params: Mapping[str, Any]) -> bool:
    return any(params.get(name) for name in ("host", "unix_socket_path", "path", "url"))


def _from_recipe(settings: Mapping[str, Any]) -> str:
    """Understand Scrapy's documented recipe for breadth-first order."""
    queues = (settings.get("SCHEDULER_MEMORY_QUEUE"), settings.get("SCHEDULER_DISK_QUEUE"))
    depth_first = not any("Fifo" in str(getattr(queue, "__name__", queue)) for queue in queues)
    return Order.PRIORITY_LIFO.value if depth_first else Order.PRIORITY_FIFO.value


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
