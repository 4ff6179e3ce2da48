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
"""Instead of a reference: an unknown put of this worker."""
LOCAL_SEEN = 100_000
"""Number of fingerprints that a worker remembers, in at most 16 MB: about 160 bytes each. More would save
little, because Redis also drops duplicates."""


class Admissions:
    """Gives each request of this worker its entry id and token, and remembers the fingerprints sent."""

    def __init__(
        self, fingerprint: Callable[[Request], bytes], own_filter: BaseDupeFilter | None = None
    ) -> None:
        """*own_filter*: the project's DUPEFILTER_CLASS, which filters; None: the frontier filters."""
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

        The reference is None if it was not sent; LATEST if only the filter of the project knows the request.
        """
        own = self._own_filter
        if own is not None:
            return None, LATEST if not request.dont_filter and own.request_seen(request) else None
        fingerprint = self.fingerprint(request)
        return fingerprint, self._sent.get(fingerprint)

    def sent_as(self, fingerprint: bytes | None) -> int | None:
        """Return the reference of the put by which this worker sent *fingerprint* recently; None: it has not.

        A fingerprint that this worker has sent counts as seen, without a question to Redis.
        """
        return self._sent.get(fingerprint)

    def remember(self, fingerprint: bytes | None, reference: int) -> None:
        """Record that *fingerprint*, if there is one, was sent; *reference*: its put's reference, or 0."""
        if fingerprint is not None:
            self._sent[fingerprint] = reference
            if len(self._sent) > LOCAL_SEEN:
                self._sent.popitem(last=False)

    def forget_sent(self) -> None:
        """Let the frontier filter the sent fingerprints again, because it may no longer store some."""
        self._sent.clear()

    def settled(self, entry_id: bytes) -> None:
        """Record that a lease has ended and has no more children."""
        self._children.pop(entry_id, None)

    def of(
        self, request: Request, fingerprint: bytes | None, parent_id: bytes | None, payload: bytes, *,
        seed: bool, continues: bool,
    ) -> tuple[bytes, Admission, bytes]:  # fmt: skip
        """Return the entry id of a request, and the kind and value of the token that decides if it is new.

        Args:
            fingerprint: the result of `fingerprint`.
            seed: the request is admitted once per run: it comes from start(), with DQ_SEED_ONCE.
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

        The token is made from the whole payload. An ordinal per URL would not be enough, because another
        worker's start() may yield requests in another order that differ only in their cb_kwargs.
        """
        token = blake2b(payload, digest_size=SEED_BYTES).digest()
        key = int.from_bytes(token[:8], "big")  # half the memory of the token; there may be millions
        self._seeds[key] += 1
        return token + self._seeds[key].to_bytes(4, "big")

    def _child_id(self, request: Request, parent_id: bytes, payload: bytes, continues: bool) -> bytes:
        """Return an id that this child gets again if its parent runs again; the second put is then dropped.

        The whole payload identifies a child, because a callback may yield its requests in another order. The
        payload does not contain the child's due time (due_times.py), because a page that polls itself
        computes a new one each time. A redirect or retry is its parent's only child. Its fingerprint
        identifies it, because its meta has the latency of one download.
        """
        child = self._fingerprint(request) if continues else payload
        name = blake2b(parent_id + child, digest_size=ENTRY_ID_BYTES).digest()
        siblings = self._children.setdefault(parent_id, Counter())
        siblings[name] += 1
        ordinal = siblings[name].to_bytes(4, "big")
        return blake2b(name + ordinal, digest_size=ENTRY_ID_BYTES).digest()


def entry_ids() -> Iterator[bytes]:
    """Yield ids that are unique among all workers: 8 random bytes of this process, 4 of a counter."""
    while True:
        prefix = os.urandom(8)
        for number in range(2**32):
            yield prefix + number.to_bytes(4, "big")
