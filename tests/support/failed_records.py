"""Failed requests with hostile URLs and reasons, such as pages and exceptions may cause."""

from __future__ import annotations

from typing import Any

import msgpack

from support.live_frontier import HandWorker, LiveFrontier, fail, put
from support.stored_requests import stored

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\x1b[31m\x00\x07", "\u202egnp.exe",
    "\u2066abc\u2069", "x" * 30_000, "\ud800", "]]>&amp;", "javascript:alert(1)", "שלום ‏123 <b>",
)  # fmt: skip


def add_hostile(live: LiveFrontier, worker: HandWorker, count: int = 1000) -> None:
    """Write *count* records of failed requests, one of them with a reason of 100 kB."""
    texts = [text.encode("utf-8", "surrogatepass") for text in HOSTILE]
    worker.exchange(put(1, payload=stored("http://x.example/1")), want=1)
    worker.exchange(fail(1))
    name = live.key("failed")
    record: list[Any] = msgpack.unpackb(live.redis.lpop(name), raw=True)
    pipe = live.redis.pipeline()
    for n in range(count):
        record[0] = b"%012d" % n
        record[1], record[2], record[4] = (texts[(n + k) % len(texts)] for k in (0, 1, 2))
        if n == count // 2:
            record[2] = b"y" * 100_000
        pipe.rpush(name, msgpack.packb(record))
    pipe.execute()
