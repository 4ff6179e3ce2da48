"""One setting: its name, default, unit and range, and how its values are checked."""

from __future__ import annotations

import codecs
import difflib
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scrapy_dq.frontier.model import Order, fits_a_partition
from scrapy_dq.settings.errors import ConfigError
from scrapy_dq.settings.redis_url import check_url
from scrapy_dq.text import has_login, prose_without_logins

_POLICY = "text such as fixed:1d, or a subclass of scrapy_dq.RevisitPolicy, or its dotted path"
_PROGRAM = "an existing program, by its path or its name"
_SERIALIZER = "a module or object with dumps() and loads()"
_MAY_HOLD_A_PASSWORD = (
    "REDIS_URL",
    "REDIS_PARAMS",
    "REDIS_HOST",
    "REDIS_PORT",
    "DQ_NOTIFY_URL",
)


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
    """What it is for, in one line of Markdown."""
    secret: bool = False
    """Its value may hold a password or a key: it is not shown."""

    def wrong(self, value: Any, expected: str) -> ConfigError:
        # A port of a command line is text. A secret may be a number.
        number = (isinstance(value, int) and not self.secret) or (
            self.parse is integer and str(value).isdigit()
        )
        secret = self.name.endswith(_MAY_HOLD_A_PASSWORD) and not number
        # Whatever the setting: the URL of Redis may have got into the wrong one.
        hidden = secret or has_login(value if isinstance(value, str) else repr(value))
        shown = " (not shown here)" if hidden else f" = {value!r}"
        return ConfigError(f"{self.name}{shown}: expected {prose_without_logins(expected)}")

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
        """The allowed values, in words, also without a range."""
        return self.range or _KINDS[self.parse]

    @property
    def shown_default(self) -> str:
        """The default, as the documentation writes it."""
        if isinstance(self.default, str):
            return self.default or '""'
        if isinstance(self.default, tuple):
            return json.dumps(self.default)
        return _plain(self.default) if isinstance(self.default, float) else str(self.default)


def setting_field(
    name: str,
    default: Any,
    parse: Callable[[Setting, Any], Any],
    doc: str,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    choices: tuple[str, ...] = (),
    required: bool = False,
    repr: bool = True,
) -> Any:
    """Return a dataclass field that defines a setting; its default is what *parse* returns for *default*.

    Args:
        name: the name of the setting in Scrapy's settings.
        default: the value if the setting is omitted.
        doc: one line of Markdown.
        required: code that creates a Config directly has to give a value.
        repr: False for a value that may contain a password.
    """
    setting = Setting(name, "", default, parse, unit, low, high, choices, doc, secret=not repr)
    metadata = {"setting": setting}
    if required:
        return field(metadata=metadata, repr=repr)
    return field(default_factory=lambda: parse(setting, default), metadata=metadata, repr=repr)


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
        raise setting.wrong(value, setting.range)
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
    raise setting.wrong(value, "True or False")


def text(setting: Setting, value: Any) -> str:
    if not isinstance(value, str):
        raise setting.wrong(value, "a string")
    return value


def host(setting: Setting, value: Any) -> str:
    if set(name := text(setting, value)) & set("@/ \t\r\n"):
        raise setting.wrong(value, "the name or the address of a host; a URL belongs in REDIS_URL")
    return name


def encoding(setting: Setting, value: Any) -> str:
    try:
        return codecs.lookup(text(setting, value)).name
    except LookupError:
        raise setting.wrong(value, "the name of a text encoding that Python knows") from None


def folder(setting: Setting, value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if not path or (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)):
            return str(path)
    raise setting.wrong(value, "an existing folder that can be written to")


def path(setting: Setting, value: Any) -> str:
    """Check the type only: the folder is created when it is needed."""
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    raise setting.wrong(value, "the path of a folder")


def program(setting: Setting, value: Any) -> str:
    """Check the type only: the program has to exist only where it is run, see `need_program`."""
    if isinstance(value, str):
        return value
    raise setting.wrong(value, _PROGRAM)


def need_program(setting: Setting, value: str) -> None:
    if value and not shutil.which(os.path.expanduser(value)):
        raise setting.wrong(value, _PROGRAM)


def url(setting: Setting, value: Any) -> str:
    check_url(setting.name, text(setting, value))
    return str(value)


def web_address(setting: Setting, value: Any) -> str:
    """Check that *value* is a URL of http or https, or empty; it may hold a secret, which no error quotes."""
    try:
        parts = urlsplit(value)
        good = not value or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
        good = good and value.isascii() and "@" not in parts.netloc
    except (AttributeError, TypeError, ValueError):
        good = False
    if not good or not str(value).isprintable() or " " in str(value):
        raise setting.wrong(value, setting.allowed)
    return str(value)


def socket_path(setting: Setting, value: Any) -> Any:
    if "://" in str(value):
        raise setting.wrong(value, "the path of a unix socket; a URL belongs in REDIS_URL")
    return value


def credentials(setting: Setting, value: Any) -> Any:
    if not callable(getattr(value, "get_credentials", None)):
        raise setting.wrong(
            value, "an object of redis-py's CredentialProvider, or of your own with its methods"
        )
    return value


def choice(setting: Setting, value: Any) -> str:
    if value not in setting.choices:
        near = difflib.get_close_matches(str(value), setting.choices, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise setting.wrong(value, setting.range + hint)
    return str(value)


def order_choice(setting: Setting, value: Any) -> Order:
    return Order(choice(setting, value))


def texts(setting: Setting, value: Any, expected: str = "a list of strings") -> tuple[str, ...]:
    if isinstance(value, str):
        # `-s` of the command line gives a string: JSON of a list, or texts separated by commas.
        parts = value.split(",")
        if value.lstrip().startswith("["):  # an IPv6 address may, too
            with suppress(ValueError):
                parts = json.loads(value)
        stripped = (part.strip() if isinstance(part, str) else part for part in parts)
        value = [part for part in stripped if part != ""]
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(v, str) for v in value):
        raise setting.wrong(value, expected)
    return tuple(value)


def schemes(setting: Setting, value: Any) -> tuple[str, ...]:
    expected = "a list of URL schemes"
    found = texts(setting, value, expected)
    if not all(re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme) for scheme in found):
        raise setting.wrong(value, expected)
    return found


def statuses(setting: Setting, value: Any) -> tuple[int, ...]:
    # As in Scrapy's RETRY_HTTP_CODES, each may be a number or text.
    given = [str(each) for each in value] if isinstance(value, (list, tuple, set, frozenset)) else value
    expected = "a list of HTTP statuses, each from 100 to 999"
    found = texts(setting, given, expected)
    if not all(re.fullmatch("[1-9][0-9]{2}", status) for status in found):
        raise setting.wrong(value, expected)
    return tuple(map(int, found))


def serializer(setting: Setting, value: Any) -> Any:
    """Return the object with `dumps` and `loads` that *value* is or names; None: not set."""
    if value is None or value == "":
        return None
    found = value
    if isinstance(value, str):
        try:
            found = _imported(value)
        except Exception as error:  # a module may raise anything while it is imported
            reason = f"it cannot be imported: {type(error).__name__}: {error}"
            hint = ""
            if value.endswith(".picklecompat"):  # also if scrapy_redis was replaced by scrapy_dq
                hint = ". It is the default of scrapy-redis: remove the setting"
            raise setting.wrong(value, f"{_SERIALIZER} ({reason:.300}){hint}") from error
    for name in ("dumps", "loads"):
        if not callable(getattr(found, name, None)):
            raise setting.wrong(value, f"{_SERIALIZER} (it has no {name}())")
    return found


def _imported(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        module, _, name = path.rpartition(".")
        if error.name != path or not module:
            raise
        try:
            return getattr(importlib.import_module(module), name)
        except AttributeError:
            raise error from None


def mapping(setting: Setting, value: Any) -> dict[str, Any]:
    # `-s` of the command line gives a string.
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
        return value  # revisits.py checks what it says, or loads it
    raise setting.wrong(value, _POLICY)


def loadable(setting: Setting, value: Any) -> Any:
    if isinstance(value, str) or callable(value):
        return value
    raise setting.wrong(value, "a function, or its dotted path")


PartitionSettings = tuple[float | None, int | None, int | None]
"""Delay in seconds, concurrency and budget of a partition; None: not given."""


def limits(setting: Setting, value: Any) -> dict[str, PartitionSettings]:
    """Return, by partition, what DQ_DOMAIN_LIMITS says of it."""
    found = {}
    for partition, own in mapping(setting, value).items():
        if not isinstance(partition, str) or "://" in partition or not fits_a_partition(partition):
            host = _host(partition)
            hint = f" (did you mean {host!r}?)" if host else ""
            raise setting.wrong(
                partition[:200] if isinstance(partition, str) else partition,
                f"the name of a partition, usually a host{hint}",
            )
        highest: dict[str, float] = {"delay": 86_400, "concurrency": 1_000_000, "budget": 1_000_000_000}
        options = _options(setting, own, highest, f"of {partition!r}")
        for name in ("concurrency", "budget"):
            if options.get(name, 0) != int(options.get(name, 0)):
                raise setting.wrong(own, f"a whole number as the {name} of {partition!r}")
        concurrency, budget = (int(options[n]) if n in options else None for n in ("concurrency", "budget"))
        found[partition] = (options.get("delay"), concurrency, budget)
    return found


def backoff(setting: Setting, value: Any) -> tuple[float, float] | None:
    """Return base and cap in seconds; None: off."""
    given = mapping(setting, value)
    if not given:
        return None
    options = _options(setting, given, {"base": 86_400, "cap": 86_400}, "")
    if len(options) < 2 or not 0 < options["base"] <= options["cap"]:
        expected = 'both "base" and "cap", in seconds, the base above 0 and not above the cap'
        raise setting.wrong(value, expected)
    return options["base"], options["cap"]


def _host(text: object) -> str | None:
    try:
        return urlsplit(str(text)).hostname
    except ValueError:
        return None


def _options(setting: Setting, given: Any, highest: dict[str, float], of: str) -> dict[str, float]:
    *first, last = map(repr, highest)
    names = f"{', '.join(first)} and {last}"
    if not isinstance(given, Mapping):
        raise setting.wrong(given, f"a dict with {names} {of}".rstrip())
    found = {}
    for name, value in given.items():
        if name not in highest:
            near = difflib.get_close_matches(str(name), highest, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise setting.wrong(given, f"{f'{names} {of}'.rstrip()}, not {name!r}{hint}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= highest[name]:
            raise setting.wrong(given, f"a number from 0 to {highest[name]:g} as the {name} {of}".rstrip())
        found[name] = value
    return found


_KINDS: dict[Callable[[Setting, Any], Any], str] = {
    backoff: "a dict",
    boolean: "True or False",
    encoding: "the name of a text encoding",
    folder: "an existing folder that can be written to",
    host: "a string",
    limits: "a dict",
    loadable: "a function, or its dotted path",
    mapping: "a dict",
    path: "the path of a folder",
    program: _PROGRAM,
    revisit_policy: _POLICY,
    schemes: "a list of URL schemes",
    serializer: _SERIALIZER,
    statuses: "a list of HTTP statuses",
    text: "a string",
    texts: "a list of strings",
    url: "a string",
    web_address: "a URL of http or https in ASCII, without a login, or empty",
}
