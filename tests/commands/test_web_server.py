"""`scrapy dq web`: its start, outages and end, and its app inside another app."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

from commands.conftest import PASSWORD
from scrapy_dq.frontier.model import Order
from scrapy_dq.settings import Config
from scrapy_dq.web import app
from scrapy_dq.web.reads import Reads, Result, Subject, _Kept
from support.given import StartProxy, StartRedis
from support.live_frontier import HandWorker, LiveFrontier, puts
from support.redis_server import RedisServer
from support.waiting import patience
from support.web_page import TOKEN, WebPage, ask_app, refused


def test_the_page_continues_through_an_outage(
    start_redis: StartRedis, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """During the outage, the page shows the error and the age of its data. Then the data is live again."""
    proxy = start_proxy(start_redis(password=PASSWORD).url)
    with closing(LiveFrontier(proxy.url, "first", Order.FIFO)) as live, WebPage(tmp_path, proxy.url) as page:
        worker = HandWorker(live, "worker")
        worker.exchange(*puts(b"a", 7))
        looks = page.looks("crawl", "first")
        assert next(looks)["look"]["waiting"] == 7
        proxy.refuse()
        missed = list(islice((each for each in looks if each["error"]), 3))
        assert [each["look"]["waiting"] for each in missed] == [7] * 3
        ages = [each["age_s"] for each in missed]
        assert ages == sorted(ages)
        assert ages[2] > 2
        status, _, text = page.ask("/data?kind=failed&crawl=first")
        assert (status, json.loads(text)["look"], json.loads(text)["found"]) == (200, None, True)
        proxy.black_hole()
        assert next(looks)["error"]
        proxy.pass_through()
        back = next(each for each in looks if not each["error"])
        assert back["age_s"] < ages[2]
        assert back["look"]["waiting"] == 7
        assert PASSWORD not in json.dumps(missed) + page.log.read_text() + page.printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_while_pages_are_open(server: RedisServer, tmp_path: Path, number: int) -> None:
    """Open pages wait for the next look (a read of Redis). The exit status is 0, standard error is empty."""
    with WebPage(tmp_path, server.url) as page, closing(page.connection()) as waiting:
        page.data("crawls")
        waiting.request("GET", "/data?kind=crawl&crawl=none")
        assert page.end(number) == 0
        assert page.log.read_text() == ""


def test_an_order_does_not_wait_for_a_look(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look (a read of Redis) may take long, but an order (a command) is carried out during the look."""
    begun, may_end = threading.Event(), threading.Event()

    def look(looks: Reads, *asked: Any) -> tuple[Result, bool]:
        begun.set()
        may_end.wait(patience(60))
        return Result(at=time.monotonic(), body="{}"), True

    monkeypatch.setattr(Reads, "_read", look)

    async def ask() -> None:
        looks = Reads(Config.read({"DQ_CRAWL": "x", "REDIS_URL": server.url}, {}))
        await looks.open()
        looking = asyncio.ensure_future(looks.newest(Subject("crawl", "a")))
        try:
            await asyncio.to_thread(begun.wait, patience(30))
            assert await asyncio.wait_for(looks.call("b", lambda place: place.crawl), patience(20)) == "b"
            assert not looking.done()
        finally:
            may_end.set()
            await looks.close()
            await looking

    asyncio.run(ask())


def test_a_key_of_another_type_is_not_an_outage(start_redis: StartRedis) -> None:
    """A key that the user may not read is not an outage either. Other looks continue without a pause."""
    server = start_redis()
    with (
        closing(LiveFrontier(server.url, "first", Order.FIFO)) as first,
        closing(LiveFrontier(server.url, "second", Order.FIFO)) as second,
    ):
        HandWorker(first, "worker")
        HandWorker(second, "worker")
        first.redis.set(first.key("failed"), "not a list")
        first.redis.execute_command(
            "ACL", "SETUSER", "observer", "on", f">{PASSWORD}", "~dq:{first}:*", "+@all"
        )
        url = server.url.replace("//", f"//observer:{PASSWORD}@")
        looks = Reads(Config.read({"DQ_CRAWL": "x", "REDIS_URL": url}, {}))

        async def ask() -> None:
            await looks.open()
            failed, answered = await asyncio.to_thread(looks._read, Subject("failed", "first"), _Kept())
            assert (failed.body, answered) == ("", True)
            assert "WRONGTYPE" in failed.error
            listed, answered = await asyncio.to_thread(looks._read, Subject("crawls"), _Kept())
            rows = {row["crawl"]: row for row in json.loads(listed.body)["crawls"]}
            assert (answered, "error" in rows["first"]) == (True, False)
            assert "permission" in rows["second"]["error"]
            await looks.close()

        asyncio.run(ask())


def test_an_error_at_the_start_is_printed_in_one_line(
    server: RedisServer, page: WebPage, tmp_path: Path
) -> None:
    """Faults are a public address without a token, a used port, a bad token or file, and no Redis."""
    short = tmp_path / "short"
    short.write_text("short\n")
    for words, status, said in (
        (["--host", "0.0.0.0"], 2, "lets other machines read the crawls: give a token"),
        (["--port", str(page.port)], 1, "Address already in use. --port names another port"),
        (["--token-file", str(short)], 1, "it needs 16 to 1,000"),
        (["--token-file", str(tmp_path / "none")], 1, "cannot be read"),
        (["-s", f"REDIS_URL=redis://:{PASSWORD}@127.0.0.1:1/0"], 1, "cannot be reached"),
    ):
        ended, line = refused(tmp_path, server.url, "web", *words)
        assert (ended, said in line, PASSWORD in line) == (status, True, False), line


def test_without_the_extra_a_line_names_the_packages_to_install(server: RedisServer, tmp_path: Path) -> None:
    assert refused(tmp_path, server.url, "web", without="uvicorn") == (
        1,
        "scrapy dq web: the page needs Starlette, uvicorn and prometheus_client: "
        "pip install prometheus_client starlette uvicorn",
    )


def test_the_app_is_mounted_in_another_one(server: RedisServer, live: LiveFrontier) -> None:
    """The app works below a path. Its first request makes it read Redis, without any lifespan event."""
    HandWorker(live, "worker")
    mounted = app(Settings({"REDIS_URL": server.url}), token=TOKEN)

    async def main() -> list[tuple[int, str]]:
        query = f"kind=crawl&crawl={live.crawl}"
        asked = (("/", "", ""), ("/data", query, ""), ("/data", query, TOKEN))
        answers = [await ask_app(mounted, *each, root="/dq") for each in asked]
        events = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))

        async def next_event() -> dict[str, Any]:
            return next(events)

        async def ignore(message: dict[str, Any]) -> None: ...

        # End the app here; otherwise the garbage collector would close its connections during another test.
        await mounted({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, next_event, ignore)
        return answers

    answers = asyncio.run(main())
    assert [status for status, _ in answers] == [200, 401, 200]
    assert json.loads(answers[-1][1])["look"]["workers"] == 1
