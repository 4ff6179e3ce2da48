"""`scrapy dq failed` and `dead`: lists, and one in full."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest

from scrapy_dq.codec.formats import REQUEST
from scrapy_dq.commands import failures
from scrapy_dq.commands.failures import MOST_ATTRIBUTES
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import dead
from scrapy_dq.frontier.model import Bury, Fail
from scrapy_dq.inspection.failures import LONGEST_REASON
from support.live_frontier import HandWorker, LiveFrontier, put
from support.stored_requests import stored

COMMANDS = ("failed", "dead")


def end_badly(worker: HandWorker, count: int, begin: int = 0) -> None:
    """Let *count* requests fail, and as many be buried."""
    urls = {n: f"http://x.example/{n}" for n in range(begin, begin + 2 * count)}
    worker.exchange(
        *[put(n, payload=stored(url, cb_kwargs={"n": n})) for n, url in urls.items()], want=2 * count
    )
    held = sorted(worker.held)[: 2 * count]
    worker.exchange(
        *[Fail(entry, f"ValueError: {int(entry)}", urls[int(entry)]) for entry in held[:count]],
        *[Bury(entry, f"died 3 times: {int(entry)}") for entry in held[count:]],
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_each_is_reported_with_url_reason_time_worker(dq: Any, worker: HandWorker, name: str) -> None:
    """To programs with its request, to people in lines of 80."""
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
    assert "; 1 shown." in dq.text(name, "-n", "1")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_begins_with_the_causes_and_ends_with_the_way_back(
    dq: Any, worker: HandWorker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each cause with its host, the most frequent first; the number in a reason is no cause, its place is."""
    monkeypatch.setattr(failures, "MOST_CAUSES", 1)
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
        ["and", "3", "smaller", "groups"],
        [],
    ]
    assert lines[-2:] == ["To run them again:", f"  scrapy dq retry --crawl {dq.crawl} --{name} --all"]


@pytest.mark.parametrize("name", COMMANDS)
def test_one_is_shown_in_full(dq: Any, worker: HandWorker, name: str) -> None:
    """By the id of the list, with or without a spider before it."""
    end_badly(worker, 2)
    listed = dq.listed(name)
    for each in listed:
        assert dq.found(name, each["id"]) == each
        text = dq.text(name, each["id"])
        for part in (each["id"], each["url"], "request: callback", "parse_page", '{"n": '):
            assert part in text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stored_reason_is_shown_without_logins(dq: Any, worker: HandWorker, name: str) -> None:
    """Versions before stored them as Scrapy's errors have them."""
    payload = stored("http://us%20er:S3%20kr@x.example/")
    worker.exchange(put(1, payload=payload), want=1)
    (entry,) = worker.held
    reason = "ValueError: invalid: us er:S3 kr@x.example, and ftp://u:S3kr@y.example"
    worker.exchange(Fail(entry, reason, "http://x.example/") if name == "failed" else Bury(entry, reason))
    (found,) = dq.listed(name)
    assert found["reason"] == "ValueError: invalid: ...@x.example, and ftp://...@y.example"
    assert "S3" not in dq.text(name) + dq.text(name, found["id"])


def test_of_very_many_attributes_some_are_shown(dq: Any, worker: HandWorker) -> None:
    """A table of the 90,000 that an entry may hold took 42 s."""
    names = [f"k{n:05}" for n in range(20_000)]
    payload = bytes((REQUEST,)) + msgpack.packb(dict.fromkeys(names, 1))
    worker.exchange(put(1, reason="of no class", payload=payload))
    (listed,) = dq.listed("dead")
    assert set(dq.found("dead", listed["id"])["request"]) >= set(names)
    lines = dq.text("dead", listed["id"]).splitlines()
    assert len(lines) == 1 + MOST_ATTRIBUTES + 1
    assert lines[-1] == "and 19,961 more (--json lists all)"  # with six lines of the record, five defaults


@pytest.mark.parametrize("name", COMMANDS)
def test_an_invalid_id_is_reported(dq: Any, worker: HandWorker, name: str) -> None:
    """Whether it cannot be one, or is not kept."""
    end_badly(worker, 1)
    with pytest.raises(CommandError, match=r"has no .* 0{24}"):
        dq.text(name, "0" * 24)
    with pytest.raises(CommandError, match="'xyz' is not an id"):
        dq.text(name, "spider", "xyz")
    with pytest.raises(CommandError, match="at most a spider and an id"):
        dq.text(name, "spider", "0" * 24, "more")


@pytest.mark.parametrize("name", COMMANDS)
def test_none_is_no_failure(dq: Any, worker: HandWorker, name: str) -> None:
    """And a count says so."""
    assert dq.text(name).startswith("0 ")
    assert dq.listed(name) == []
    assert dq.status == 0


def test_a_failed_request_is_found_far_down_the_list(dq: Any, worker: HandWorker) -> None:
    """Which is read in parts."""
    for begin in range(0, 900, 100):
        end_badly(worker, 50, begin)
    first = dq.listed("failed", "-n", "1000")[-1]
    assert dq.found("failed", first["id"]) == first


def test_dead_letters_are_bounded(live: LiveFrontier, worker: HandWorker) -> None:
    """They are scanned in parts until there are enough."""
    for begin in range(0, 1000, 200):
        end_badly(worker, 100, begin)
    assert len(dead(live.redis, live.crawl, 0)) == 0
    assert len(dead(live.redis, live.crawl, 30)) == 30
    everything = dead(live.redis, live.crawl, 1000)
    assert len({letter.entry_id for letter in everything}) == 500
    assert [letter.at for letter in everything] == sorted((letter.at for letter in everything), reverse=True)


def test_a_long_reason_takes_no_time(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """To look for logins takes a time that grows with the square of a word: 1 MB would take half an hour."""
    worker.exchange(put(1))
    record = msgpack.packb([b"a:" * 500_000, 10**12, b"w", 1, bytes(16), b"p", b""])
    live.redis.hset(live.key("dead"), b"\0" * 12, record)
    (found,) = dq.listed("dead")
    assert found["reason"] == "a:" * (LONGEST_REASON // 2)
    assert "a:" in dq.text("dead", "0" * 24)


def test_what_was_dead_before_any_worker_had_it_says_so(dq: Any, worker: HandWorker) -> None:
    """Of a put that cannot be served."""
    worker.exchange(put(1, reason="dq_delay = 'x' is no number", payload=stored("http://x/")))
    assert "before any worker leased it" in dq.text("dead")
    (found,) = dq.listed("dead")
    assert (found["worker"], found["url"]) == ("", "http://x/")
