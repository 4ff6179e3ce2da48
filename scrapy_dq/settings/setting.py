"""One setting: its name, default, unit and range, and how its values are checked."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scrapy_dq.frontier.model import Order, fits_partition
from scrapy_dq.text import has_login, prose_without_logins


class ConfigError(ValueError):
    """A setting cannot be used; the message names it, its value and what is allowed."""


_SERIALIZER = "a module or object with dumps() and loads()"


@dataclass(frozen=True)
class Setting:
    """One setting, as the docs and the checks use it."""

    name: str
    field: str
    default: Any
    parse: Callable[[Setting, Any], Any]
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    doc: str = ""
    """The purpose of the setting, in one line of Markdown."""
    secret: bool = False
    """Whether the value may hold a password or a key, so that it must not be shown."""

    def wrong(self, value: Any, expected: str = "") -> ConfigError:
        """Return the error for a value; *expected*: the allowed values, if `allowed` does not say enough."""
        # Any setting's value may contain a login, because the user may have put the URL of Redis, or a part
        # of it, into the wrong setting.
        has_one = has_login(value if isinstance(value, str) else repr(value))
        hidden = has_one or self.secret or self.name in ("REDIS_HOST", "REDIS_PORT")
        shown = " (not shown here)" if hidden else f" = {value!r}"
        return ConfigError(f"{self.name}{shown}: expected {prose_without_logins(expected or self.allowed)}")

    @property
    def range(self) -> str:
        """The allowed values, in words, for messages and docs."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        unit = f" {self.unit}" if self.unit else ""
        if self.high is not None:
            return f"{_plain(self.low)} to {_plain(self.high)}{unit}"
        return f"at least {_plain(self.low)}{unit}" if self.low is not None else ""

    @property
    def allowed(self) -> str:
        """The allowed values, in words, even without a range."""
        return self.range or _KINDS.get(self.parse, "a string")

    @property
    def parsed_default(self) -> Any:
        """The default, as Config holds it."""
        return self.parse(self, self.default)


def define(
    name: str,
    default: Any,
    doc: str,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    parse: Callable[[Setting, Any], Any] | None = None,
    choices: tuple[str, ...] = (),
    repr: bool = True,
) -> Any:
    """Return a dataclass field that defines a setting. *parse* turns *default* into the field's default.

    Args:
        name: the name of the setting in Scrapy's settings.
        default: the value if the setting is omitted.
        doc: one line of Markdown.
        parse: checks a value; None means the check for the default's type.
        repr: False for a value that may contain a password.
    """
    parse = parse or (choice if choices else _OF_TYPE[type(default)])
    setting = Setting(name, "", default, parse, unit, low, high, choices, doc, secret=not repr)
    return field(default_factory=lambda: setting.parsed_default, metadata={"setting": setting}, repr=repr)


def _plain(number: float | None) -> str:
    return f"{number:.12g}"


def number(setting: Setting, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        found = float(value)
    except (TypeError, ValueError):
        raise setting.wrong(value, f"a number, {setting.range}") from None
    low, high = setting.low, setting.high
    if not (found >= (low if low is not None else found)) or (high is not None and found > high):
        raise setting.wrong(value)
    return found


def integer(setting: Setting, value: Any) -> int:
    found = number(setting, value)
    if found != int(found):
        raise setting.wrong(value, f"a whole number, {setting.range}")
    return int(found)


def boolean(setting: Setting, value: Any) -> bool:
    if isinstance(value, str):
        meanings = {"true": True, "1": True, "false": False, "0": False, "": False}
        if value.lower() in meanings:
            return meanings[value.lower()]
    elif isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise setting.wrong(value)


def text(setting: Setting, value: Any) -> str:
    if not isinstance(value, str):
        raise setting.wrong(value)
    return value


def encoding(setting: Setting, value: Any) -> str:
    try:
        return codecs.lookup(text(setting, value)).name
    except LookupError:
        raise setting.wrong(value) from None


def path(setting: Setting, value: Any) -> str:
    """Check only the type, because the folder is created when it is needed."""
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    raise setting.wrong(value)


def web_address(setting: Setting, value: Any) -> str:
    """Check that *value* is empty or a URL of http or https. It may hold a secret, so no error quotes it."""
    try:
        parts = urlsplit(value)
        good = not value or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
        good = good and value.isascii() and "@" not in parts.netloc
    except (AttributeError, TypeError, ValueError):
        good = False
    if not good or not str(value).isprintable() or " " in str(value):
        raise setting.wrong(value)
    return str(value)


def choice(setting: Setting, value: Any) -> str:
    if value not in setting.choices:
        raise setting.wrong(value)
    return str(value)


def order_choice(setting: Setting, value: Any) -> Order:
    return Order(choice(setting, value))


def texts(setting: Setting, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        # `-s` on the command line gives a string: a JSON list, or texts separated by commas.
        parts = value.split(",")
        if value.lstrip().startswith("["):  # an IPv6 address also begins with a bracket
            with suppress(ValueError):
                parts = json.loads(value)
        stripped = (part.strip() if isinstance(part, str) else part for part in parts)
        value = [part for part in stripped if part != ""]
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(v, str) for v in value):
        raise setting.wrong(value)
    return tuple(value)


def schemes(setting: Setting, value: Any) -> tuple[str, ...]:
    found = texts(setting, value)
    if not all(re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme) for scheme in found):
        raise setting.wrong(value)
    return found


def serializer(setting: Setting, value: Any) -> Any:
    """Return the object with `dumps` and `loads` that *value* is or names, or None if it is not set."""
    if value is None or value == "":
        return None
    found = value
    if isinstance(value, str):
        try:
            found = resolve_name(value)
        except Exception as error:  # a module may raise anything while it is imported
            reason = f"it cannot be imported: {type(error).__name__}: {error}"
            raise setting.wrong(value, f"{_SERIALIZER} ({reason:.300})") from error
    for name in ("dumps", "loads"):
        if not callable(getattr(found, name, None)):
            raise setting.wrong(value, f"{_SERIALIZER} (it has no {name}())")
    return found


def mapping(setting: Setting, value: Any) -> dict[str, Any]:
    # `-s` on the command line gives a string.
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except ValueError:
            raise setting.wrong(value, "a dict, or JSON of one") from None
    if not isinstance(value, Mapping):
        raise setting.wrong(value, "a dict")
    return dict(value)


def revisit_policy(setting: Setting, value: Any) -> Any:
    if isinstance(value, (str, type)):
        return value  # revisits/policy.py checks or loads it
    raise setting.wrong(value)


def loadable(setting: Setting, value: Any) -> Any:
    if isinstance(value, str) or callable(value):
        return value
    raise setting.wrong(value)


class Budget(NamedTuple):
    """The maximum number of requests of a partition, in a run or on a day; 0 means any number."""

    most: int = 0
    daily: bool = False

    def __str__(self) -> str:
        return f"{self.most}/day" if self.daily else str(self.most)


def budget(setting: Setting, value: Any) -> Budget:
    found = re.fullmatch(r"([0-9]{1,10})(/day)?", str(value))
    if isinstance(value, bool) or not found or int(found[1]) > 1_000_000_000:
        raise setting.wrong(value)
    return Budget(int(found[1]), bool(found[2]) and found[1] != "0")


class PartitionSettings(NamedTuple):
    """The settings of a partition in DQ_DOMAIN_LIMITS; None means not set."""

    delay: float | None = None
    concurrency: int | None = None
    budget: Budget | None = None


class Backoff(NamedTuple):
    """Longest waits in seconds.

    `base`: before the first retry (0: no wait); `cap`: before any retry; `retry_after`: because of a
    Retry-After header.
    """

    base: float = 0.0
    cap: float = 0.0
    retry_after: float = 600.0

    def __str__(self) -> str:
        return json.dumps(self._asdict())


def limits(setting: Setting, value: Any) -> dict[str, PartitionSettings]:
    found = {}
    for partition, own in mapping(setting, value).items():
        if not isinstance(partition, str) or "://" in partition or not fits_partition(partition):
            named = partition[:200] if isinstance(partition, str) else partition
            raise setting.wrong(named, "the name of a partition, usually a host")
        found[partition] = PartitionSettings(**_options(setting, own, _OF_PARTITION, f"of {partition!r}"))
    return found


def backoff(setting: Setting, value: Any) -> Backoff:
    found = Backoff(**_options(setting, mapping(setting, value), _OF_RETRIES))
    if found.base > found.cap or bool(found.base) != bool(found.cap):
        expected = 'both "base" and "cap", in seconds, the base above 0 and not above the cap'
        raise setting.wrong(value, expected)
    return found


_DAY_S = 86_400
_OF_PARTITION = {"delay": (number, _DAY_S), "concurrency": (integer, 1_000_000), "budget": (budget, None)}
_OF_RETRIES = {"base": (number, _DAY_S), "cap": (number, _DAY_S), "retry_after": (number, _DAY_S)}


def _options(
    setting: Setting, given: Any, known: Mapping[str, tuple[Any, float | None]], context: str = ""
) -> dict[str, Any]:
    """Return the options in a dict, each checked like a setting, from 0 to its highest value."""
    *first, last = map(repr, known)
    names = f"{', '.join(first)} and {last} {context}".rstrip()
    if not isinstance(given, Mapping):
        raise setting.wrong(given, f"a dict with {names}")
    found = {}
    for name, value in given.items():
        if name not in known:
            raise setting.wrong(given, f"{names}, not {name!r}")
        parse, high = known[name]
        where = f"{setting.name}: {name} {context}".rstrip()
        found[name] = parse(replace(setting, name=where, parse=parse, low=0, high=high), value)
    return found


_OF_TYPE: dict[type, Callable[[Setting, Any], Any]] = {
    bool: boolean, int: integer, float: number, str: text, tuple: texts, dict: mapping,
}  # fmt: skip
_KINDS: dict[Callable[[Setting, Any], Any], str] = {
    backoff: "a dict",
    boolean: "True or False",
    budget: "a whole number from 0 to 1,000,000,000, or such a number with /day",
    encoding: "the name of a text encoding",
    limits: "a dict",
    loadable: "a function, or its dotted path",
    mapping: "a dict",
    path: "the path of a folder",
    revisit_policy: "text such as fixed:1d, or a subclass of scrapy_dq.RevisitPolicy, or its dotted path",
    schemes: "a list of URL schemes",
    serializer: _SERIALIZER,
    texts: "a list of strings",
    web_address: "a URL of http or https in ASCII, without a login, or empty",
}
