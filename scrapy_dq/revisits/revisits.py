"""The pages in progress that will be visited again, and the results of their current visits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import index
from typing import Any, NamedTuple

from itemadapter import ItemAdapter
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from scrapy_dq.codec import CannotEncode, Codec, copied
from scrapy_dq.frontier.model import StartQueue
from scrapy_dq.frontier.moves import Put
from scrapy_dq.revisits.policy import BadRevisit, Never, RevisitPolicy, checked, policy_of_meta
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable, prose_without_logins

logger = logging.getLogger(__name__)
KEY = "dq_visit"
"""A key in the meta of a stored request; a spider never sees it."""
MAX_VALIDATOR_LENGTH = 1000
"""Maximum length, in characters, of an ETag or a date; a longer one is not kept."""
DIGEST_BYTES = 12
_CONDITIONS = (("ETag", "If-None-Match"), ("Last-Modified", "If-Modified-Since"))
META = "dq_revisit"
"""The meta key for a request's own policy; see `policy_of_meta`."""
GONE = (404, 410)
"""Statuses after which a page is not visited again."""
FALLBACK_S = 86_400.0
"""The interval of a page whose policy fails at its first visit."""
_NOT_MODIFIED = 304


class Visit(NamedTuple):
    """The last visit of a page."""

    interval_s: float | None = None
    """Seconds from this visit to the next one; None: the page was not visited yet."""
    digest: str = ""
    """The digest of its body, or of a field of its items; empty: unknown."""
    validators: tuple[str, str] = ("", "")
    """The ETag and Last-Modified of its response; empty: not in the response."""
    priority: int | None = None
    """The original priority of the request, if a retry has changed it; None: it is unchanged."""

    @classmethod
    def taken_from(cls, request: Request) -> Visit | None:
        """Remove the visit from the meta of a request that is served, and return it; None: no visit.

        A start payload may contain any value under this key. An invalid value gives an empty visit.
        """
        kept = request.meta.pop(KEY, None)
        if kept is None:
            return None
        try:
            interval_s, digest, validators, priority = kept
            etag, modified = validators
            if not all(map(_fits, (digest, etag, modified))) or not isinstance(priority, (int, type(None))):
                return cls()
            interval_s = None if interval_s is None else checked(interval_s)
        except (BadRevisit, TypeError, ValueError):
            return cls()
        return cls(interval_s, digest, (etag, modified), priority)

    def put_into(self, request: Request) -> None:
        """Write the visit into the meta of *request*."""
        request.meta[KEY] = [self.interval_s, self.digest, list(self.validators), self.priority]

    def add_conditions(self, request: Request) -> dict[str, bytes]:
        """Make *request* conditional, so that the site need not send an unchanged page.

        Returns:
            The added headers.
        """
        added = {}
        if request.method in ("GET", "HEAD"):
            for (_, header), value in zip(_CONDITIONS, self.validators, strict=True):
                if value and header not in request.headers:
                    request.headers[header] = added[header] = value.encode("latin-1", "replace")
        return added


class Next(NamedTuple):
    """The next visit of a page: the arguments of `Worker.again`."""

    payload: bytes
    priority: int
    start: StartQueue
    wait_s: float


@dataclass(slots=True)
class _Page:
    """A page in progress."""

    payload: bytes
    last: Visit
    conditions: dict[str, bytes]
    """The headers that make its request conditional."""
    response: Response | None = None
    fields: list[bytes] | None = field(default_factory=list)
    """The compared field of each item of the page; None: the field of an item cannot be compared."""
    retried: bool = False
    """There was a retry. If the retry cannot be stored, this worker serves it before the page ends."""
    retry: Next | None = None


class Revisits:
    """The pages of one crawler. No method blocks, and only `serve_again` raises."""

    def __init__(
        self,
        crawler: Crawler,
        policy: RevisitPolicy,
        codec: Codec,
        stored_form: Callable[[Request, Request | None, bool], Request],
    ) -> None:
        """*stored_form*: `StoredForm.of`."""
        assert crawler.stats is not None
        self._count: Callable[[str], None] = crawler.stats.inc_value
        self._policy = policy
        self._codec = codec
        self._stored_form = stored_form
        self._priority = policy.priority
        self.field = policy.field
        self._pages: dict[bytes, _Page] = {}
        """The pages in progress, by lease."""
        self._failure_logged = self._field_logged = False

    def begin(self, request: Request, entry_id: bytes, payload: bytes) -> None:
        """Record that *request* is served under a lease, and make it conditional if possible."""
        last = Visit.taken_from(request)
        if last is None and request.dont_filter:
            return  # a part of another page: see `add_first_visit`
        last = last or Visit()
        self._pages[entry_id] = _Page(payload, last, last.add_conditions(request))

    def answered(self, entry_id: bytes, response: Response) -> Response:
        """Record the response to a request, and return it.

        If the page is unchanged (304), the returned response has a callback that does nothing, so the spider
        does not get the response.
        """
        page = self._pages.get(entry_id)
        if page is None:
            return response
        page.response = response
        if response.status != _NOT_MODIFIED or not page.conditions or response.request is None:
            return response
        self._count(stats.NOT_MODIFIED)
        meta = {**response.request.meta, "handle_httpstatus_all": True}
        return response.replace(request=Request(response.request.url, callback=_unchanged, meta=meta))

    def leave_conditions(self, request: Request, entry_id: bytes | None) -> None:
        """Remove the conditions of a page from a request that it has led to, such as a redirect or a retry.

        Such a request may copy the conditions with the headers. Then the worker would send them for another
        page again and again, and a 304 for that page would be useless to the spider.
        """
        if (page := self._pages.get(entry_id or b"")) is not None:
            remove_conditions(request, page.conditions)

    def yielded(self, entry_id: bytes, item: Any) -> None:
        """Record an item that a page's callback has yielded."""
        page = self._pages.get(entry_id)
        if page is None or page.fields is None or not ItemAdapter.is_item(item):
            return
        try:
            # repr() would differ between processes for sets, and at each visit for some objects.
            page.fields.append(self._codec.packed(ItemAdapter(item).get(self.field)))
        except Exception as error:  # a class of the project may raise anything
            page.fields = None
            if not self._field_logged:
                self._field_logged = True
                logger.warning(
                    "The field %r of an item cannot be compared (%s): it is unknown whether its page has "
                    "changed. Logged once",
                    self.field,
                    printable(f"{type(error).__name__}: {error}"),
                )

    def add_first_visit(
        self, put: Put, request: Request, parent: Request | None, *, continues: bool, begins: bool
    ) -> bool:
        """Add a visit to *put* if its request is unfiltered, and starts a page that is visited again.

        Any other unfiltered request is a part of the page that yields it at each visit. If it were also
        visited separately, each visit of that page would add an entry. The identity of *put* does not include
        the visit, because DQ_REVISIT may be set or removed in the middle of a run.

        Args:
            parent: the parent of *request*; None: unknown, or there is no parent.
            continues: *request* is a redirect or a retry of its parent.
            begins: `start()` has yielded *request*, or it was made from a start payload.
        """
        never = isinstance(self._policy, Never) and META not in request.meta
        redirected = continues and put.parent in self._pages
        if not request.dont_filter or never or not (begins or redirected):
            return False
        try:
            put.payload = self._encode(request, parent, continues, Visit())
        except CannotEncode:  # too large with the visit: the page is visited once
            return False
        return True

    def serve_again(
        self, request: Request, parent: Request | None, entry_id: bytes | None, due_at: float
    ) -> bool:
        """Plan to serve the entry of a page again, as the retry *request*.

        Otherwise the retry would be a second entry. If a roll-back undid the ack of the first entry, both
        entries would remain.

        Args:
            entry_id: the lease of *parent*, which *request* follows; None: it has no lease.
            due_at: see `Put`.
        Returns:
            False: *request* is not a retry of a page, or is marked with `dq_local`.
        Raises:
            CannotEncode: *request* has to stay in this worker.
        """
        page = self._pages.get(entry_id or b"")
        if page is None or parent is None or (request.url, request.method) != (parent.url, parent.method):
            return False
        page.retried = True
        if request.meta.get("dq_local"):
            return False
        priority = parent.priority if page.last.priority is None else page.last.priority
        payload = self._encode(request, parent, True, page.last._replace(priority=priority))
        shift = 0 if page.last.interval_s is None else self._priority
        wait_s = max(0.0, due_at - time.monotonic()) if due_at else 0.0
        page.retry = Next(payload, int(index(request.priority)) + shift, StartQueue.SHARED, wait_s)
        return True

    def _encode(self, request: Request, parent: Request | None, continues: bool, visit: Visit) -> bytes:
        stored = self._stored_form(request, parent, continues)
        if stored is request:
            stored = copied(request)
        visit.put_into(stored)
        return self._codec.encode(stored)

    def ended(self, entry_id: bytes, *, failed: bool, released: bool = False) -> Next | None:
        """Forget a lease whose work is over; return the next visit of its page, if there will be one.

        Args:
            failed: the page was not downloaded, or its callback, errback or pipeline has raised. This does
                not end the visits of a page that was visited before.
            released: the lease is given back.
        """
        page = self._pages.pop(entry_id, None)
        if page is None or released or page.retry is not None:
            return page.retry if page and not released else None
        response, last = page.response, page.last
        if failed and last.interval_s is None:
            return None
        if response is None and not failed and not page.retried:
            return None  # a redirect, which is another page, or a middleware has dropped the request
        if failed:
            self._count(stats.REVISITS_FAILED)
        changed: bool | None = False
        kept = last
        if response is not None and 200 <= response.status < 300 and not failed:
            parts = page.fields if self.field else [response.body]
            digest = "" if parts is None else digest_of(*parts)
            changed = digest != last.digest if digest and last.digest else None
            kept = last._replace(digest=digest, validators=validators_of(response))
        request = self._codec.decode(page.payload)  # no error: this worker has decoded it before
        interval_s = self._interval(request, response, last.interval_s, changed)
        if interval_s is None:
            self._count(stats.REVISITS_ENDED)
            return None
        return self._next(request, page, kept._replace(interval_s=interval_s), interval_s)

    def _next(self, request: Request, page: _Page, visit: Visit, interval_s: float) -> Next:
        request.meta.pop("retry_times", None)  # each visit has its own retries
        if visit.priority is not None:
            request.priority = visit.priority
        visit._replace(priority=None).put_into(request)
        try:
            payload = self._codec.encode(request)
        except CannotEncode:  # too large with the data of the visit
            payload = page.payload
        return Next(payload, request.priority + self._priority, StartQueue.SHARED, interval_s)

    def _interval(
        self, request: Request, response: Response | None, last_s: float | None, changed: bool | None
    ) -> float | None:
        if response is not None and response.status in GONE:
            return None
        try:
            policy = policy_of_meta(request.meta[META]) if META in request.meta else self._policy
            interval_s = policy.interval(response, last_s, changed)
            return None if interval_s is None else checked(interval_s)
        except Exception as error:
            interval_s = FALLBACK_S if last_s is None else last_s
            if not self._failure_logged:
                self._failure_logged = True
                logger.error(
                    "The policy of DQ_REVISIT fails for %s: %s. The page is visited again after %g s (the "
                    "last interval, or a day after a first visit). Logged once; %s counts all",
                    prose_without_logins(request.url, request.url),
                    prose_without_logins(f"{type(error).__name__}: {error}", request.url),
                    interval_s,
                    stats.REVISIT_POLICY_FAILED,
                )
            self._count(stats.REVISIT_POLICY_FAILED)
            return interval_s


def check(request: Request) -> None:
    """Check the policy in the meta of a request.

    Raises:
        BadRevisit: the value is not a policy.
    """
    if META in request.meta:
        try:
            policy_of_meta(request.meta[META])
        except BadRevisit as error:
            raise BadRevisit(f"meta[{META!r}] = {error}") from None


def _unchanged(response: Response, **kwargs: Any) -> None:
    """Do nothing. This is the callback of a 304, for a page that the spider has already seen."""


def remove_conditions(request: Request, added: dict[str, bytes]) -> None:
    """Undo `Visit.add_conditions`, also in another request with a copy of the headers."""
    for header, value in added.items():
        if request.headers.get(header) == value:
            del request.headers[header]


def validators_of(response: Response) -> tuple[str, str]:
    """Return the ETag and Last-Modified of a response, for a conditional request."""
    found = [(response.headers.get(header) or b"").decode("latin-1") for header, _ in _CONDITIONS]
    etag, modified = (text if _fits(text) else "" for text in found)
    return etag, modified


def _fits(text: object) -> bool:
    """Tell whether *text* can be a header's value. A line break in it would begin another header."""
    return isinstance(text, str) and len(text) <= MAX_VALIDATOR_LENGTH and text.isprintable()


def digest_of(*parts: bytes) -> str:
    """Return a digest of the parts in their order."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
