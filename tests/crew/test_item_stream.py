"""With DQ_ITEMS = "redis", one host collects the items of all workers in journals, each item once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from crew.conftest import SetScene
from crew.test_journal import RUN, Data, codec
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.journal import exported, name_of, not_exported
from scrapy_dq.crew.records import Packer, message
from scrapy_dq.items.stream import Collector, key_of
from support.crew_process import paths_of
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.waiting import wait_until

STREAM: dict[str, Any] = {"ADDONS": {"scrapy_dq.Addon": 500}, "DQ_ITEMS": "redis", "ITEM_PIPELINES": {}}


def test_all_workers_share_a_feed(scene: SetScene, redis_server: RedisServer) -> None:
    """The workers run `scrapy crawl`, and one is killed. The feed has each item once."""
    here = scene(STREAM | {"FEEDS": {"all.jsonl": {"format": "jsonlines"}}}, pages=120, latency_s=0.05)
    first, second = here.project.start_worker(), here.project.start_worker()
    wait_until(lambda: here.done() >= 40, "both workers crawl")
    first.kill()
    third = here.project.start_worker()
    for worker in (second, third):
        assert worker.wait(60) == 0
    assert not (here.project.folder / "all.jsonl").exists()
    told = run_dq(here.project, "items", here.project.name, "--export", "--json")
    assert told.returncode == 0, told.stderr
    (feed,) = json.loads(told.stdout)["feeds"]
    assert feed["items"] == 120
    assert paths_of(here.project.folder / "all.jsonl") == dict.fromkeys(here.site.paths, 1)
    with connect_url(redis_server.url) as client:
        assert client.xlen(key_of(here.project.name)) == 0
    again = run_dq(here.project, "items", here.project.name, "-O", "again.csv")
    assert again.stdout == "again.csv: 120 items\n", again.stderr


class Sender:
    """A worker that sends items to the stream of a crawl."""

    def __init__(self, client: Any, crawl: str) -> None:
        self._client = client
        self._key = key_of(crawl)
        self._packer = Packer(codec(), private=False)
        self.journal = name_of(RUN, 1, 0, uuid4().hex)

    def send(self, *numbers: int) -> None:
        """Send one item for each of *numbers*. The number is also the number of the message."""
        for number in numbers:
            records = self._packer.item(b"entry%d" % number, {"n": number})
            text = b"%s\0%s" % (self.journal.encode(), message(number, records))
            self._client.xadd(self._key, {"item": text})


def collected(folder: Path) -> Counter[int]:
    """Return how often the journals have each item, by the item's number."""
    journals = sorted(folder.glob("*.journal"))
    found = exported(journals, not_exported(journals, lambda size: None))
    return Counter(record.item(codec())["n"] for _, record in found)


class Killed(Exception):
    """Stands for the SIGKILL of a process."""


class Dies:
    """A client whose process dies before it deletes its messages."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def xdel(self, *ids: object) -> None:
        raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.parametrize("torn", [0, 1, 10, 60])
def test_a_collector_that_is_killed_collects_nothing_twice(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path, torn: int
) -> None:
    """If a worker sent an item twice, the collector takes it once. Journals may end inside a record."""
    with connect_url(redis_server.url) as client:
        sender = Sender(client, crawl_name)
        sender.send(1, 2, 3, 3, 2)
        with pytest.raises(Killed):
            Collector(Dies(client), crawl_name, tmp_path).collect(lambda count: None)
        path = tmp_path / sender.journal
        path.write_bytes(path.read_bytes()[: path.stat().st_size - torn])
        sender.send(6, 4, 5, 6)  # the order of items after a roll-back of Redis
        for _ in range(2):
            collector = Collector(client, crawl_name, tmp_path)
            collector.collect(lambda count: None)
            collector.close()
        assert collected(tmp_path) == dict.fromkeys(range(1, 7), 1)
        assert collector.waiting() == 0


def test_messages_that_no_worker_sent_are_dropped(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The collector writes no file elsewhere, unpickles nothing, and imports nothing."""
    with connect_url(redis_server.url) as client:
        sender = Sender(client, crawl_name)
        sender.send(1)
        (_, fields), *_ = client.xrange(key_of(crawl_name))
        good = fields[b"item"]
        records = good.partition(b"\0")[2]
        module = Packer(codec(), private=True).item(b"", Data("x"))
        others = (
            b"", good[:-1], good + b"x", b"../" + good, b"/tmp/x\0" + records,
            sender.journal.encode() + b"\0" + message(2, module),
            sender.journal.encode() + b"\0" + message(10**12, records),
        )  # fmt: skip
        for text in others:
            client.xadd(key_of(crawl_name), {"item": text})
        client.xadd(key_of(crawl_name), {"other": "field"})
        Collector(client, crawl_name, tmp_path).collect(lambda count: None)
        assert caplog.text.count("is from no worker, and is dropped") == len(others) + 1
        assert [path.name for path in tmp_path.iterdir()] == [sender.journal]


def test_items_are_collected_in_one_folder(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    with connect_url(redis_server.url) as client:
        Collector(client, crawl_name, tmp_path / "here")
        with pytest.raises(CrewError, match=f"are collected in .*:{tmp_path / 'here'}: run this there"):
            Collector(client, crawl_name, tmp_path / "there")
        client.delete(f"{key_of(crawl_name)}:folder")
        Collector(client, crawl_name, tmp_path / "there")
