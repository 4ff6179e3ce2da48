"""What scrapy-redis stores, and under which names: for those who come from it."""

from __future__ import annotations

import json
from hashlib import sha1

from scrapy import Request
from w3lib.url import canonicalize_url

FINGERPRINT_BYTES = 20
DEFAULTS = {
    "SCHEDULER_QUEUE_KEY": "%(spider)s:requests",
    "SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter",
}
"""Settings that name its keys, with its defaults."""


def fingerprint(request: Request) -> bytes:
    """Return the bytes by which scrapy-redis 0.9 knows *request*; its dupefilter holds them in hex."""
    identity = {
        "method": str(request.method),
        "url": canonicalize_url(request.url),
        "body": request.body.hex(),
    }
    text = json.dumps(identity, sort_keys=True)  # its bytes count, down to the spaces
    return sha1(text.encode(), usedforsecurity=False).digest()
