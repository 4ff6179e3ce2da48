"""Text for logs and reasons from URLs and web pages, and text without logins."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from scrapy import Request

CREW_SHOWS = "dq_crew_shows"
"""An attribute of log records. If it is true for a warning, `scrapy dq crawl` also shows the warning."""
CREW_NAME = "crew-"
"""The beginning of the run names that `scrapy dq crawl` makes."""
SECRET_WORD = (
    r"(?:PASS(?:W|PHRASE|CODE|(?![A-Z]))|PWD|SECRET|TOKEN|KEYS?(?![A-Z])|CREDENTIAL|AUTH(?!OR(?!I))"
    r"|COOKIE(?!S_)|SESSION|BEARER|JWT|PW(?![A-Z])|(?<![A-Z])PIN(?![A-Z]))"
)
"""A pattern for any case. If the name of a setting, header or query field matches, its value is a secret."""
# An unescaped / ? or # in a password ends the host too early. The host then has a colon without a port.
_LOGIN = re.compile(
    r"""(?: (?<=//) (?: [^/?#]*  |  (?: [^/?#]+:(?!\d*[/?#]) | : ) .* )  # user:password@ of a URL
          | ^[^/]*:(?!//) .* )@                                         # user:password@ without a scheme
    """,
    re.DOTALL | re.VERBOSE,
)
_USERINFO = re.compile(r"(?:(?<=[:/]/)|^)[^/?#\s]+(?=@)")
# The same pattern for prose, where a URL ends at the next space. It allows any number of slashes, because
# Scrapy turns http:/a into http:///a.
_LOGIN_IN_PROSE = re.compile(
    r"""(?: (:/+) (?: [^/?#\s]*  |  (?: [^/?#\s]+:(?!\d*(?:[/?#\s>)'",]|$)) | : ) \S* )
          | (?<![\w.%+~-]) (?: [\w.%+~-]+ | (?<!\S) ) :(?!//|:|\d*[/?#>)'",]) \S* )@
    """,
    re.VERBOSE,
)
# A query may also hold a password: redis-py takes one from the query of a socket's address.
_IN_QUERY = re.compile(
    r"""([?&;][\w.%-]{0,99} (?:passw|passphrase|pwd|secret) [\w.%-]{0,99}=) [^&\s]*""",
    re.IGNORECASE | re.VERBOSE,
)
_LONGEST_LOGIN = 1_000
_URL_PARSERS = ("urllib.parse", "w3lib.url", "w3lib._url", "ipaddress")
_QUOTES_NOTHING = ("Invalid IPv6 URL", "Port out of range 0-65535")


def printable(text: str, limit: int = 500) -> str:
    """Return *text* in one line of at most *limit* characters, with ? for unprintable ones."""
    return "".join(char if char.isprintable() else "?" for char in text.strip()[:limit])


def named_run(run: str, name: str) -> str:
    """Return *run*, followed by the run's name if the user has chosen one."""
    return run if not name or name.startswith(CREW_NAME) else f"{run} {printable(name, 100)!r}"


def run_not_started(number: int, name: str, wanted: str) -> str:
    """Return the last line of a command that has finished another run than the *wanted* one."""
    return f"Finished {named_run(f'run {number}', name)}; {wanted!r} has not begun: run the command again"


def without_login(uri: str) -> str:
    """Return *uri* with `...` for its user and password, also if they are not escaped."""
    return _IN_QUERY.sub(r"\1...", _LOGIN.sub("...@", uri))


def prose_without_logins(text: str, *urls: str, limit: int = 500) -> str:
    """Return at least the first *limit* characters of *text*, with `...` for each user and password in it.

    Args:
        urls: *text* may quote their users and passwords in another form, or without the rest of the URL.
    """
    # The text is cut, because the pattern's time grows with the square of a word's length. The extra
    # characters beyond the limit complete a login that begins within the limit.
    text = text[: limit + _LONGEST_LOGIN]
    for url in urls:
        for userinfo in _USERINFO.findall(url[:_LONGEST_LOGIN]):
            for form in {userinfo, unquote(userinfo)}:
                text = text.replace(f"{form}@", "...@")
                if ":" in form:
                    text = text.replace(form, "...")
    return _IN_QUERY.sub(r"\1...", _LOGIN_IN_PROSE.sub(r"\g<1>...@", text))


def shown(request: Request, limit: int = 500) -> str:
    """Return a request for a log line, without a login."""
    return printable(prose_without_logins(str(request), request.url, limit=limit), limit)


def url_error(error: BaseException) -> str:
    """Return why a URL cannot be parsed, if *error* is about that; else "".

    The text of *error* may quote a part of a password, because Python takes the text before an unescaped `/`
    for a port. So only two harmless texts are quoted.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_globals.get("__name__") not in _URL_PARSERS:
        return ""
    detail = f" ({error})" if str(error) in _QUOTES_NOTHING else ""
    return f"its URL cannot be parsed{detail}"


def reason_of(error: BaseException, *clear: type[BaseException]) -> str:
    """Return why something failed, for logs; *clear*: errors whose text needs no class name."""
    text = str(error) if isinstance(error, clear) else url_error(error) or f"{type(error).__name__}: {error}"
    return printable(prose_without_logins(text))


def has_login(text: str) -> bool:
    """Tell whether *text* is, or contains, a URL with a user or a password."""
    return bool(_LOGIN.search(text) or _IN_QUERY.search(unquote(text)))


def without_numbers(reason: str) -> str:
    """Return *reason* without numbers, because reasons that differ only in numbers have the same cause."""
    return re.sub(r"\d+", "", reason)


def count_of(count: int, of_one: str, of_many: str = "") -> str:
    """Return a count with its noun: `1 dead letter`."""
    return f"{count:,} {of_one if count == 1 else of_many or of_one + 's'}"


def suggestion(name: str, existing: Sequence[str], kind: str, option: str = "") -> str:
    """Return the existing name that *name* probably means, or else the first existing names.

    Args:
        kind: the kind of the names, in the plural.
        option: the option that precedes the name on a command line.
    """
    if near := difflib.get_close_matches(name, existing, 1):
        return f"did you mean {option}{near[0]!r}?"
    shown = ", ".join(each or repr(each) for each in existing[:5])
    return f"existing {kind}: {shown or 'none'}{', ...' if len(existing) > 5 else ''}"


def losses(failed: int, dead: int, crawl: str) -> str:
    """Return how many requests of a run failed for good or are dead letters, and what to do; "" without any.

    Args:
        crawl: the words of a command that name the crawl.
    """
    ends = [(failed, "failed for good", "failed")] if failed else []
    ends += [(dead, f"became {'a dead letter' if dead == 1 else 'dead letters'}", "dead")] if dead else []
    if not ends:
        return ""
    counts = " and ".join(f"{count:,} {noun}" for count, noun, _ in ends)
    commands = " and ".join(f"`scrapy dq {command} {crawl}`" for _, _, command in ends)
    show = f"{commands} show{'s' if len(ends) == 1 else ''} why"
    return f"Requests of this run: {counts}. {show}; `scrapy dq retry {crawl} --all` runs them again"
