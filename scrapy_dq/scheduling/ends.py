"""Passes the engine's reports about each request to the worker: sent, downloaded, done."""

from __future__ import annotations

from scrapy import Request

from scrapy_dq.scheduling.download_hooks import DownloadHooks
from scrapy_dq.scheduling.handed_out import HandedOut
from scrapy_dq.scheduling.in_progress import DONE, Ending, Outcome
from scrapy_dq.scheduling.session import Session
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable, shown


class Ends:
    """Ends the leases of the requests that the engine has finished."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._in_progress = session.in_progress
        self.outgoing = DownloadHooks(session.crawler, self._sent)
        self.handed_out = HandedOut(self._moved, self._skipped)

    def begin(self, own_next_request: object) -> None:
        """Watch the engine of an open session; *own_next_request*: our `Scheduler.next_request`."""
        self.outgoing.install()
        watched = self.handed_out.watched
        self._engines = self._session.hooks.watch_next_request(own_next_request, watched)

    # On the way to a site.

    def _moved(self, request: Request, to: Request) -> None:
        """Called by HandedOut: a class of the project gives the engine a copy of *request*."""
        self._in_progress.move(request, to)
        self._session.downloads.move(request, to)
        self.outgoing.move(request, to)

    def _skipped(self, request: Request) -> None:
        """Called by HandedOut: a class of the project has dropped *request*."""
        reason = f"{self._engines}.next_request() took it and did not return it"
        self._session.warnings.warn(
            "", "%s fails: %s. To drop requests, override enqueue_request()", shown(request), reason
        )
        self._session.downloads.ended(request, sent=False)
        self._session.worker.never_sent(self._in_progress.lease_of(request))
        self.settled(request, Outcome.FAILED, reason)

    def _sent(self, request: Request) -> None:
        self._session.downloads.sent(request)
        self._session.worker.sent(self._in_progress.lease_of(request))

    def held_up(self, request: Request) -> bool:
        """Called by HeldDownloads: the download of *request* waits; see `Downloads.held_up`."""
        waits = self._session.downloads.held_up(request)
        if waits:
            self._session.worker.held_up(self._in_progress.lease_of(request))
        return waits

    def downloaded(self, request: Request) -> None:
        """Called by EngineHooks: *request* has left the downloader."""
        worker, lease = self._session.worker, self._in_progress.lease_of(request)
        sent = self.outgoing.reached(request)
        self._session.downloads.ended(request, sent=sent)
        if not sent:
            worker.never_sent(lease)
        elif self.outgoing.watches and self.outgoing.is_watched(request):
            worker.sent(lease)  # the request's download handler may not have reported the sending
        worker.downloaded(lease)

    # The end of a request.

    def settled(self, request: Request, outcome: Outcome, reason: str) -> None:
        """Called by EngineHooks: *request* has left the engine."""
        self._session.downloads.ended(request)
        ending = DONE
        if outcome is not Outcome.DONE:
            ending = Ending(outcome, reason, request.url)
            if outcome is Outcome.FAILED and request in self._in_progress.local:
                self._session.count(stats.FAILED)
        for lease, its_ending in self._in_progress.left(request, ending):
            self._end(lease, its_ending)

    def fed(self, lease: bytes) -> None:
        """End the lease of a start payload: all requests made from it were stored, or kept in this worker."""
        for each, ending in self._in_progress.end(lease, DONE):
            self._end(each, ending)

    def _end(self, lease: bytes, ending: Ending) -> None:
        outcome, reason, url = ending
        worker, revisits = self._session.worker, self._session.revisits
        self.forget(lease)
        again = None
        if revisits is not None:
            released = outcome is Outcome.INTERRUPTED
            again = revisits.ended(lease, failed=outcome is Outcome.FAILED, released=released)
        if again is not None:
            worker.again(lease, *again)
        elif outcome is Outcome.DONE:
            worker.ack(lease)
        elif outcome is Outcome.FAILED:
            worker.fail(lease, reason, printable(url, 2000))
        else:
            worker.release(lease)

    def forget(self, lease: bytes) -> None:
        """Record that a lease leads to no more requests."""
        self._session.admissions.settled(lease)
        self._in_progress.messages.pop(lease, None)

    def release_unfinished(self) -> None:
        """Release all unsettled leases, because the grace period is over, or the worker leaves."""
        for lease in self._in_progress.take_unfinished():
            self._session.worker.release(lease)
