"""Words of commands to run next: the options as given, without passwords and keys; the name of a crawl."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator

from scrapy_dq.settings import SETTINGS
from scrapy_dq.text import SECRET_WORD, has_login, without_login

_SECRET_NAME = re.compile(SECRET_WORD, re.IGNORECASE)
_NAMED_INSIDE = re.compile(rf"{SECRET_WORD}[\w-]*[\"']?\s*[=:]", re.IGNORECASE)
_HARMLESS = (
    "REDIS_START_URLS_KEY", "REDIS_ITEMS_KEY", "SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY",
)  # fmt: skip
# But for the login in it, the address of Redis is worth reading.
_SECRET_SETTINGS = {each.name for each in SETTINGS if each.secret} - {"REDIS_URL"}
# Settings with the address of a server: none is followed by an @, as that of a page may be.
_SERVER = re.compile(r"[A-Z0-9_]*(?:URL|URI|DSN)")


def named(crawl: str, options: argparse.Namespace) -> str:
    """Return the words that name a crawl, and its Redis, to other commands."""
    words = [shlex.quote(options.spider), *repeated("-a", options.spargs)]
    if options.spider != crawl:
        words = [f"--crawl {shlex.quote(crawl)}"]
    return " ".join([*words, *repeated("-s", getattr(options, "set", None))])


def repeated(flag: str, values: Iterable[str] | None) -> Iterator[str]:
    """Yield *flag* with each of *values*, quoted for a shell."""
    for given in values or ():
        if flag in ("-a", "-s"):
            name, equals, value = given.partition("=")
            shown = f"{name}{equals}{'...' if _is_secret(name, value) else value}"
        else:  # the URI of a feed, say
            shown = without_login(given)
        yield f"{flag} {shlex.quote(shown)}"


def _is_secret(name: str, value: str) -> bool:
    if name in _SECRET_SETTINGS:
        return True
    if has_login(value) or ("@" in value and _SERVER.fullmatch(name)):
        return True
    return name not in _HARMLESS and bool(_SECRET_NAME.search(name) or _NAMED_INSIDE.search(value))
