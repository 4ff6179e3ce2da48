"""Words of commands to run next: the options as given, without passwords and keys; the name of a crawl."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator

# Names of settings and spider arguments with secrets; and values with a password, or with a user in a URL.
_NAMED = (
    r"(?:PASS(?:W|PHRASE|(?![A-Z]))|PWD|SECRET|TOKEN|KEYS?(?![A-Z])|CREDENTIAL|AUTH(?!OR(?!I))|COOKIE(?!S_))"
)
_SECRET = re.compile(
    rf"([^=]*{_NAMED}[^=]*|[^=]*(?==.*(?://[^/\s]*@|password)))=.*", re.DOTALL | re.IGNORECASE
)
_HARMLESS = (
    "REDIS_START_URLS_KEY", "REDIS_ITEMS_KEY", "SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY",
)  # fmt: skip
_LOGIN = re.compile(r"//[^/\s]*@")


def named(crawl: str, options: argparse.Namespace) -> str:
    """Return the words that name a crawl, and its Redis, to other commands."""
    words = [shlex.quote(options.spider), *repeated("-a", options.spargs)]
    if options.spider != crawl:
        words = [f"--crawl {shlex.quote(crawl)}"]
    return " ".join([*words, *repeated("-s", options.set)])


def repeated(flag: str, values: Iterable[str] | None) -> Iterator[str]:
    """Yield *flag* with each of *values*, quoted for a shell."""
    for value in values or ():
        if flag in ("-a", "-s") and not value.startswith(_HARMLESS):
            shown = _SECRET.sub(r"\1=...", value)
        else:  # the URI of a feed, say
            shown = _LOGIN.sub("//...@", value)
        yield f"{flag} {shlex.quote(shown)}"
