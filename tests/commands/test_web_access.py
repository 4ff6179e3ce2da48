"""Who may read and change crawls with `scrapy dq web`: tokens, hosts, other sites, and invalid orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

from scrapy_dq.settings import ConfigError
from scrapy_dq.web.access import Access, given_token, is_loopback
from support.live_frontier import HandWorker, LiveFrontier
from support.redis_server import RedisServer
from support.web_page import TOKEN, WebPage


def orders(crawl: str) -> list[dict[str, Any]]:
    """Return one order (a command that the page sends) of each kind."""
    own = {"crawl": crawl}
    return [
        {"action": "pause"} | own, {"action": "resume"} | own,
        {"action": "drain"} | own, {"action": "stop"} | own,
        {"action": "limit", "partition": "a.example", "delay_s": 5, "concurrency": 2, "block_s": 60} | own,
        {"action": "retry", "kind": "failed", "all": True} | own,
        {"action": "forget", "urls": ["http://a.example/"]} | own,
    ]  # fmt: skip


def state(live: LiveFrontier) -> Any:
    """Return all stored state that an order could change."""
    client = live.redis
    kept = [client.hgetall(live.key(name)) for name in ("meta", "limits")]
    return (
        kept,
        client.llen(live.key("failed")),
        client.scard(live.key("seen")),
        client.zcard(live.key("blocked")),
    )


def test_a_page_that_only_reads_refuses_orders(page: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """The page refuses orders without --allow-steering, even if they are valid."""
    before = state(live)
    for order in orders(live.crawl):
        status, said = page.do(order)
        assert status == 403
        assert "--allow-steering" in said["error"]
    assert state(live) == before


WRONG: dict[str, tuple[int, dict[str, str]]] = {
    "no token": (401, {"Authorization": ""}),
    "another token": (401, {"Authorization": f"Bearer {TOKEN}x"}),
    "a part of the token": (401, {"Authorization": f"Bearer {TOKEN[:-1]}"}),
    "another scheme": (401, {"Authorization": f"Basic {TOKEN}"}),
    "another origin": (403, {"Origin": "http://evil.example"}),
    "the origin null": (403, {"Origin": "null"}),
    "another port": (403, {"Origin": "http://127.0.0.1:1"}),
    "another site": (403, {"Sec_Fetch_Site": "cross-site"}),
    "a sibling site": (403, {"Sec_Fetch_Site": "same-site"}),
    "a rebound name": (421, {"Host": "evil.example"}),
    "a rebound name with a port": (421, {"Host": "127.0.0.1.evil.example:6870"}),
    "a form": (415, {"Content_Type": "application/x-www-form-urlencoded"}),
    "plain text": (415, {"Content_Type": "text/plain"}),
    "no type": (415, {"Content_Type": ""}),
    "too long a body": (413, {"Content_Length": "999999999"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_order_with_a_wrong_header_is_refused(
    steering: WebPage, live: LiveFrontier, worker: HandWorker, wrong: str
) -> None:
    """Each request has exactly one fault, and is refused before its order is read."""
    before = state(live)
    status, headers = WRONG[wrong]
    for order in orders(live.crawl):
        assert steering.do(order, **headers)[0] == status
    assert state(live) == before


def test_an_invalid_order_is_refused(steering: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """The answer has the reason, and nothing is changed."""
    own = {"crawl": live.crawl}
    before = state(live)
    for order in (
        [], None, "pause", {}, {"action": "pause"}, {"action": "pause", "crawl": 1},
        {"action": "clear"} | own,
        {"action": ["pause"]} | own, {"action": "retry", "kind": "failed"} | own,
        {"action": "retry", "kind": ["x"], "all": True} | own,
        {"action": "retry", "kind": "failed", "all": 1} | own,
        {"action": "retry", "kind": "failed", "id": "x"} | own, {"action": "limit", "partition": "a"} | own,
        {"action": "limit", "partition": "a\n", "delay_s": 1} | own,
        {"action": "limit", "partition": "a", "delay_s": -1} | own,
        {"action": "limit", "partition": "a", "delay_s": float("nan")} | own,
        {"action": "limit", "partition": "a", "concurrency": 1.5} | own,
        {"action": "limit", "partition": "a", "block_s": True} | own, {"action": "forget", "urls": []} | own,
        {"action": "forget", "urls": ["no URL"]} | own, {"action": "forget", "urls": [1]} | own,
    ):  # fmt: skip
        status, said = steering.do(order)
        assert status == 400, order
        assert said["error"]
    status, said = steering.do({"action": "pause", "crawl": f"{live.crawl}x"})
    assert (status, live.crawl in said["error"]) == (404, True)
    assert state(live) == before
    assert steering.ask("/do", "POST", "[" * 100_000, Content_Type="application/json")[0] == 400


def test_reading_also_needs_the_token(steering: WebPage, live: LiveFrontier) -> None:
    """The files of the page need no token, because they contain no data of a crawl."""
    for path in ("/settings", f"/data?kind=crawl&crawl={live.crawl}"):
        status, headers, text = steering.ask(path, Authorization="")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert live.crawl not in text
    assert steering.ask("/", Authorization="")[0] == 200
    assert TOKEN not in steering.printed


def test_other_sites_cannot_load_data(page: WebPage, live: LiveFrontier) -> None:
    """Another site may only link to the page. A page under a rebound host name gets no data."""
    for path in ("/data?kind=crawls", "/settings", "/app.js", "/"):
        assert page.ask(path, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="empty")[0] == 403
        assert page.ask(path, Host="evil.example")[0] == 421
        assert page.ask(path, Host="")[0] == 421
    assert page.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 200
    assert page.ask("/settings", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 403
    for name in ("localhost:1", "127.0.0.1", "[::1]:80", "10.1.2.3"):
        assert page.ask("/settings", Host=name)[0] == 200
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert page.ask("/settings", method)[0] == 405
    for path in ("/nothing", "/data", "/data?kind=crawl", "/data?kind=failed_one&crawl=x&id=zz"):
        assert page.ask(path)[0] in (400, 404)


def test_steering_without_a_token_generates_one(
    server: RedisServer, tmp_path: Path, live: LiveFrontier
) -> None:
    """The printed address has the token behind #, which no browser sends and no server logs."""
    HandWorker(live, "worker")
    with WebPage(tmp_path, server.url, "--allow-steering") as page:
        _, _, fragment = page.address.partition("#token=")
        token, _, where = fragment.partition("&")
        assert where == "/crawl/first"
        assert page.ask("/settings")[0] == 401
        assert page.do({"action": "pause", "crawl": live.crawl})[0] == 401
        page.token = token
        assert page.do({"action": "pause", "crawl": live.crawl})[0] == 200
        assert token not in page.log.read_text()


def test_hosts_and_tokens_are_checked() -> None:
    """Allowed hosts are addresses, localhost, and names that the user gave. Bad tokens are refused."""
    access = Access.of("", False, ["Crawls.example.", "box"])
    for host in ("LOCALHOST:6870", "127.0.0.1:1", "[::1]", "[fe80::1]:80", "crawls.example:443", "box"):
        assert access.knows(host)
    for host in ("", "evil.example", "localhost.evil.example", "crawls.example.evil", "[evil]", "127.1.evil"):
        assert not access.knows(host)
    assert access.admits("")
    for token, steers in ("", True), ("short", False), ("x" * 15 + "\n" + "x" * 9, False), ("é" * 20, False):
        with pytest.raises(ConfigError):
            Access.of(token, steers, ())
    assert repr(Access.of(TOKEN, True, ())).count(TOKEN) == 0
    assert given_token("", {"DQ_WEB_TOKEN": f" {TOKEN}\n"}) == TOKEN
    assert is_loopback("127.3.2.1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")
