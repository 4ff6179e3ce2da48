"""Turn members of another scheduler's queue into puts, checked and encoded as ours, without running code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from scrapy import Request

from scrapy_dq.adoption.plain_pickle import NotPlain
from scrapy_dq.codec import CannotDecode, CannotEncode, Codec
from scrapy_dq.frontier.model import ENTRY_ID_BYTES, Admission
from scrapy_dq.frontier.moves import Put
from scrapy_dq.scheduling.partitions import BadPartition
from scrapy_dq.text import reason_of

CLEAR = (CannotDecode, CannotEncode, NotPlain, BadPartition)
"""Errors whose text alone explains why a member cannot be adopted."""


@dataclass
class Reader:
    """Makes a put from each member of one queue; the same member always gives the same put."""

    key: str
    """The queue's key."""
    loads: Callable[[bytes], Any]
    """Turns a member's bytes into a request's dict."""
    codec: Codec
    fingerprint: Callable[[Request], bytes]
    partition_of: Callable[[Request], bytes]
    max_bytes: int
    """How many bytes of an unreadable member are kept at most (DQ_MAX_ENTRY_BYTES)."""
    filters: bool
    """Whether requests are admitted by their fingerprints. False if the fingerprints were adopted as seen."""
    _equal: Counter[bytes] = field(default_factory=Counter)

    def put_of(self, member: bytes) -> Put:
        """Return the put of *member*, or the put of a dead letter if it cannot be crawled.

        A filtered request is admitted by its fingerprint, so a page that our own crawl has seen is not
        crawled again. Any other request is admitted by an id derived from its bytes, so two adoptions store
        it once.
        """
        try:
            request = self.request_of(member)
            payload = self.codec.encode(request)
            partition = self.partition_of(request)
            filtered = self.filters and not request.dont_filter
            fingerprint = self.fingerprint(request) if filtered else b""
        except Exception as error:  # a serializer or a fingerprinter may raise anything
            return self._dead(member, reason_of(error, *CLEAR))
        # No put is marked as a start request. Start requests are served after others, so the mark would
        # change the order.
        entry_id = self._id(member, 0 if filtered else self._ordinal(member))
        admission, token = (Admission.SEEN, fingerprint) if filtered else (Admission.ID, entry_id)
        return Put(entry_id, admission, token, request.priority, False, payload, partition=partition)

    def request_of(self, member: bytes) -> Request:
        """Return the request of *member*.

        Raises:
            Exception: the member cannot be adopted. The exception may be of any class.
        """
        return self.codec.from_dict(self.loads(member))

    def _dead(self, member: bytes, reason: str) -> Put:
        entry_id = self._id(member, self._ordinal(member))
        kept = member[: self.max_bytes]
        if len(kept) < len(member):
            reason += f" (the first {len(kept):,} of {len(member):,} bytes are kept)"
        return Put(entry_id, Admission.ID, entry_id, 0, False, kept, reason=reason)

    def _ordinal(self, member: bytes) -> int:
        # Digests instead of members save memory: each takes about 100 bytes, and there may be a million.
        name = blake2b(member, digest_size=8).digest()
        self._equal[name] += 1
        return self._equal[name] - 1

    def _id(self, member: bytes, ordinal: int) -> bytes:
        name = blake2b(member, digest_size=16, key=blake2b(self.key.encode()).digest())
        name.update(ordinal.to_bytes(4, "big"))
        return blake2b(name.digest(), digest_size=ENTRY_ID_BYTES).digest()
