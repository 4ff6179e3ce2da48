"""`scrapy dq search`: it finds entries by their URL wherever they are, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dq.commands.subcommand import WrongUsage
from scrapy_dq.frontier.admin.entries import PLACES, Entry, look_at_entries
from scrapy_dq.frontier.model import Order
from scrapy_dq.inspection.found import matches
from support.live_frontier import HandWorker, LiveFrontier, bury, decline, fail, put, release
from support.redis_server import RedisServer
from support.stored_requests import stored

HOST = b"shop.example"
WHERE = {
    "in flight": "1", "returned": "2", "quarantine": "3", "waiting": "4", "delayed": "5", "failed": "6",
    "dead": "7", "declined": "9",
}  # fmt: skip
"""The page that is in each place."""


def page(number: int, priority: int = 0, **more: Any) -> Any:
    payload = stored(f"http://user:s3cret@shop.example/p/{number}")
    return put(number, priority, partition=HOST, payload=payload, **more)


@pytest.fixture
def everywhere(live: LiveFrontier) -> LiveFrontier:
    """Return a crawl that has an entry in each place, and something of another partition."""
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


def test_an_entry_is_found_wherever_it_is(dq: Any, everywhere: LiveFrontier) -> None:
    """With what is known of it there; nothing is leased, or changed."""
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


def test_people_see_a_table(dq: Any, everywhere: LiveFrontier) -> None:
    text = dq.text("search", "shop*/p/")
    for part in ("in flight", "quarantine", "due in", "next", "http://", "failed"):
        assert part in text
    assert "s3cret" not in text
    assert dq.text("search", "nowhere") == "Nothing was found among 9 entries.\n"


@pytest.mark.parametrize("where", PLACES)
def test_one_place_alone_can_be_searched(dq: Any, everywhere: LiveFrontier, where: str) -> None:
    found = dq.found("search", "p/", "--where", where.replace(" ", "-"))
    assert {each["where"] for each in found["entries"]} == {where}


def test_one_partition_alone_can_be_searched(dq: Any, everywhere: LiveFrontier) -> None:
    found = dq.found("search", "p/4", "--partition", "other.example")
    assert [each["request"]["url"] for each in found["entries"]] == ["http://other.example/p/4"]
    assert dq.found("search", "p/4", "--partition", "none.example")["entries"] == []


def test_what_is_found_comes_in_pages(dq: Any, live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    worker.exchange(*[page(n) for n in range(25)])
    seen: list[str] = []
    for skip in (0, 10, 20):
        found = dq.found("search", "shop", "-n", "10", "--skip", str(skip))
        seen += [each["id"] for each in found["entries"]]
    assert len(seen) == len(set(seen)) == 25
    assert "There may be more: --skip 10" in dq.text("search", "shop", "-n", "10")


def test_a_search_ends_after_so_many_entries(dq: Any, live: LiveFrontier) -> None:
    """And says so: what was not looked at may have it."""
    worker = HandWorker(live, "worker")
    worker.exchange(*[page(n) for n in range(900)])
    found = dq.found("search", "nowhere", "--most", "100")
    assert not found["complete"]
    assert 100 <= found["looked_at"] < 900
    assert "of 900 entries: --most looks at more" in dq.text("search", "nowhere", "--most", "100")
    assert dq.found("search", "nowhere", "--most", "900")["complete"]


@pytest.mark.parametrize("order", Order)
def test_what_is_ahead_is_served_before(server: RedisServer, crawl_name: str, order: Order) -> None:
    """Of the same priority and partition."""
    live = LiveFrontier(server.url, crawl_name, order)
    worker = HandWorker(live, "worker")
    worker.exchange(*[page(n, start=n % 3) for n in range(30)])
    ahead: dict[int, int | None] = {}

    def see(entry: Entry) -> bool:
        ahead[int(entry.entry_id)] = entry.ahead
        return True

    assert look_at_entries(live.redis, live.crawl, see).complete
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
def test_a_star_is_any_text_and_nothing_else_is_special(pattern: str, url: str, fits: bool) -> None:
    assert matches(pattern)(url) == fits


def test_a_spider_or_a_crawl_is_named(dq: Any) -> None:
    dq.crawl = ""
    with pytest.raises(WrongUsage, match="name the spider first"):
        dq.text("search", "text")
    with pytest.raises(WrongUsage, match="a spider and a part of the URL, not 3 words"):
        dq.text("search", "a", "b", "c")
