"""`scrapy dq push` of URLs and files: known and bad requests, and runs that do not exist yet."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.model import FrontierRefused, Limits
from scrapy_dq.frontier.moves import Ack, Fail
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.inspection.place import NoSuchCrawl
from scrapy_dq.pushing.lines import Splitter
from scrapy_dq.pushing.producer import Producer
from scrapy_dq.scrapy_redis import fingerprint
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, put

SPIDERS = {"SPIDER_MODULES": ["support.pushed_spider"]}
OWN = replace(
    IDENTITY,
    fingerprinter="scrapy.utils.request.RequestFingerprinter",
    spider="support.pushed_spider.PushedSpider",
    partition_by="slot",
)
HOST = "http://a.example"


@pytest.fixture
def worker(live: LiveFrontier) -> HandWorker:
    """Return a worker of the spider's crawl."""
    return HandWorker(live, "worker", OWN)


class Push:
    """A function that pushes to the crawl of the spider `pushed`."""

    def __init__(self, dq: Any, folder: Path) -> None:
        self.dq = dq
        self._file = folder / "requests.jsonl"

    def __call__(self, *words: str, **settings: Any) -> Any:
        return self.dq.found("push", "pushed", *words, **SPIDERS | settings)

    def text(self, *words: str, **settings: Any) -> str:
        return str(self.dq.text("push", "pushed", *words, **SPIDERS | settings))

    def file(self, *lines: str | bytes, words: tuple[str, ...] = ()) -> Any:
        """Push a file with these lines, and return what the command found."""
        self._file.write_bytes(b"\n".join(x.encode() if isinstance(x, str) else x for x in lines))
        return self("--file", str(self._file), *words)

    def waiting(self) -> list[dict[str, Any]]:
        """Return the requests that wait, the next one first."""
        return [found["request"] for found in self.dq.listed("search", "-n", "1000")]

    def urls(self) -> set[str]:
        return {request["url"] for request in self.waiting()}


@pytest.fixture
def push(dq: Any, tmp_path: Path) -> Push:
    return Push(dq, tmp_path)


def test_urls_wait_in_the_crawl(push: Push, worker: HandWorker, live: LiveFrontier) -> None:
    """Each request is in its partition. URLs that the crawl has seen are counted as known."""
    assert push(f"{HOST}/1", f"{HOST}/2") | {"redis": ""} == {
        "crawl": live.crawl, "redis": "", "run": 0, "pushed": 2, "known": 0, "bad": 0,
    }  # fmt: skip
    found = push(f"{HOST}/2", f"{HOST}/3?b=1&a=2", f"{HOST}/3?a=2&b=1")
    assert (found["pushed"], found["known"], push.dq.status) == (1, 2, 0)
    assert push.urls() == {f"{HOST}/1", f"{HOST}/2", f"{HOST}/3?b=1&a=2"}
    assert set(live.state()["partitions"].values()) == {b"a.example"}
    assert live.members() == {"worker"}
    assert "requests pushed  0\nalready seen     1" in push.text(f"{HOST}/1")


def test_seen_requests_are_pushed_with_dont_filter(
    push: Push, worker: HandWorker, live: LiveFrontier
) -> None:
    """--dont-filter or a line of the file sets dont_filter. Redis keeps no token of a finished push."""
    push(f"{HOST}/1")
    assert push(f"{HOST}/1", f"{HOST}/1", "--dont-filter")["pushed"] == 2
    assert push.file(json.dumps({"url": f"{HOST}/1", "dont_filter": True}), f"{HOST}/1")["known"] == 1
    assert [request.get("dont_filter", False) for request in push.waiting()].count(True) == 3
    assert not live.redis.exists(live.key("admitted"))


def test_options_are_defaults_for_the_lines_of_the_file(push: Push, worker: HandWorker) -> None:
    """A line can override the priority, the callback and single keys of the meta."""
    words = ("--priority", "5", "--meta", '{"a": 1, "b": 2}', "--callback", "parse_page")
    own = {"url": f"{HOST}/2", "priority": -1, "meta": {"b": 3}, "callback": "parse"}
    push.file(f"{HOST}/1", json.dumps(own), words=words)
    first, second = push.waiting()
    assert (first["priority"], first["callback"], first["meta"]) == (5, "parse_page", {"a": 1, "b": 2})
    assert (second["priority"], second["callback"], second["meta"]) == (-1, "parse", {"a": 1, "b": 3})


def test_a_line_can_set_every_attribute_of_a_request(push: Push, worker: HandWorker) -> None:
    """The keys of a line are attributes of a request. Another method or body makes another request."""
    whole = {
        "url": f"{HOST}/1", "method": "POST", "headers": {"X-A": ["1", "2"]}, "body": "é",
        "cookies": {"c": "d"}, "meta": {"deep": {"x": [1]}}, "cb_kwargs": {"k": 1}, "flags": ["f"],
        "encoding": "utf-8", "errback": "parse_page", "priority": 3,
    }  # fmt: skip
    assert push.file(json.dumps(whole), json.dumps(whole | {"method": "PUT"}), f"{HOST}/1")["pushed"] == 3
    (found,) = [request for request in push.waiting() if request["method"] == "POST"]
    assert found.pop("kind") == "request"
    assert found.pop("callback") is None
    assert found == {
        key: value for key, value in whole.items() if key != "encoding"
    } | {"headers": {"X-A": ["1", "2"]}, "cookies": {"c": "..."}}  # fmt: skip


def test_a_pushed_request_can_be_delayed(push: Push, worker: HandWorker, live: LiveFrontier) -> None:
    """`dq_delay` has the same effect as in a request from a spider."""
    push(f"{HOST}/1", "--meta", '{"dq_delay": 900}')
    assert peek(live.redis, live.crawl).census.delayed == 1
    (request,) = push.waiting()
    assert "dq_delay" not in request.get("meta", {})


def test_a_push_is_refused_if_the_project_stores_no_urls(push: Push, worker: HandWorker) -> None:
    """Each request of such a crawl stays local."""
    with pytest.raises(CommandError, match="DQ_URL_SCHEMES"):
        push(f"{HOST}/1", DQ_URL_SCHEMES=[])


def test_a_push_without_partitions_uses_none(push: Push, live: LiveFrontier) -> None:
    """The settings of the push and of the crawl have DQ_PARTITION_BY = 'none'."""
    HandWorker(live, "worker", replace(OWN, partition_by="none"))
    push(f"{HOST}/1", DQ_PARTITION_BY="none")
    assert set(live.state()["partitions"].values()) == {b""}


BAD = {
    "{": "begins like JSON",
    "{}": "it has no url",
    '{"url": "http://x/", "form": 1}': "'form' is not an attribute",
    '{"url": "http://x/", "callback": "nope"}': "has no callback 'nope'",
    '{"url": "http://x/", "meta": [1]}': 'its "meta" is a list',
    '{"url": "http://x/", "headers": 5}': "headers: expected an object, or a list of pairs, not int",
    '{"url": "http://x/", "meta": {"dq_delay": "soon"}}': "dq_delay",
    '{"url": "http://x/", "meta": {"dq_local": true}}': "dq_local",
    '{"url": "http://x/", "meta": {"download_slot": "a\\u0000"}}': "download slot",
    '{"url": "file:///etc/passwd"}': "DQ_URL_SCHEMES",
    "no url at all": "Missing scheme",
    b"\xff\xfe": "not valid UTF-8",
    "[" * 100_000: "begins like JSON",
    '{"url": "http://x/", "body": "' + "x" * 1_100_000 + '"}': "DQ_MAX_ENTRY_BYTES",
    "http://x/" + "x" * 9_000_000: "it is too long",
}


def test_bad_lines_are_reported_with_their_numbers_and_the_rest_continues(
    push: Push, worker: HandWorker
) -> None:
    """Each bad line has one message with the reason, and the exit status is 1."""
    lines: list[str | bytes] = ["# all that may be wrong", "", f"{HOST}/first"]
    for bad in BAD:
        lines += [bad, f"  {HOST}/{len(lines)}  \r"]
    found = push.file(*lines)
    assert (found["pushed"], found["bad"], push.dq.status) == (1 + len(BAD), len(BAD), 1)
    assert len(push.dq.said) == len(BAD)
    for i, (line, reason) in enumerate(zip(push.dq.said, BAD.values(), strict=True)):
        assert line.startswith(f"scrapy dq push: line {4 + 2 * i}: ")
        assert reason in line
        assert len(line) < 600


def test_strict_stops_at_the_first_bad_line(push: Push, worker: HandWorker) -> None:
    """Earlier lines are pushed and counted, later lines are not."""
    found = push.file(f"{HOST}/1", f"{HOST}/2", "nonsense", f"{HOST}/3", "more nonsense", words=("--strict",))
    assert (found["pushed"], found["bad"], push.dq.status) == (2, 1, 1)
    assert push.urls() == {f"{HOST}/1", f"{HOST}/2"}
    assert push("nonsense", f"{HOST}/4", "--strict")["run"] is None


def test_a_large_file_is_pushed(push: Push, worker: HandWorker) -> None:
    """The file fills several exchanges, and has a byte order mark and no final newline."""
    count = 5000
    found = push.file("\ufeff" + f"{HOST}/0", *(f"{HOST}/{n}?{'x' * 50}" for n in range(1, count)))
    assert (found["pushed"], found["known"]) == (count, 0)


def test_an_interrupted_push_prints_how_many_requests_were_stored(
    push: Push, worker: HandWorker, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that the push did not store are not counted. Standard error has the reason."""
    hand_in, calls = Producer.hand_in, iter((True, True, False))

    async def break_off(producer: Producer) -> None:
        if not next(calls):
            raise FrontierRefused("the crawl was deleted meanwhile")
        await hand_in(producer)

    monkeypatch.setattr(Producer, "hand_in", break_off)
    with pytest.raises(FrontierRefused):
        push.file(*(f"{HOST}/{n}?{'x' * 100}" for n in range(3000)))
    stored = peek(live.redis, live.crawl).census.waiting
    assert 0 < stored < 3000
    assert json.loads(push.dq.printed)["pushed"] == stored
    assert live.members() == {"worker"}


def test_quiet_workers_are_woken(push: Push, worker: HandWorker, live: LiveFrontier) -> None:
    """If all requests are delayed, workers rarely ask for leases. A push raises a counter that they watch."""
    push(f"{HOST}/1")
    first = live.count("words")
    push("nonsense")
    assert live.count("words") == first > 0


def test_lines_are_split_the_same_wherever_a_chunk_ends() -> None:
    """The sizes of the chunks make no difference. A line that is too long is not kept in memory."""
    text = b"one\n\ntwo two\n" + b"x" * 20 + b"\nlast"
    for size in range(1, len(text) + 1):
        splitter = Splitter(10)
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        lines = [line for part in parts for line in splitter.feed(part)] + list(splitter.end())
        assert [line.text for line in lines] == [b"one", b"", b"two two", None, b"last"]
        assert [line.name for line in lines] == [f"line {n}" for n in range(1, 6)]
    endless = Splitter(10)
    for _ in range(100):
        assert list(endless.feed(b"y" * 1000)) == []
    assert len(endless._rest) <= 11


def test_requests_are_read_from_standard_input(
    push: Push, worker: HandWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--file -` reads standard input, which must be open."""
    reader, writer = os.pipe()
    os.write(writer, f"{HOST}/1\n{HOST}/2".encode())
    os.close(writer)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert push("--file", "-")["pushed"] == 2
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CommandError, match="closed"):
        push("--file", "-")


def test_a_terminal_shows_a_reason_without_reading_markup(
    push: Push, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason may quote text that looks like markup of the progress bar."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    lines = (json.dumps({"url": "http://x/", "callback": name}) for name in ("[/b]", "[red]a"))
    assert push.file(*lines)["bad"] == 2
    for said in ("has no callback '[/b]'", "has no callback '[red]a'"):
        assert said in stderr.getvalue()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name URLs, or a --file"),
        ([HOST, "--file", "x"], "not both"),
        (["--file", "/"], "cannot be read: Is a directory"),
        ([HOST, "--callback", "nope"], "has no callback 'nope'"),
        ([HOST, "-a", "novalue"], "NAME=VALUE"),
    ],
)
def test_wrong_usage_changes_nothing(
    push: Push, live: LiveFrontier, worker: HandWorker, words: list[str], says: str
) -> None:
    """The error is one line."""
    before = live.dump()
    with pytest.raises(CommandError, match=says) as error:
        push(*words)
    assert "\n" not in str(error.value)
    assert live.dump() == before


def test_a_push_does_not_change_existing_limits(push: Push, live: LiveFrontier, worker: HandWorker) -> None:
    """Limits that exist are kept, even if this project's settings have others."""
    live.limit(b"a.example", delay_s=7.0)
    push(f"{HOST}/1", DQ_DOMAIN_DELAY=3, DQ_DOMAIN_LIMITS={"a.example": {"delay": 1}})
    assert live.limit(b"a.example") == (7.0, 0, 0.0)


def test_a_crawl_of_another_spider_or_fingerprinter_is_refused(push: Push, live: LiveFrontier) -> None:
    """Another spider could not read the requests. Fingerprints of another fingerprinter match nothing."""
    HandWorker(live, "worker", replace(OWN, spider="another"))
    with pytest.raises(FrontierRefused, match="spider class 'another'"):
        push(f"{HOST}/1")
    live.redis.hset(live.key("meta"), mapping={"spider": OWN.spider, "fingerprinter": "another"})
    with pytest.raises(FrontierRefused, match="REQUEST_FINGERPRINTER_CLASS 'another'"):
        push(f"{HOST}/1")
    assert live.members() == {"worker"}


def test_adopted_fingerprints_count_as_seen(push: Push, live: LiveFrontier, worker: HandWorker) -> None:
    """The command also looks up the fingerprint that scrapy-redis uses."""
    live.call("adopt", worker.epoch, 0, "", 1, [fingerprint(Request(f"{HOST}/1"))])
    assert push(f"{HOST}/1", f"{HOST}/2")["known"] == 1


def test_a_dupefilter_of_the_project_does_not_filter_a_push(
    push: Push, live: LiveFrontier, worker: HandWorker
) -> None:
    """A project's dupefilter filters only the requests that its own worker finds."""
    own = {"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"}
    assert push(f"{HOST}/1", f"{HOST}/1", **own)["pushed"] == 2


# Runs that do not exist yet


def test_a_crawl_given_by_name_must_exist(push: Push, live: LiveFrontier, worker: HandWorker) -> None:
    """A mistyped name starts no crawl."""
    with pytest.raises(NoSuchCrawl, match=f"did you mean --crawl '{live.crawl}'"):
        push(f"{HOST}/1", "--crawl", live.crawl + "x")
    assert not live.redis.exists(f"dq:{{{live.crawl}x}}:meta")


@pytest.fixture
def unnamed(push: Push, live: LiveFrontier) -> Callable[..., Any]:
    """Return a function that pushes to the crawl that the settings name, without --crawl."""
    return lambda *words, **settings: push.text(*words, "--crawl", "", DQ_CRAWL=live.crawl, **settings)


class ByNumber:
    def fingerprint(self, request: Request) -> bytes:
        if request.url.endswith("/none"):
            raise LookupError("it has no number")
        return request.url.encode()


def test_a_fingerprinter_that_fails_makes_a_bad_line(unnamed: Callable[..., str], push: Push) -> None:
    """An exception of the project's own fingerprinter is the reason for the bad line."""
    own = f"{__name__}.ByNumber"
    assert "invalid          1" in unnamed(f"{HOST}/none", REQUEST_FINGERPRINTER_CLASS=own)
    assert push.dq.said[0].endswith("LookupError: it has no number")


def test_a_push_begins_an_absent_crawl(unnamed: Callable[..., str], live: LiveFrontier, push: Push) -> None:
    """The first worker still sets the limits and the run's name. A push with only bad lines starts no run."""
    assert "invalid          1" in unnamed("nonsense")
    assert live.dump() == {}
    text = " ".join(unnamed(f"{HOST}/1").split())
    assert "Run 0 starts with them; its start() also runs. Continue with: scrapy crawl pushed" in text
    assert live.members() == set()
    assert "No worker is alive." in unnamed(f"{HOST}/2")
    live.call("join", "gone", own_identity() | {"pid": 2**22 + 1, "pid_start": "1"}, "epoch", OWN)
    assert "No worker is alive." in unnamed(f"{HOST}/3")
    live.call("flush", ["gone"])
    unnamed(f"{HOST}/1")
    worker = HandWorker(live, "worker", replace(OWN, limits=Limits(concurrency=1), run_name="its own"))
    assert (worker.joined.resumed, worker.joined.limits_before) == (True, None)
    assert live.state()["run name"] == "its own"
    assert len(worker.exchange(want=9).leases) == 1


def test_a_push_after_a_finished_run_begins_the_next_one(
    unnamed: Callable[..., str], push: Push, live: LiveFrontier, worker: HandWorker
) -> None:
    """The next run knows the earlier fingerprints only if SCHEDULER_PERSIST has kept them."""
    push(f"{HOST}/1")
    while worker.exchange(want=1).leases:
        pass
    worker.exchange(*(Ack(entry) for entry in worker.held))
    worker.leave()
    assert "Run 1 starts with them" in unnamed(f"{HOST}/1")
    assert push.urls() == {f"{HOST}/1"}
    again = HandWorker(live, "again", replace(OWN, limits=Limits(concurrency=1)))
    assert (again.joined.resumed, again.joined.limits_before) == (True, None)


def test_a_push_that_begins_a_run_warns_about_failed_requests(
    push: Push, worker: HandWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker prints the same warning. Failed requests are in `seen`, so no worker crawls them again."""
    push(f"{HOST}/1")
    while worker.exchange(want=1).leases:
        pass
    worker.exchange(*(Fail(entry, "HTTP 500", f"{HOST}/1") for entry in worker.held))
    worker.leave(keep_seen=True)
    push(f"{HOST}/2", SCHEDULER_PERSIST=True)
    assert "1 request of the last run had failed for good" in caplog.text


def test_a_push_warns_if_the_settings_will_delete_it(
    push: Push, live: LiveFrontier, worker: HandWorker
) -> None:
    """SCHEDULER_FLUSH_ON_START would delete the requests when the next worker starts."""
    worker.exchange(put(1))
    worker.leave()
    assert "SCHEDULER_FLUSH_ON_START" in push.text(f"{HOST}/1", SCHEDULER_FLUSH_ON_START=True)
