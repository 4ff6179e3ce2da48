"""Shared by commands that change something: ask the user first, and print the command to run next."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Iterator

from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.settings import SETTINGS
from scrapy_dq.text import SECRET_WORD, has_login, without_login

_SECRET_NAME = re.compile(SECRET_WORD, re.IGNORECASE)
_NAMED_INSIDE = re.compile(rf"{SECRET_WORD}[\w-]*[\"']?\s*[=:]", re.IGNORECASE)
_HARMLESS = (
    "REDIS_START_URLS_KEY", "REDIS_ITEMS_KEY", "SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY",
)  # fmt: skip
# Only the login in REDIS_URL is secret. So REDIS_URL as a whole does not count as secret.
_SECRET_SETTINGS = {each.name for each in SETTINGS if each.secret} - {"REDIS_URL"}
# Settings whose value is the address of a server. Unlike the URL of a page, such an address has an @ only
# after a login.
_SERVER = re.compile(r"[A-Z0-9_]*(?:URL|URI|DSN)")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add `--yes`, for programs."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def say(line: str, options: argparse.Namespace) -> None:
    """Print a line; with `--json`, to standard error."""
    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)


def require_consent(question: str, options: argparse.Namespace) -> None:
    """Ask in a terminal, unless the user has given `--yes`.

    Raises:
        CommandError: the answer is no, or standard input is not a terminal.
    """
    if options.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():  # None if it was closed before the program started
        raise CommandError("standard input is not a terminal to ask in: nothing was changed. Use --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


def continue_hint(options: argparse.Namespace) -> str:
    """Return advice with the `scrapy crawl` command that continues the crawl of this command line."""
    given = [*(getattr(options, "set", None) or ())]
    if options.crawl:
        given.append(f"DQ_CRAWL={options.crawl.replace('%', '%%')}")
    words = [*repeated("-a", options.spargs), *repeated("-s", given)]
    return " ".join(["Continue with: scrapy crawl", options.spider or "<spider>", *words])


def named(crawl: str, options: argparse.Namespace) -> str:
    """Return the words with which another command can name this crawl and its Redis."""
    words = [shlex.quote(options.spider), *repeated("-a", options.spargs)]
    if options.spider != crawl:
        words = [f"--crawl {shlex.quote(crawl)}"]
    return " ".join([*words, *repeated("-s", getattr(options, "set", None))])


def repeated(flag: str, values: Iterable[str] | None) -> Iterator[str]:
    """Yield *flag* with each of *values*, quoted for a shell, and without secrets."""
    for given in values or ():
        if flag in ("-a", "-s"):
            name, equals, value = given.partition("=")
            shown = f"{name}{equals}{'...' if _is_secret(name, value) else value}"
        else:  # for example the URI of a feed
            shown = without_login(given)
        yield f"{flag} {shlex.quote(shown)}"


def _is_secret(name: str, value: str) -> bool:
    if name in _SECRET_SETTINGS:
        return True
    if has_login(value) or ("@" in value and _SERVER.fullmatch(name)):
        return True
    return name not in _HARMLESS and bool(_SECRET_NAME.search(name) or _NAMED_INSIDE.search(value))
