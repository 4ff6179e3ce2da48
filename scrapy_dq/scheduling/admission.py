"""Makes the identity of a new request from its fingerprint, from its payload, or from its parent's lease."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b

from scrapy import Request
from scrapy.dupefilters import BaseDupeFilter

from scrapy_dq.frontier.model import ENTRY_ID_BYTES, Admission

SEED_BYTES = 16
LATEST = -1
"""Stands for a reference (the shard and the number of a put: `Put.reference`) if it is unknown which put sent
the request. Callers then wait for the worker's last put to each shard."""
LOCAL_SEEN = 100_000
"""Maximum number of fingerprints that a worker remembers. Each takes about 160 bytes, so all take at most 16
MB. A higher number would save little, because Redis also drops duplicates."""


class Admissions:
    """Gives each request of this worker its entry id and token, and remembers the sent fingerprints."""

    def __init__(
        self, fingerprint: Callable[[Request], bytes], own_filter: BaseDupeFilter | None = None
    ) -> None:
        """*own_filter*: the project's dupefilter, which filters requests; None: the frontier filters them."""
        self._fingerprint = fingerprint
        self._own_filter = own_filter
        self._sent: OrderedDict[bytes | None, int] = OrderedDict()
        """Sent fingerprints, each with the reference of its put (`Put.reference`)."""
        self._seeds: Counter[int] = Counter()
        self._children: dict[bytes, Counter[bytes]] = {}
        self._ids = entry_ids()

    def fingerprint(self, request: Request) -> bytes | None:
        """Return the fingerprint that `seen` stores; None for a request that the frontier does not filter."""
        if request.dont_filter or self._own_filter is not None:
            return None
        return self._fingerprint(request)

    def look_up(self, request: Request) -> tuple[bytes | None, int | None]:
        """Return the fingerprint of *request*, and the reference of the put by which this worker sent it.

        The reference is None if this worker has not sent the request, and LATEST if the project's own filter
        has seen it.
        """
        own = self._own_filter
        if own is not None:
            return None, LATEST if not request.dont_filter and own.request_seen(request) else None
        fingerprint = self.fingerprint(request)
        return fingerprint, self._sent.get(fingerprint)

    def sent_as(self, fingerprint: bytes | None) -> int | None:
        """Return the reference of the put by which this worker sent *fingerprint*; None: it remembers no put.

        A fingerprint that this worker has sent counts as seen, so the worker does not ask Redis.
        """
        return self._sent.get(fingerprint)

    def remember(self, fingerprint: bytes | None, reference: int) -> None:
        """Record that *fingerprint*, unless it is None, was sent.

        *reference*: the reference of its put; 0: the request stays in this worker.
        """
        if fingerprint is not None:
            self._sent[fingerprint] = reference
            if len(self._sent) > LOCAL_SEEN:
                self._sent.popitem(last=False)

    def forget_sent(self) -> None:
        """Let the frontier filter the sent fingerprints again, because it may have lost some of them."""
        self._sent.clear()

    def settled(self, entry_id: bytes) -> None:
        """Record that a lease has ended, so its request yields no more children."""
        self._children.pop(entry_id, None)

    def of(
        self, request: Request, fingerprint: bytes | None, parent_id: bytes | None, payload: bytes, *,
        seed: bool, continues: bool,
    ) -> tuple[bytes, Admission, bytes]:  # fmt: skip
        """Return the entry id of a request, and the kind and value of the token that decides if it is new.

        Args:
            fingerprint: the result of `fingerprint`.
            seed: the request is admitted once per run, because start() yielded it and DQ_SEED_ONCE is True.
            continues: the request is a redirect or a retry of its parent.
        """
        if fingerprint is not None:
            return next(self._ids), Admission.SEEN, fingerprint
        if seed:
            return next(self._ids), Admission.SEED, self._seed_token(payload)
        if parent_id is None:
            entry_id = next(self._ids)
        else:
            entry_id = self._child_id(request, parent_id, payload, continues)
        return entry_id, Admission.ID, entry_id

    def _seed_token(self, payload: bytes) -> bytes:
        """Return the token that identifies a start request on all workers.

        The token is made from the whole payload. An ordinal per URL would not be enough: requests with the
        same URL may differ in their cb_kwargs, and another worker's start() may yield them in another order.
        """
        token = blake2b(payload, digest_size=SEED_BYTES).digest()
        key = int.from_bytes(token[:8], "big")  # half of the token, to save memory for millions of them
        self._seeds[key] += 1
        return token + self._seeds[key].to_bytes(4, "big")

    def _child_id(self, request: Request, parent_id: bytes, payload: bytes, continues: bool) -> bytes:
        """Return an id that this child gets again if its parent runs again. Then Redis drops the second put.

        The whole payload identifies a child, because a callback may yield its requests in another order. The
        payload does not contain the child's due time (due_times.py), because a page that polls itself
        computes a new due time whenever it runs. A redirect or retry is its parent's only child. So its
        fingerprint identifies it, even if its meta differs after a second download.
        """
        child = self._fingerprint(request) if continues else payload
        name = blake2b(parent_id + child, digest_size=ENTRY_ID_BYTES).digest()
        siblings = self._children.setdefault(parent_id, Counter())
        siblings[name] += 1
        ordinal = siblings[name].to_bytes(4, "big")
        return blake2b(name + ordinal, digest_size=ENTRY_ID_BYTES).digest()


def entry_ids() -> Iterator[bytes]:
    """Yield ids that are unique among all workers: 8 random bytes, then a counter of 4 bytes."""
    while True:
        prefix = os.urandom(8)
        for number in range(2**32):
            yield prefix + number.to_bytes(4, "big")
