"""`scrapy dq search`, `failed` and `dead`: list stored requests from three sources."""

from __future__ import annotations

import argparse
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from w3lib.url import canonicalize_url

from scrapy_dq import scrapy_redis
from scrapy_dq.commands import common
from scrapy_dq.commands.common import ENTRY_ID
from scrapy_dq.commands.input.confirm import named
from scrapy_dq.commands.output.display import ProgressBar, print_json, print_table
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.frontier.admin.backlog import MAX_UPCOMING, upcoming
from scrapy_dq.frontier.admin.control import limit
from scrapy_dq.frontier.admin.entries import ScanResult, kept, kept_one, scan_entries
from scrapy_dq.frontier.admin.seen import is_seen
from scrapy_dq.frontier.model import Census
from scrapy_dq.frontier.records import PLACES, Entry
from scrapy_dq.inspection import entries
from scrapy_dq.inspection.place import Place, opened
from scrapy_dq.inspection.words import unanswered
from scrapy_dq.scheduling.partitions import partition_without_downloader
from scrapy_dq.text import count_of, printable

_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^*]+", re.IGNORECASE)
MAX_SCANNED = 1_000_000
MAX_CAUSES = 20
"""Maximum number of rows in the table of causes."""


@dataclass
class Page:
    """The requests to show, and the text around them."""

    entries: Sequence[Entry]
    before: Sequence[str] = ()
    """Lines for people, above the requests."""
    groups: Sequence[dict[str, Any]] = ()
    """Causes of failures; see `entries.groups_of`."""
    after: Sequence[str] = ()
    """Lines for people, below the requests."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Other values that --json prints besides `entries`."""


class Lister(Subcommand):
    """Shows a page of requests, or one request in full."""

    of_one: str
    """The name for one request of the list."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        common.add_count(parser, 20)
        parser.add_argument(
            "--skip", type=common.whole(0, 10**11), default=0, metavar="N", help="leave out the first N"
        )
        parser.add_argument("--site", metavar="HOST", help="only requests of this site")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        word = "".join(common.words_after_spider(options, self.operands, self.is_second))
        config, crawler = common.crawler_named(settings, options)
        with opened(config) as place:
            census = place.overview().census
            if ENTRY_ID.fullmatch(word):
                one = self.find(place, bytes.fromhex(word), census)
                if one is None:
                    missed = "".join(f" ({line})" for line in unanswered(place.shards.unreachable))
                    raise CommandError(f"the crawl {place.crawl!r} has no {self.of_one} {word}{missed}")
                print_json(entries.record_of(one, place))
                common.warn_unanswered(place)
                return DONE
            page = self.read(place, crawler, options, word, census)
            records = [entries.record_of(each, place) for each in page.entries]
            common.warn_unanswered(place)
        if options.json:
            print_json(common.found_in(place, **page.facts, entries=records))
        else:
            _print(page, records)
        return DONE

    def is_second(self, word: str) -> bool:
        """Return whether a word is valid after the spider."""
        return ENTRY_ID.fullmatch(word) is not None

    @abstractmethod
    def read(
        self, place: Place, crawler: Crawler | None, options: argparse.Namespace, word: str, census: Census
    ) -> Page:
        """Return the requests that the options select."""

    @abstractmethod
    def find(self, place: Place, entry_id: bytes, census: Census) -> Entry | None:
        """Return the request with this id, or None."""


class Kept(Lister):
    """Lists requests that failed for good, or dead letters."""

    arguments = "[<spider>] [<id>]"
    operands = "an id of the list, to show that request in full, as JSON"

    def read(
        self, place: Place, crawler: Crawler | None, options: argparse.Namespace, word: str, census: Census
    ) -> Page:
        first, sites = options.skip, common.partitions_of_site(options.site)
        last = first + options.count
        most = max(common.MAX_COUNT, last)
        found = kept(
            place.shards, place.crawl, self.name, most, partitions=sites, most_bytes=entries.MAX_BYTES
        )
        total = getattr(census, self.name) if sites is None else len(found)
        groups = entries.groups_of([entries.summary_of(each, place) for each in found])
        listed = found[first:last]
        shown = "" if len(listed) == total else f"; {len(listed):,} shown"
        before = [f"{count_of(total, self.of_one)}{shown}."]
        before += ["", f"Causes of {len(found):,} of them:"] if 0 < len(found) < total else []
        after = [f"\nThere are more: --skip {last}"] if len(found) > last else []
        if listed:
            again = f"scrapy dq retry {named(place.crawl, options)} --{self.name} --all"
            after += ["\nTo run them again:", f"  {again}"]
        return Page(listed, before, groups, after, {"total": total, "groups": groups})

    def find(self, place: Place, entry_id: bytes, census: Census) -> Entry | None:
        return kept_one(place.shards, place.crawl, self.name, entry_id)


class FailedRequests(Kept):
    """Failed requests.

    Counts failed requests by cause, and lists the newest of the 10,000 that are kept. A request fails through
    an exception in its callback, a failed download, or a status such as HTTP 500.
    """

    name = "failed"
    of_one = "failed request"


class DeadLetters(Kept):
    """Dead letters.

    Counts dead letters by cause, and lists up to 1,000. These are requests whose workers died too often, and
    entries that no worker can decode or serve.
    """

    name = "dead"
    of_one = "dead letter"


class Search(Lister):
    """List and find requests.

    Without a pattern: lists the next requests, then requests that wait for their site's limits or are not due
    yet. With a pattern: lists requests whose URL contains it; * matches any text. With a whole URL: shows
    whether it was seen (as a GET without a body), where its requests are, and its site's limits. With an id:
    shows the whole request as JSON. URLs of finished requests are not kept.
    """

    name = "search"
    arguments = "[<spider>] [<pattern> | <URL> | <id>]"
    of_one = "request"
    operands = "a part of the URL (* is any text), a whole URL, or an id of the list"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--where", choices=[each.replace(" ", "-") for each in PLACES], action="append",
            help="only requests in this place (may be repeated)",
        )  # fmt: skip
        parser.add_argument(
            "--most", type=common.whole(0, 10**11), default=MAX_SCANNED, metavar="N",
            help=f"look at no more than N requests (default: {MAX_SCANNED:,})",
        )  # fmt: skip

    def is_second(self, word: str) -> bool:
        return True

    def read(
        self, place: Place, crawler: Crawler | None, options: argparse.Namespace, word: str, census: Census
    ) -> Page:
        if _URL.fullmatch(word):
            return _known(place, crawler, options, word, census)
        if not word and options.site is None and not options.where:
            return _next(place, options.skip, options.count)
        matching = entries.matches(word)
        sites = common.partitions_of_site(options.site)
        return _found(
            place, options, lambda entry: not word or matching(entries.title(entry, place)), sites, census
        )

    def find(self, place: Place, entry_id: bytes, census: Census) -> Entry | None:
        found, _ = _scan(place, lambda entry: entry.entry_id == entry_id, census, 1, most=MAX_SCANNED)
        return next(iter(found), None)


def _next(place: Place, skip: int, count: int) -> Page:
    """Return the requests that would be leased next."""
    last = min(skip + count, MAX_UPCOMING)
    found = upcoming(place.shards, place.crawl, last)
    more = len(found) == last < MAX_UPCOMING
    after = [f"There may be more: --skip {last}"] if more else [] if found else ["Nothing waits."]
    return Page(found[skip:], after=after)


def _scan(
    place: Place, wanted: Callable[[Entry], bool], census: Census, count: int, *, most: int, **limits: Any
) -> tuple[list[Entry], ScanResult]:
    """Search with a progress bar; return up to *count* wanted entries, and the extent of the search."""
    found: list[Entry] = []
    total = census.waiting + census.delayed + census.in_flight + census.failed + census.dead

    def visit(entry: Entry) -> bool:
        if wanted(entry):
            found.append(entry)
        return len(found) < count

    with ProgressBar() as bar:
        bar.begin("requests", min(total, most))
        scan = scan_entries(place.shards, place.crawl, visit, most=most, advance=bar.advance, **limits)
    return found, scan


def _found(
    place: Place, options: argparse.Namespace, wanted: Callable[[Entry], bool],
    partitions: Collection[bytes] | None, census: Census, before: Sequence[str] = (), none_found: str = "",
) -> Page:  # fmt: skip
    """Return a page of the *wanted* requests. If a complete search found none, it ends with *none_found*."""
    where = tuple(each.replace("-", " ") for each in options.where or PLACES)
    last = options.skip + options.count
    found, scan = _scan(place, wanted, census, last, most=options.most, where=where, partitions=partitions)
    after = []
    if len(found) == last:
        after.append(f"There may be more: --skip {last}")
    elif not scan.complete:
        after.append(f"Looked at {scan.entries:,} requests, and there are more: --most looks at more")
    elif not found:
        after.append(none_found or f"Nothing was found among {scan.entries:,} requests.")
    facts = {"looked_at": scan.entries, "complete": scan.complete}
    return Page(found[options.skip :], before, after=after, facts=facts)


def _known(
    place: Place, crawler: Crawler | None, options: argparse.Namespace, url: str, census: Census
) -> Page:
    """Return all known facts about a URL. The spider's own fingerprinter computes the fingerprint."""
    if crawler is None:
        raise WrongUsage(
            "only a spider knows the fingerprint of a URL: name it before the URL. With a * at its end, "
            "the URL is a pattern"
        )
    try:
        request = Request(url)
        fingerprint = common.fingerprinter_of(crawler).fingerprint(request)
        apart = place.config.partition_by == "slot"
        partition = partition_without_downloader(request) if apart else b""
    except ValueError as error:
        raise WrongUsage(f"{url!r} is not a URL: {error}") from error
    common.require_fingerprinter(crawler, place)
    known_as, wanted = scrapy_redis.fingerprint(request), _canonical(request.url)
    seen = is_seen(place.shards, place.crawl, fingerprint, partition, known_as)
    limits = limit(place.shards, place.crawl, partition.decode()) if apart else None
    before = [f"seen  {'yes' if seen else 'no'}"]
    if limits is not None:
        limit_texts = [f"{name} {value:g}" for name, value in asdict(limits).items() if value]
        before.append(f"site  {partition.decode()}: {', '.join(limit_texts) or 'no limits'}")

    def is_it(entry: Entry) -> bool:
        shown = entries.title(entry, place)
        return shown == request.url or _canonical(shown) == wanted

    known = "it is done, or was dropped" if seen else "no page has led to it, except perhaps with dont_filter"
    sites = {partition} if apart else None
    page = _found(place, options, is_it, sites, census, before, f"Not in the crawl: {known}.")
    site = None if limits is None else {"name": partition.decode(), **asdict(limits)}
    page.facts |= {"url": request.url, "fingerprint": fingerprint.hex(), "seen": seen, "partition": site}
    return page


def _canonical(url: str) -> str:
    try:
        return canonicalize_url(url)
    except ValueError:  # not a URL, or http://[
        return ""


def _print(page: Page, records: Sequence[dict[str, Any]]) -> None:
    for line in page.before:
        print(printable(line, 500))
    if page.groups:
        causes = [(each["count"], each["host"], each["cause"]) for each in page.groups]
        print_table(("count", "host", "cause"), causes, numbers=("count",), most=MAX_CAUSES)
        print()
    if records:
        rows = [
            [each["id"], tuple(filter(None, (each["url"], each["reason"], entries.details_of(each))))]
            for each in records
        ]
        print_table(("id", "URL, reason, where" if page.groups else "URL, where"), rows)
    for line in page.after:
        print(line)
