"""The keys and fingerprints of scrapy-redis, for users who move to scrapy_dq."""

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
"""The settings of scrapy-redis that name its keys, and their defaults."""


def fingerprint(request: Request) -> bytes:
    """Return the fingerprint of *request* in scrapy-redis 0.9; its dupefilter stores it in hex."""
    identity = {
        "method": str(request.method),
        "url": canonicalize_url(request.url),
        "body": request.body.hex(),
    }
    text = json.dumps(identity, sort_keys=True)  # the hash depends on each byte, also on spaces
    return sha1(text.encode(), usedforsecurity=False).digest()
