"""Signatures of entries: payloads without a valid signature are not unpacked."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from scrapy_dq.frontier.model import ENTRY_ID_BYTES

MARK = b"\5"
"""The first byte of a signed payload; the signature and the original payload follow."""
MOVED = b"\6"
"""The first byte of a signed payload whose entry got another id (lua/lib/grants.lua). The id under which it
was signed follows, and what begins with MARK."""
FROM_STREAM = b"\x08"
"""Before the payload, signed or not, of an entry that was made from a message of a stream:
lua/lib/messages.lua."""
MAC_BYTES = 16
_MARKED = len(MARK) + MAC_BYTES
_MOVED = len(MOVED) + ENTRY_ID_BYTES
UNSIGNED = "no"
NOT_SIGNED = "its signature is missing, or matches no key of DQ_SIGNING_KEYS"


class Signer:
    """Signs puts and verifies leases: HMAC-SHA256 over crawl, entry id and payload."""

    def __init__(self, crawl: str, keys: Sequence[str] = (), unsigned: bytes = b"") -> None:
        """
        Args:
            keys: the first signs, all verify; none: nothing is signed, and every payload is accepted.
            unsigned: the first byte of payloads that are accepted unsigned, because a script has made their
                entries (start payloads); empty: none.
        """
        self._unsigned = unsigned
        roots = [key.encode() for key in keys]
        # Derived for each crawl: an entry of one crawl is not valid in another.
        name = crawl.encode("utf-8", "surrogateescape")
        self._keys = [hmac.digest(root, b"scrapy_dq entry\0" + name, "sha256") for root in roots]
        self.signs = bool(roots)
        ids = [hmac.digest(root, b"scrapy_dq key", "sha256")[:4].hex() for root in roots]
        self.ids = " ".join(ids) or UNSIGNED
        """Identifiers of the keys, in order, which do not reveal them; or UNSIGNED."""

    def signed(self, entry_id: bytes, payload: bytes) -> bytes:
        """Return the stored form of *payload*; only if this `signs`."""
        return MARK + hmac.digest(self._keys[0], entry_id + payload, "sha256")[:MAC_BYTES] + payload

    def moved_from(self, other: Signer, entry_id: bytes, stored: bytes) -> bytes:
        """Return the stored form of a payload of another crawl, signed there: here it is signed anew.

        What *other* does not verify stays as it is, and is valid here no more than there.
        """
        if not (self.signs and stored[:1] in (MARK, MOVED)):
            return stored
        payload = other.verified(entry_id, stored)
        return stored if payload is None else self.signed(entry_id, payload)

    def verified(self, entry_id: bytes, stored: bytes) -> bytes | None:
        """Return the payload of a *stored* one; None: no key has signed it."""
        if not self._keys:
            return without_signature(stored)
        if self._unsigned and stored.startswith(self._unsigned):
            return stored
        if stored.startswith(MOVED):
            entry_id, stored = stored[len(MOVED) : _MOVED], stored[_MOVED:]
        given, payload = stored[len(MARK) : _MARKED], without_signature(stored)
        for key in self._keys:
            mac = hmac.digest(key, entry_id + payload, "sha256")[:MAC_BYTES]
            if hmac.compare_digest(mac, given):
                return payload
        return None


def apart(stored: bytes) -> tuple[bytes, bytes]:
    """Return the message that a *stored* payload was made from, and the rest; see `Put.message`."""
    if not stored.startswith(FROM_STREAM):
        return b"", stored
    begin = len(FROM_STREAM) + 2 + int.from_bytes(stored[1:3], "big")
    return stored[3:begin], stored[begin:]


def joined(message: bytes, payload: bytes) -> bytes:
    """Return the stored form of what `apart` returns."""
    return FROM_STREAM + len(message).to_bytes(2, "big") + message + payload if message else payload


def without_signature(stored: bytes) -> bytes:
    """Return the payload of a *stored* one, whether or not it is signed; nothing is verified."""
    stored = apart(stored)[1]
    if stored.startswith(MOVED):
        stored = stored[_MOVED:]
    return stored[_MARKED:] if stored.startswith(MARK) else stored


TRUSTING = Signer("")
"""Signs nothing, and accepts every payload."""
