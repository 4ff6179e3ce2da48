"""Policies, from `DQ_REVISIT` or `meta["dq_revisit"]`, that set the time until a page's next visit."""

from __future__ import annotations

import re
from math import sqrt
from typing import Any

from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.misc import load_object

from scrapy_dq.settings import Config, ConfigError

SHORTEST_S, LONGEST_S = 1.0, 315_360_000.0
"""Bounds of an interval, in seconds. The longest, ten years, is also the longest delay (`dq_delay`)."""
EXPECTED = (
    '"fixed:1d", "adaptive:1h..30d" (units: s, m, h, d, w; from 1 s to ten years), "meta", or a subclass of '
    "scrapy_dq.RevisitPolicy"
)
_OPTIONS = '", field=NAME" (of the items, shows a change) and ", priority=-100" (a whole number)'
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhdw])")


class BadRevisit(ValueError):
    """A value does not define an interval."""


class RevisitPolicy:
    """Base class for your own revisit policies: set `DQ_REVISIT` to a subclass or its dotted path."""

    priority = -100
    """A number from -1,000,000 to 1,000,000 that is added to the priority of a page's later visits."""
    field = ""
    """The field of a page's items that shows whether the page has changed; empty: its body shows it."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RevisitPolicy:
        """Return the policy of a crawler."""
        return cls()

    def interval(self, response: Response | None, last_s: float | None, changed: bool | None) -> float | None:
        """Return the seconds until the next visit, 1 to 315,360,000; None: the page is not visited again.

        Args:
            response: None if the page could not be downloaded, after all retries.
            last_s: the interval before this visit; None: it was the first.
            changed: whether the page differs from the last visit; False also after a failed visit, and after
                any status except 2xx, such as 304; None: there is nothing to compare the page with.
        """
        raise NotImplementedError


class Fixed(RevisitPolicy):
    """Uses the same interval each time."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s

    def interval(self, response: Response | None, last_s: float | None, changed: bool | None) -> float:
        return self._every_s


class Adaptive(RevisitPolicy):
    """Halves the interval after a change, and doubles it without one.

    The first interval is the geometric mean of the shortest and the longest one.
    """

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s

    def interval(self, response: Response | None, last_s: float | None, changed: bool | None) -> float:
        if last_s is None:
            return sqrt(self._least_s * self._most_s)
        factor = {True: 0.5, False: 2.0, None: 1.0}[changed]
        return min(self._most_s, max(self._least_s, last_s * factor))


class Never(RevisitPolicy):
    """Visits each page once, unless its meta has another policy."""

    def interval(self, response: Response | None, last_s: float | None, changed: bool | None) -> None:
        return None


def checked(seconds: Any) -> float:
    """Return *seconds* as an interval.

    Raises:
        BadRevisit: *seconds* is not a number within the bounds.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not SHORTEST_S <= seconds <= LONGEST_S:
        raise BadRevisit(f"{seconds!a:.100}: expected seconds from {SHORTEST_S:g} to {LONGEST_S:,.0f}")
    return float(seconds)


def policy_in(words: str) -> RevisitPolicy:
    """Return the policy that *words* name, such as `fixed:1d`.

    Raises:
        BadRevisit: *words* name no policy.
    """
    kind, _, rest = words.partition(":")
    if kind == "fixed" and (every := _duration(rest)):
        return Fixed(every)
    least, dots, most = (_duration(rest.partition("..")[0]), ".." in rest, _duration(rest.partition("..")[2]))
    if kind == "adaptive" and dots and least and most and least <= most:
        return Adaptive(least, most)
    if words == "meta":
        return Never()
    raise BadRevisit(f"{words!a:.100}: expected {EXPECTED}")


def options_in(words: str) -> dict[str, Any]:
    """Return the attributes of a policy that *words* set, such as `field=price, priority=-10`.

    Raises:
        BadRevisit: an attribute is unknown or invalid.
    """
    found: dict[str, Any] = {}
    for word in words.split(","):
        name, _, value = map(str.strip, word.partition("="))
        if name == "field" and value:
            found[name] = value
        elif name == "priority" and re.fullmatch(r"-?[0-9]{1,7}", value) and abs(int(value)) <= 1_000_000:
            found[name] = int(value)
        else:
            raise BadRevisit(f"{word.strip()!a:.100}: expected {_OPTIONS} after the policy")
    return found


def policy_of_meta(value: Any) -> RevisitPolicy:
    """Return the policy that `meta["dq_revisit"]` asks for.

    Raises:
        BadRevisit: *value* is neither text, nor seconds, nor False or None (never).
    """
    if value is None or value is False:
        return Never()
    if isinstance(value, str) and value != "meta":
        return policy_in(value)
    try:
        return Fixed(checked(value))
    except BadRevisit as error:
        raise BadRevisit(f"{error}, False, or text such as 'fixed:1d'") from None


def policy_of(crawler: Crawler, config: Config) -> RevisitPolicy:
    """Return the policy that DQ_REVISIT names.

    Raises:
        ConfigError: the value is no policy, or the class cannot be instantiated.
    """
    value = config.revisit
    name, comma, words = value.partition(",") if isinstance(value, str) else (value, "", "")
    try:
        options = options_in(words) if comma else {}
        if isinstance(name, str) and (":" in name or "." not in name):
            policy = policy_in(name.strip())
        else:
            policy = _made(crawler, name)
    except BadRevisit as error:
        raise ConfigError(f"DQ_REVISIT = {error}") from None
    vars(policy).update(options)
    return policy


def _made(crawler: Crawler, named: Any) -> RevisitPolicy:
    try:
        made = load_object(named.strip() if isinstance(named, str) else named)
        if isinstance(made, type) and issubclass(made, RevisitPolicy):
            return made.from_crawler(crawler)
    except Exception as error:  # a module may raise anything while it is imported, and so may the class
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"DQ_REVISIT = {named!r}: expected {EXPECTED} ({reason:.300})") from error
    raise ConfigError(f"DQ_REVISIT = {named!r}: expected {EXPECTED}")


def _duration(text: str) -> float:
    """Return the seconds of a duration such as 90s or 1.5h; 0: invalid, or out of bounds."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    return seconds if SHORTEST_S <= seconds <= LONGEST_S else 0.0
