"""Change a crawl from the page, as `scrapy dq` does: pause, drain, resume, stop, limit, retry, forget."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from scrapy.settings import Settings

from scrapy_dq.frontier.admin import control
from scrapy_dq.frontier.admin.control import Command
from scrapy_dq.frontier.admin.overview import described
from scrapy_dq.frontier.admin.retry import retry
from scrapy_dq.frontier.admin.seen import MAX_FINGERPRINTS, forget
from scrapy_dq.frontier.records import Entry
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.entries import group_of, summary_of
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.words import named, span
from scrapy_dq.text import count_of, printable

ENTRY_ID = re.compile(r"[0-9a-f]{24}")
_LONGEST = 4_096


class BadOrder(ValueError):
    """The order cannot be executed, or not at this time; the message has the reason."""


def execute(place: Place, settings: Settings, order: Mapping[str, Any]) -> str:
    """Change a crawl as *order* says, and return the result as text; blocking.

    Raises:
        BadOrder: the order cannot be executed; nothing was changed.
        NoSuchCrawl, FrontierError, redis.exceptions.RedisError: the change failed.
    """
    action = order.get("action")
    if action in (Command.PAUSE.value, Command.DRAIN.value, Command.RESUME.value, Command.STOP.value):
        return _steer(place, Command(action))
    if action == "limit":
        return _limit(place, order)
    if action == "retry":
        return _retry(place, order)
    if action == "forget":
        return _forget(place, settings, order)
    raise BadOrder("there is no such action")


_DONE = {
    Command.PAUSE: "Paused: workers finish the requests in progress, and wait.",
    Command.DRAIN: "Draining: workers finish what they hold, lease nothing more, and wait.",
    Command.RESUME: "Resumed.",
    Command.STOP: "Stopping: all workers close; the crawl stays.",
}


def _steer(place: Place, action: Command) -> str:
    found = place.overview(hint=False, most_members=0)
    workers = found.census.workers
    if found.phase == "finished" and not (action is Command.STOP and workers):
        raise BadOrder(f"the run is finished: there is nothing to {action.value}")
    control.steer(place.client, place.crawl, action, _user_name())
    return f"{_DONE[action]} {count_of(workers, 'worker') if workers else 'No worker'} registered."


def _limit(place: Place, order: Mapping[str, Any]) -> str:
    partition = _text(order, "partition")
    delay_s = _number(order, "delay_s", control.MAX_DELAY_S)
    block_s = _number(order, "block_s", control.MAX_BLOCK_S)
    concurrency = _number(order, "concurrency", control.MAX_CONCURRENCY)
    if concurrency is not None and concurrency != int(concurrency):
        raise BadOrder("the concurrency has to be a whole number")
    if (delay_s, concurrency, block_s) == (None, None, None):
        raise BadOrder("name a delay, a concurrency or a block")
    if place.overview(hint=False, most_members=0).phase == "finished":
        raise BadOrder("the run is finished: the next run uses the limits of the settings")
    try:
        now = control.limit(
            place.shards, place.crawl, partition, delay_s=delay_s, block_s=block_s,
            concurrency=None if concurrency is None else int(concurrency), by=_user_name(),
        )  # fmt: skip
    except ValueError as error:
        raise BadOrder(str(error)) from error
    if now is None:
        raise BadOrder("the crawl was deleted just now")
    delay = f"{now.delay_s:g} s between requests" if now.delay_s else "no delay"
    at_once = f"{now.concurrency:,} at once" if now.concurrency else "no limit at once"
    blocked = f", blocked for {span(math.ceil(now.blocked_s))}" if now.blocked_s else ""
    return f"{printable(partition, 200) or '(no name)'}: {delay}, {at_once}{blocked}."


def _retry(place: Place, order: Mapping[str, Any]) -> str:
    kind = order.get("kind")
    if kind not in ("failed", "dead"):
        raise BadOrder("the kind has to be failed or dead")
    wants = _choice(place, order)
    found = retry(
        place.shards, place.crawl, place.overview(hint=False, most_members=0),
        failed=wants if kind == "failed" else None, dead=wants if kind == "dead" else None, by=_user_name(),
    )  # fmt: skip
    missed = f" No answer from {named(found.unreachable)}: retry again later." if found.unreachable else ""
    if not (found.failed or found.dead or found.left):
        return f"Nothing to retry: it is not kept any more.{missed}"
    moved = count_of(found.failed + found.dead, "request")
    left = f" {found.left:,} were not moved: already removed, or not movable." if found.left else ""
    return f"Back in the backlog: {moved}.{left}{missed}"


def _choice(place: Place, order: Mapping[str, Any]) -> Callable[[Entry], bool]:
    """Return a filter for the records to retry: one, a group, or all. Refuse an order that names none."""
    if order.get("all") is True:
        return lambda record: True
    if "id" in order:
        entry_id = _text(order, "id")
        if not ENTRY_ID.fullmatch(entry_id):
            raise BadOrder("an id has 24 hexadecimal digits")
        return lambda record: record.entry_id.hex() == entry_id
    group = _text(order, "cause"), _text(order, "host")
    return lambda record: group_of(summary_of(record, place)) == group


def _forget(place: Place, settings: Settings, order: Mapping[str, Any]) -> str:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.utils.misc import build_from_crawler, load_object
    from scrapy.utils.python import global_object_name

    from scrapy_dq import scrapy_redis

    urls = order.get("urls")
    if not isinstance(urls, list) or not 0 < len(urls) <= MAX_FINGERPRINTS:
        raise BadOrder(f"name 1 to {MAX_FINGERPRINTS:,} URLs")
    place.overview(hint=False, most_members=0)
    fingerprinter = load_object(settings["REQUEST_FINGERPRINTER_CLASS"])
    ours, stored = (
        global_object_name(fingerprinter), described(place.client, place.crawl)["fingerprinter"]
    )  # fmt: skip
    if stored not in ("", ours):
        raise BadOrder(
            f"the crawl has REQUEST_FINGERPRINTER_CLASS {printable(stored)!r}, and this page {ours!r}: use "
            f"`scrapy dq clear --seen` in its project"
        )
    # A crawler has no fingerprinter before it runs, so this line builds one.
    fingerprint = build_from_crawler(fingerprinter, Crawler(Spider, settings)).fingerprint
    pairs = []
    for url in urls:
        if not (isinstance(url, str) and url.isprintable() and len(url) <= _LONGEST):
            raise BadOrder("a URL is text, without control characters, and not longer than 4,096")
        try:
            request = Request(url)
        except ValueError as error:
            raise BadOrder(printable(str(error))) from error
        pairs.append((fingerprint(request), scrapy_redis.fingerprint(request)))
    known = forget(place.shards, place.crawl, pairs, _user_name()) or 0
    return f"Forgotten: {known:,}; not seen before: {len(pairs) - known:,}."


def _user_name() -> str:
    """Return the user who runs this server, whom events name as the author, because a token has no name."""
    return f"{own_name()} (page)"


def _text(order: Mapping[str, Any], name: str) -> str:
    value = order.get(name)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise BadOrder(f"{name} has to be text")
    return value


def _number(order: Mapping[str, Any], name: str, most: float) -> float | None:
    value = order.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise BadOrder(f"{name} has to be a number from 0 to {most:,}")
    return float(value)
