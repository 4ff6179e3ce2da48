"""`scrapy dq search`, `failed` and `dead`: lists, single requests, and all that is known about a URL."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from commands.test_push import HOST as PUSHED
from commands.test_push import OWN, SPIDERS, Push
from scrapy_dq.codec.formats import ITEM, PAYLOAD, REQUEST, SERIALIZED
from scrapy_dq.commands import listing
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.entries import scan_entries
from scrapy_dq.frontier.admin.seen import is_seen
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import Admission, Order, Seen
from scrapy_dq.frontier.moves import Ack, Bury, Fail
from scrapy_dq.frontier.records import PLACES, Entry
from scrapy_dq.inspection.entries import matches
from support.live_frontier import HandWorker, LiveFrontier, bury, decline, fail, limited, put, release
from support.live_shards import HOSTS, SHARDS
from support.redis_server import RedisServer
from support.stored_requests import stored

KEPT = ("failed", "dead")
LISTERS = ("search", *KEPT)
HOST = b"shop.example"
WHERE = {
    "in flight": "1", "returned": "2", "quarantine": "3", "waiting": "4", "delayed": "5", "failed": "6",
    "dead": "7", "declined": "9",
}  # fmt: skip
"""For each place: the number of the page of `everywhere` that is there."""


def end_badly(worker: HandWorker, count: int, begin: int = 0) -> None:
    """Let *count* requests fail, and bury *count* others."""
    urls = {n: f"http://x.example/{n}" for n in range(begin, begin + 2 * count)}
    worker.exchange(
        *[put(n, payload=stored(url, cb_kwargs={"n": n})) for n, url in urls.items()], want=2 * count
    )
    held = sorted(worker.held)[: 2 * count]
    worker.exchange(
        *[Fail(entry, f"ValueError: {int(entry)}", urls[int(entry)]) for entry in held[:count]],
        *[Bury(entry, f"died 3 times: {int(entry)}") for entry in held[count:]],
    )


@pytest.mark.parametrize("name", LISTERS)
def test_a_list_comes_in_pages(dq: Any, worker: HandWorker, name: str) -> None:
    """Each request is on exactly one page, and a line names the option for the next page."""
    end_badly(worker, 5)
    worker.exchange(*[put(n, payload=stored(f"http://x.example/{n}")) for n in range(100, 105)])
    words = (name, "--where", "waiting", "-n", "2") if name == "search" else (name, "-n", "2")
    seen = [each["id"] for skip in "024" for each in dq.listed(*words, "--skip", skip)]
    assert len(seen) == len(set(seen)) == 5
    assert "--skip 4" in dq.text(*words, "--skip", "2")
    assert "--skip" not in dq.text(*words, "--skip", "4")


@pytest.mark.parametrize("name", LISTERS)
def test_the_requests_of_one_site_can_be_listed(dq: Any, worker: HandWorker, name: str) -> None:
    """The site may be spelled in another way."""
    for n in range(4):
        payload = stored(f"http://x.example/{n}")
        worker.exchange(put(n, partition=b"%d.example" % (n % 2), payload=payload))
    worker.take(4)
    worker.exchange(fail(0), fail(1), bury(2), bury(3))
    words = ("x.example",) if name == "search" else ()
    for spelling in ("1.example", "1.EXAMPLE."):
        found = dq.listed(name, *words, "--site", spelling)
        assert {each["partition"] for each in found} == {"1.example"}
    assert dq.listed(name, *words, "--site", "none.example") == []


@pytest.mark.parametrize("name", LISTERS)
def test_an_entry_is_shown_in_full_by_its_id(dq: Any, worker: HandWorker, name: str) -> None:
    """The id from the list selects the entry, with or without a spider before the id."""
    end_badly(worker, 2)
    listed = dq.listed(name, *(("x.example",) if name == "search" else ()))
    assert listed
    for each in listed:
        assert dq.found(name, each["id"]) == each
        assert dq.found(name, "pushed", each["id"], **SPIDERS) == each
        assert json.loads(dq.text(name, each["id"])) == each
    with pytest.raises(CommandError, match=r"has no .* 0{24}"):
        dq.text(name, "0" * 24)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["failed", "spider", "xyz"], "'xyz' is not an id"),
        (["dead", "spider", "0" * 24, "more"], "a spider and an id of the list, .* not 3 words"),
        (["search", "a", "b", "c"], "a spider and a part of the URL .* not 3 words"),
        (["search", "http://x/"], "only a spider knows the fingerprint of a URL"),
        (["search", "http://x/", "more"], "name the spider first"),
        (["search", "pushed", "http://["], "is not a URL"),
    ],
)
def test_wrong_usage_is_reported(dq: Any, worker: HandWorker, words: list[str], says: str) -> None:
    with pytest.raises(WrongUsage, match=says):
        dq.text(*words, **SPIDERS)


def test_a_url_with_a_star_is_a_pattern(dq: Any, worker: HandWorker) -> None:
    """Without a star, the search would be for this one URL."""
    worker.exchange(*[put(n, payload=stored(f"http://x/{n}")) for n in (1, 10)])
    found = dq.found("search", "http://x/1*")
    assert (len(found["entries"]), "seen" in found) == (2, False)


@pytest.mark.parametrize("name", KEPT)
def test_each_entry_is_listed_with_url_reason_time_and_worker(dq: Any, worker: HandWorker, name: str) -> None:
    """Programs also get the stored request. People get lines of at most 80 characters."""
    end_badly(worker, 3)
    found = dq.listed(name)
    number = 2 if name == "failed" else 5
    assert len(found) == 3
    one = next(each for each in found if each["url"] == f"http://x.example/{number}")
    assert one["reason"] == (f"ValueError: {number}" if name == "failed" else f"died 3 times: {number}")
    assert abs(one["at"] - time.time()) < 60
    assert (one["worker"], one["attempts"]) == ("worker", 0)
    assert one["request"]["callback"] == "parse_page"
    assert one["request"]["cb_kwargs"] == {"n": number}
    text = dq.text(name)
    for part in (one["id"], one["url"], one["reason"], "worker", "3 "):
        assert part in text
    assert "shown" not in text


@pytest.mark.parametrize("name", KEPT)
def test_the_list_begins_with_the_causes_and_ends_with_the_retry_command(
    dq: Any, worker: HandWorker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Causes are sorted by frequency. Reasons with different places in the code have different causes."""
    monkeypatch.setattr(listing, "MAX_CAUSES", 1)
    place = "(spiders/shop.py:31 in parse)"
    reasons = [f"KeyError: {number} {place}" for number in (459, 460)]
    reasons += ["KeyError: 459 (spiders/shop.py:32 in parse)", "HTTP 500", "HTTP 502"]
    count = len(reasons)
    worker.exchange(*[put(n, payload=stored(f"http://x.example/{n}")) for n in range(count)], want=count)
    ends = [
        Fail(entry, reason, f"http://x.example/{int(entry)}") if name == "failed" else Bury(entry, reason)
        for entry, reason in zip(sorted(worker.held), reasons, strict=True)
    ]
    worker.exchange(*ends)
    lines = dq.text(name, "-n", "1").splitlines()
    assert lines[0].endswith("; 1 shown.")
    assert [line.split() for line in lines[1:5]] == [
        ["count", "host", "cause"],
        ["2", "x.example", "KeyError:", "#", *place.split()],
        ["and", "3", "more", "(--json", "lists", "all)"],
        [],
    ]
    assert lines[-2:] == ["To run them again:", f"  scrapy dq retry --crawl {dq.crawl} --{name} --all"]


@pytest.mark.parametrize("name", KEPT)
def test_a_stored_reason_is_shown_without_logins(dq: Any, worker: HandWorker, name: str) -> None:
    """Older versions stored Scrapy's error messages with the logins in them."""
    payload = stored("http://us%20er:S3%20kr@x.example/")
    worker.exchange(put(1, payload=payload), want=1)
    (entry,) = worker.held
    reason = "ValueError: invalid: us er:S3 kr@x.example, and ftp://u:S3kr@y.example"
    worker.exchange(Fail(entry, reason, "http://x.example/") if name == "failed" else Bury(entry, reason))
    (found,) = dq.listed(name)
    assert found["reason"] == "ValueError: invalid: ...@x.example, and ftp://...@y.example"
    assert "S3" not in dq.text(name) + dq.text(name, found["id"])


def test_a_dead_letter_that_was_never_leased_is_marked(dq: Any, worker: HandWorker) -> None:
    """The request was already invalid when it was put."""
    worker.exchange(put(1, reason="dq_delay = 'x' is no number", payload=stored("http://x/")))
    assert "before any worker leased it" in " ".join(dq.text("dead").split())
    (found,) = dq.listed("dead")
    assert (found["worker"], found["url"]) == ("", "http://x/")


def page(number: int, priority: int = 0, **more: Any) -> Any:
    payload = stored(f"http://user:s3cret@shop.example/p/{number}")
    return put(number, priority, partition=HOST, payload=payload, **more)


@pytest.fixture
def everywhere(live: LiveFrontier) -> LiveFrontier:
    """Return a crawl with an entry in each place, and an entry of another partition."""
    worker = HandWorker(live, "worker")
    victim = HandWorker(live, "victim")
    worker.exchange(page(3))
    assert victim.take(1) == [3]
    worker.exchange(*[page(n, 9) for n in (1, 2, 6, 7, 9)])
    assert sorted(worker.take(5)) == [1, 2, 6, 7, 9]
    worker.exchange(fail(6), bury(7), release(2), decline(9), page(4, -1), page(5, due_in=7200))
    worker.exchange(put(8, -2, partition=b"other.example", payload=stored("http://other.example/p/4")))
    worker.reclaim("victim")
    return live


def by_place(found: dict[str, Any]) -> dict[str, str]:
    return {each["where"]: each["request"]["url"].rpartition("/")[2] for each in found["entries"]}


def test_an_entry_is_found_in_every_place(dq: Any, everywhere: LiveFrontier) -> None:
    """The search shows the details of each place, and changes nothing."""
    before = everywhere.dump()
    found = dq.found("search", "shop.example/p/")
    assert everywhere.dump() == before
    assert by_place(found) == WHERE
    assert found["complete"]
    assert found["looked_at"] == 9
    known = {each["where"]: each for each in found["entries"]}
    assert known["in flight"]["worker"] == "worker"
    assert (known["waiting"]["ahead"], known["returned"]["ahead"]) == (0, None)
    assert 7100 < known["delayed"]["wait_s"] <= 7200
    assert known["failed"]["reason"] == "not downloaded"
    assert known["dead"]["reason"] == "undecodable"
    assert {each["partition"] for each in found["entries"]} == {"shop.example"}
    assert "s3cret" not in str(found)


def test_a_search_prints_a_table(dq: Any, everywhere: LiveFrontier) -> None:
    text = dq.text("search", "shop*/p/")
    for part in ("in flight", "quarantine", "due in", "next", "http://", "failed"):
        assert part in text
    assert "s3cret" not in text
    assert dq.text("search", "nowhere") == "Nothing was found among 9 requests.\n"


@pytest.mark.parametrize("where", PLACES)
def test_the_search_can_be_limited_to_one_place(dq: Any, everywhere: LiveFrontier, where: str) -> None:
    found = dq.found("search", "p/", "--where", where.replace(" ", "-"))
    assert {each["where"] for each in found["entries"]} == {where}


def test_a_search_ends_after_a_given_number_of_entries(dq: Any, live: LiveFrontier) -> None:
    """The output says that the search is incomplete, because other entries may match."""
    worker = HandWorker(live, "worker")
    worker.exchange(*[page(n) for n in range(900)])
    found = dq.found("search", "nowhere", "--most", "100")
    assert not found["complete"]
    assert 100 <= found["looked_at"] < 900
    assert "requests, and there are more: --most looks at more" in dq.text(
        "search", "nowhere", "--most", "100"
    )
    assert dq.found("search", "nowhere", "--most", "900")["complete"]


@pytest.mark.parametrize("order", Order)
def test_ahead_counts_the_entries_that_are_served_earlier(
    server: RedisServer, crawl_name: str, order: Order
) -> None:
    """`ahead` counts the earlier entries with the same priority and partition."""
    live = LiveFrontier(server.url, crawl_name, order)
    worker = HandWorker(live, "worker")
    worker.exchange(*[page(n, start=n % 3) for n in range(30)])
    ahead: dict[int, int | None] = {}

    def see(entry: Entry) -> bool:
        ahead[int(entry.entry_id)] = entry.ahead
        return True

    assert scan_entries(live.redis, live.crawl, see).complete
    groups: dict[int, list[int]] = {}
    for n in worker.take(30):
        groups.setdefault(n % 3 if "priority" in order.value else 0, []).append(n)
    assert ahead == {n: place for group in groups.values() for place, n in enumerate(group)}
    live.close()


@pytest.mark.parametrize(
    ("pattern", "url", "fits"),
    [
        ("a.b", "http://a.b/", True),
        ("a.b", "http://axb/", False),
        ("a*b", "http://a/x/b", True),
        ("http://*?q=1", "http://a/?q=1", True),
        ("b*a", "http://a/b", False),
        ("", "http://a/", True),
    ],
)
def test_only_a_star_is_special_in_a_pattern(pattern: str, url: str, fits: bool) -> None:
    assert matches(pattern)(url) == fits


PARTITION = PUSHED.partition("//")[2]


@pytest.fixture
def pusher(live: LiveFrontier) -> HandWorker:
    """Return a worker with the fingerprinter of the spider `pushed`."""
    return HandWorker(live, "worker", OWN)


def test_the_search_for_a_url_shows_its_entry_and_partition(
    dq: Any, tmp_path: Path, live: LiveFrontier, pusher: HandWorker
) -> None:
    """The URL may be written in another way. The search changes nothing."""
    push = Push(dq, tmp_path)
    push(f"{PUSHED}/1?a=1&b=2", f"{PUSHED}/2")
    dq.text("limit", "--site", PARTITION, "--delay", "7", "--block", "1000")
    before = live.dump()
    found = dq.found("search", "pushed", f"{PUSHED}/1?b=2&a=1", **SPIDERS)
    assert live.dump() == before
    assert found["seen"]
    (entry,) = found["entries"]
    assert (entry["where"], entry["request"]["url"]) == ("waiting", f"{PUSHED}/1?a=1&b=2")
    assert (found["partition"]["name"], found["partition"]["delay_s"]) == (PARTITION, 7.0)
    text = dq.text("search", "pushed", f"{PUSHED}/1?b=2&a=1", **SPIDERS)
    for part in (
        "seen  yes",
        f"{PARTITION}: delay_s 7, blocked_s ",
        "waiting",
    ):
        assert part in text


def test_a_url_without_an_entry_is_done_or_was_never_found(
    dq: Any, tmp_path: Path, pusher: HandWorker
) -> None:
    Push(dq, tmp_path)(f"{PUSHED}/1")
    assert "no page has led to it, except perhaps" in dq.text("search", "pushed", f"{PUSHED}/3", **SPIDERS)
    assert "seen  no" in dq.text("search", "pushed", f"{PUSHED}/3", **SPIDERS)
    (lease,) = pusher.exchange(want=9).leases
    pusher.exchange(Ack(lease.entry_id))
    assert "it is done, or was dropped" in dq.text("search", "pushed", f"{PUSHED}/1", **SPIDERS)


@pytest.mark.parametrize("kind", Seen)
@pytest.mark.parametrize("count", [1, 3_000])
def test_every_kind_of_seen_can_be_searched(
    server: RedisServer, crawl_name: str, kind: Seen, count: int
) -> None:
    """A compact `seen` can still be searched after its buckets were split."""
    live = LiveFrontier(server.url, crawl_name, seen=kind)
    worker = HandWorker(live, "worker", OWN)
    tokens = [b"%020d" % n for n in range(2 * count)]
    for at in range(0, count, 500):
        new = [put(n, admission=Admission.SEEN, token=tokens[n]) for n in range(at, min(at + 500, count))]
        worker.exchange(*new)
    seen = [is_seen(live.redis, live.crawl, token, b"", b"") for token in tokens]
    assert seen == [True] * count + [False] * count
    live.close()


def test_an_expired_fingerprint_is_not_seen(live: LiveFrontier, pusher: HandWorker) -> None:
    live.redis.hset(live.key("meta"), mapping={"seen_kind": "expiring", "seen_since": 1000})
    live.redis.zadd(live.key("seen"), {b"old": 999, b"new": 1000})
    assert [is_seen(live.redis, live.crawl, each, b"", b"") for each in (b"old", b"new")] == [False, True]


def test_a_fingerprint_is_looked_up_in_the_shard_of_its_partition(
    server: RedisServer, live: LiveFrontier, pusher: HandWorker
) -> None:
    """A request without a partition is in the shard of its fingerprint."""
    live.redis.hset(live.key("meta"), "shards", SHARDS)
    for host in (*HOSTS, b""):
        shard = keys.Shard(live.crawl, shard_of(host, b"token", SHARDS))
        live.redis.sadd(keys.prefix(shard) + "seen", b"token")
        assert is_seen(live.redis, live.crawl, b"token", host, b"")
        live.redis.delete(keys.prefix(shard) + "seen")
        assert not is_seen(live.redis, live.crawl, b"token", host, b"")


def test_adopted_fingerprints_count_as_seen(live: LiveFrontier, pusher: HandWorker) -> None:
    live.call("adopt", pusher.epoch, 0, "", 1, [b"x" * 20])
    assert is_seen(live.redis, live.crawl, b"y", b"", b"x" * 20)


def test_entries_that_cannot_be_leased_yet_are_listed_last(
    dq: Any, live: LiveFrontier, server: RedisServer
) -> None:
    """The list shows why these entries wait."""
    worker = HandWorker(live, "worker", limited(a=(0.0, 1), b=(100.0, 0)))
    at = {name: stored(f"http://{name}.example/") for name in "abcd"}
    worker.exchange(
        put(1, partition=b"a", payload=at["a"]), put(2, partition=b"a", payload=at["a"]),
        put(3, partition=b"b", payload=at["b"]), put(4, partition=b"b", payload=at["b"]),
        put(5, partition=b"d", payload=at["d"], due_in=7259), want=2,
    )  # fmt: skip
    worker.exchange(put(6, 9, partition=b"c", payload=at["c"]))
    found = dq.listed("search")
    assert [entry["where"] for entry in found] == ["rotation", "saturated", "saturated", "delayed"]
    assert [entry["request"]["url"] for entry in found][::3] == ["http://c.example/", "http://d.example/"]
    assert found[1]["wait_s"] is None
    assert 7000 < found[3]["wait_s"] <= 7259
    text = dq.text("search")
    for part in ("for a lease or budget", "2 h 0 min", "GET parse_page", "http://c.example/"):
        assert part in text
    (first,) = dq.listed("search", "-n", "1")
    assert first == found[0]


def test_an_empty_backlog_is_not_a_failure(dq: Any, worker: HandWorker) -> None:
    """The command prints that nothing waits, and exits with 0."""
    assert dq.text("search") == "Nothing waits.\n"
    assert dq.listed("search") == []
    assert dq.status == 0


def test_untrusted_bytes_are_reported_and_do_nothing(dq: Any, worker: HandWorker) -> None:
    """Unreadable entries are listed, and no control character reaches the terminal."""
    odd = bytes((REQUEST,)) + msgpack.packb({1: "http://x/\x1b[31m\nforged", "kind": "other"})
    worker.exchange(*[put(n, payload=payload) for n, payload in enumerate((b"", b"\xffjunk", odd))])
    text = dq.text("search")
    assert text.count("(unreadable: ") == 2
    assert "http://x/?[31m?forged" in text
    assert {entry["request"]["kind"] for entry in dq.listed("search")} == {"unreadable", "request"}


def test_other_entries_than_requests_are_listed_with_their_kind(dq: Any, worker: HandWorker) -> None:
    """The list has start payloads, items of a Queue, and requests that a project's serializer wrote."""
    item = msgpack.packb({"a": 1})
    payloads = (bytes((PAYLOAD,)) + b"http://x/", bytes((ITEM,)) + item, bytes((SERIALIZED,)) + b"{}")
    worker.exchange(*[put(n, payload=payload) for n, payload in enumerate(payloads)])
    assert [entry["request"] for entry in reversed(dq.listed("search"))] == [
        {"kind": "fed", "payload": "http://x/"},
        {"kind": "item", "item": {"a": 1}},
        {"kind": "serialized", "bytes": 2},
    ]
    text = dq.text("search")
    for part in ("(fed: http://x/)", "(item: {'a': 1})", "(serialized: 2 bytes)"):
        assert part in text


def test_a_request_of_a_json_serializer_is_shown_without_logins(dq: Any, worker: HandWorker) -> None:
    written = {
        "url": "http://u:s3cret@x/", "method": "POST", "headers": {"Authorization": ["s3cret"]},
        "meta": {"proxy": "u:s3cret@h"}, "cookies": {"id": "s3cret"}, "callback": "parse_page", "priority": 0,
        "kind": "request",
    }  # fmt: skip
    worker.exchange(put(1, payload=bytes((SERIALIZED,)) + json.dumps(written).encode()))
    (found,) = dq.listed("search")
    assert "s3cret" not in str(found)
    assert (found["request"]["kind"], found["request"]["method"]) == ("serialized", "POST")
    text = dq.text("search")
    assert "http://...@x/\n" in text
    assert "POST parse_page" in text
    assert "s3cret" not in text
