"""Decides when Redis may forget the tokens of the unfiltered requests from a lease.

The id of such a request is made from the id of the lease. A worker that gets the lease again puts the same id
again, and the token makes this put a duplicate. So Redis forgets the token only when no worker can get the
lease any more. This is the case when the end of the lease was confirmed, and the shard of the lease has then
accepted an exchange that was sent at least DQ_ROLLBACK_HORIZON later.

If no page is visited again (`Again`), Redis keeps these tokens until the run ends. Exceptions are the tokens
of requests that were made from start payloads, because the number of start payloads has no limit. This module
handles them only if the request is in a shard other than home: at home, the exchange that stores the request
also ends the lease (`Put.once`).

If pages are visited again, the run may never end, and each visit would leave tokens. So Redis forgets all
tokens, except the tokens of the pages that are visited again.

A worker that was declared dead may put the same id after Redis has forgotten the token. This can happen only
if neither the lease's shard nor the request's shard has answered the worker in the meantime. Then the request
is crawled again. For a page that is visited again, the second entry would be permanent, so Redis keeps the
token of such a page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from scrapy_dq.frontier.worker.protocol import WorkerProtocol

_Tokens = list[tuple[int, bytes]]
"""Pairs: the index of a protocol, and an id."""


class ChildTokens:
    """The tokens of the children of one worker's leases in one frontier.

    Args:
        own: the protocol with that frontier.
        protocols: the protocols of this worker with all frontiers of the crawl.
    """

    def __init__(self, own: WorkerProtocol, protocols: Sequence[WorkerProtocol]) -> None:
        self._own = own
        self._protocols = protocols
        self._known_as = ""
        self._of: dict[bytes, _Tokens] = {}
        """Tokens by lease."""
        self._ending: deque[tuple[int, _Tokens]] = deque()
        """Tokens of leases whose ends wait in the outbox, with the value of `Outbox.appended` after each
        end."""
        self._ended: deque[tuple[float, _Tokens]] = deque()
        """Tokens of leases whose ends were confirmed, each with the time of the confirmation."""

    def put(self, lease: bytes, place: int, entry_id: bytes) -> None:
        """Record a put whose parent is *lease*; *place*: the index of the protocol that sends the put."""
        self._of.setdefault(lease, []).append((place, entry_id))

    def ends(self, lease: bytes) -> None:
        """Record that the end of a lease was appended to the outbox."""
        if (tokens := self._of.pop(lease, None)) is not None:
            self._ending.append((self._own.outbox.appended, tokens))

    def released(self, lease: bytes) -> None:
        """Record that a lease was released, so that another worker will make the same puts."""
        self._of.pop(lease, None)

    def exchanged(self, now: float) -> None:
        """Process an answer. The next exchanges tell Redis which tokens to forget."""
        if self._own.id != self._known_as:
            # After a rejoin, Redis may have lost the ends of these leases, and other workers may get the
            # leases. So the tokens of these leases stay until the run ends.
            self._known_as = self._own.id
            self._ending.clear()
            self._ended.clear()
            self._of = {lease: of for lease, of in self._of.items() if lease in self._own.leases.owned}
        while self._ending and self._ending[0][0] <= self._own.outbox.confirmed:
            self._ended.append((now, self._ending.popleft()[1]))
        while self._ended and self._ended[0][0] <= self._own.log.certain_until:
            for place, entry_id in self._ended.popleft()[1]:
                self._protocols[place].log.forgettable.append(entry_id)
