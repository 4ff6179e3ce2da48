"""What a stored request keeps of the last visit of its page."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from scrapy import Request
from scrapy.http import Response

from scrapy_dq.revisits.policy import BadRevisit, checked

KEY = "dq_visit"
"""Of the meta of a stored request; a spider never sees it."""
MOST_VALIDATOR = 1000
"""Characters of an ETag or a date that are kept; a longer one is not."""
DIGEST_BYTES = 12
_CONDITIONS = (("ETag", "If-None-Match"), ("Last-Modified", "If-Modified-Since"))


class Visit(NamedTuple):
    """The last visit of a page."""

    interval_s: float | None = None
    """Until the next one; None: there was no visit yet."""
    digest: str = ""
    """Of its body, or of a field of its items; empty: unknown."""
    validators: tuple[str, str] = ("", "")
    """Its ETag and Last-Modified; empty: it had none."""
    priority: int | None = None
    """That of the request, if a retry has changed it; None: it has its own."""

    @classmethod
    def taken_from(cls, request: Request) -> Visit | None:
        """Remove what is kept from a request that is served, and return it; None: nothing is.

        A start payload may bring any value under this key: what cannot be a visit counts as none.
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
        """Have *request* keep it."""
        request.meta[KEY] = [self.interval_s, self.digest, list(self.validators), self.priority]

    def add_conditions(self, request: Request) -> dict[str, bytes]:
        """Make *request* conditional, so that the site need not send what has not changed; return how."""
        added = {}
        if request.method in ("GET", "HEAD"):
            for (_, header), value in zip(_CONDITIONS, self.validators, strict=True):
                if value and header not in request.headers:
                    request.headers[header] = added[header] = value.encode("latin-1", "replace")
        return added


def remove_conditions(request: Request, added: dict[str, bytes]) -> None:
    """Undo `Visit.add_conditions`, also in a request that has copied the headers of that one."""
    for header, value in added.items():
        if request.headers.get(header) == value:
            del request.headers[header]


def validators_of(response: Response) -> tuple[str, str]:
    """Return what a conditional request needs of a response."""
    found = [(response.headers.get(header) or b"").decode("latin-1") for header, _ in _CONDITIONS]
    etag, modified = (text if _fits(text) else "" for text in found)
    return etag, modified


def _fits(text: object) -> bool:
    """Tell whether it can be a header's value: a line break would begin another header."""
    return isinstance(text, str) and len(text) <= MOST_VALIDATOR and text.isprintable()


def digest_of(*parts: bytes) -> str:
    """Return a digest of the parts in their order."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
