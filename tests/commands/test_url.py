"""`scrapy dq url`: all that is known of a URL, through the project's own fingerprinter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands.test_push import HOST, OWN, SPIDERS, Push
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.known import is_seen
from scrapy_dq.frontier.model import Ack, Admission, Seen
from scrapy_dq.frontier.worker.routing import shard_of
from support.live_frontier import HandWorker, LiveFrontier, put
from support.live_shards import HOSTS, SHARDS
from support.redis_server import RedisServer

PARTITION = HOST.partition("//")[2]


@pytest.fixture
def worker(live: LiveFrontier) -> HandWorker:
    return HandWorker(live, "worker", OWN)


def test_what_is_known_of_a_url_is_shown(
    dq: Any, tmp_path: Path, live: LiveFrontier, worker: HandWorker
) -> None:
    """However it is written; nothing is changed."""
    push = Push(dq, tmp_path)
    push(f"{HOST}/1?a=1&b=2", f"{HOST}/2")
    dq.text("limit", PARTITION, "--delay", "7", "--block", "1000")
    before = live.dump()
    found = dq.found("url", "pushed", f"{HOST}/1?b=2&a=1", **SPIDERS)
    assert live.dump() == before
    assert found["seen"]
    (entry,) = found["entries"]
    assert (entry["where"], entry["request"]["url"]) == ("waiting", f"{HOST}/1?a=1&b=2")
    assert (found["partition"]["name"], found["partition"]["delay_s"]) == (PARTITION, 7.0)
    text = dq.text("url", "pushed", f"{HOST}/1?b=2&a=1", **SPIDERS)
    for part in (
        "seen        yes",
        f"{PARTITION}: delay 7 s, blocked for 1",
        "waiting",
    ):
        assert part in text


def test_what_is_nowhere_was_done_or_never_found(dq: Any, tmp_path: Path, worker: HandWorker) -> None:
    Push(dq, tmp_path)(f"{HOST}/1")
    assert "it was not found, or only unfiltered" in dq.text("url", "pushed", f"{HOST}/3", **SPIDERS)
    assert "seen        no" in dq.text("url", "pushed", f"{HOST}/3", **SPIDERS)
    (lease,) = worker.exchange(want=9).leases
    worker.exchange(Ack(lease.entry_id))
    assert "it is done, or was dropped" in dq.text("url", "pushed", f"{HOST}/1", **SPIDERS)


@pytest.mark.parametrize("kind", Seen)
@pytest.mark.parametrize("count", [1, 3_000])
def test_each_kind_of_seen_tells(server: RedisServer, crawl_name: str, kind: Seen, count: int) -> None:
    """A compact one also after its buckets were split."""
    live = LiveFrontier(server.url, crawl_name, seen=kind)
    worker = HandWorker(live, "worker", OWN)
    tokens = [b"%020d" % n for n in range(2 * count)]
    for at in range(0, count, 500):
        new = [put(n, admission=Admission.SEEN, token=tokens[n]) for n in range(at, min(at + 500, count))]
        worker.exchange(*new)
    seen = [is_seen(live.redis, live.crawl, token, b"", b"") for token in tokens]
    assert seen == [True] * count + [False] * count
    live.close()


def test_an_expired_fingerprint_is_not_seen(live: LiveFrontier, worker: HandWorker) -> None:
    live.redis.hset(live.key("meta"), mapping={"seen_kind": "expiring", "seen_since": 1000})
    live.redis.zadd(live.key("seen"), {b"old": 999, b"new": 1000})
    assert [is_seen(live.redis, live.crawl, each, b"", b"") for each in (b"old", b"new")] == [False, True]


def test_it_is_looked_up_in_the_shard_of_its_partition(
    server: RedisServer, live: LiveFrontier, worker: HandWorker
) -> None:
    """Of its fingerprint, if it has none."""
    live.redis.hset(live.key("meta"), "shards", SHARDS)
    for host in (*HOSTS, b""):
        shard = keys.Shard(live.crawl, shard_of(host, b"token", SHARDS))
        live.redis.sadd(keys.prefix(shard) + "seen", b"token")
        assert is_seen(live.redis, live.crawl, b"token", host, b"")
        live.redis.delete(keys.prefix(shard) + "seen")
        assert not is_seen(live.redis, live.crawl, b"token", host, b"")


def test_what_was_adopted_counts_as_seen(live: LiveFrontier, worker: HandWorker) -> None:
    live.call("adopt", worker.epoch, 0, "", 1, [b"x" * 20])
    assert is_seen(live.redis, live.crawl, b"y", b"", b"x" * 20)


def test_what_is_no_url_is_refused(dq: Any, worker: HandWorker) -> None:
    with pytest.raises(WrongUsage, match="is not a URL"):
        dq.text("url", "pushed", "nonsense", **SPIDERS)


def test_fingerprints_of_another_kind_are_refused(dq: Any, live: LiveFrontier) -> None:
    HandWorker(live, "worker", replace(OWN, fingerprinter="another"))
    with pytest.raises(CommandError, match="REQUEST_FINGERPRINTER_CLASS 'another'"):
        dq.found("url", "pushed", f"{HOST}/1", **SPIDERS)
