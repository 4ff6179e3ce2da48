"""`scrapy dq limit` shows and changes the limits of a partition, and refuses invalid ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scrapy_dq.commands import steering as command
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier.admin.control import limit
from scrapy_dq.inspection.place import NoSuchCrawl
from support.live_frontier import HandWorker, LiveFrontier, limited, numbers, put, puts, release

HOST = "a.example"
A = HOST.encode()
SPIDERS = {"SPIDER_MODULES": ["support.pushed_spider"]}


def test_without_options_the_current_limits_are_shown(dq: Any, live: Any) -> None:
    """The command changes nothing. A partition without its own limits has the crawl's limits."""
    HandWorker(live, "worker", limited(2.0, 3)).exchange(*puts(A, 1))
    before = live.dump()
    assert dq.found("limit", "--site", HOST) == {
        "partition": HOST, "delay_s": 2.0, "concurrency": 3, "blocked_s": 0.0,
        "budget": 0, "spent": 0,
    }  # fmt: skip
    head, row = dq.text("limit", "--site", HOST).splitlines()
    assert head.split() == ["delay", "concurrency", "budget", "blocked", "partition"]
    assert row.split() == ["2", "s", "3", "any", "no", HOST]
    assert {key: value for key, value in live.dump().items() if not key.endswith(b"meta")} == {
        key: value for key, value in before.items() if not key.endswith(b"meta")
    }
    assert dq.status == 0


def test_each_limit_can_be_set_and_reset(dq: Any, worker: HandWorker) -> None:
    """Each option changes one limit. --default restores the limits of the settings."""
    worker.exchange(*puts(A, 1))
    assert dq.found("limit", "pushed", "--site", HOST, "--delay", "1.5", **SPIDERS)["delay_s"] == 1.5
    assert dq.found("limit", "--site", HOST, "--concurrency", "2")["concurrency"] == 2
    assert dq.found("limit", "--site", HOST, "--budget", "7")["budget"] == 7
    assert "0 of 7" in dq.text("limit", "--site", HOST)
    assert dq.found("limit", "--site", HOST, "--budget", "0")["budget"] == 0
    found = dq.found("limit", "--site", HOST, "--block", "60")
    assert (found["delay_s"], found["concurrency"]) == (1.5, 2)
    assert 30 < found["blocked_s"] <= 60
    row = dq.text("limit", "--site", HOST).splitlines()[1]
    assert "1.5 s" in row
    assert re.search(r"for (1 min 0|60|[345]\d) s", row)
    assert dq.found("limit", "--site", HOST, "--unblock")["blocked_s"] == 0
    assert dq.found("limit", "--site", HOST, "--default")["concurrency"] == 0
    assert "none   no limit     any     no       a.example" in dq.text("limit", "--site", HOST)


def test_workers_obey_a_new_limit(dq: Any, worker: HandWorker) -> None:
    """From the next exchange on, no more leases are given than the limit allows."""
    worker.exchange(*puts(A, 9))
    dq.text("limit", "--site", HOST, "--concurrency", "2")
    assert len(numbers(worker.exchange(want=9))) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--delay", "-1"], ["--delay", "nan"], ["--delay", "inf"], ["--delay", "x"], ["--delay", "86401"],
        ["--concurrency", "1.5"], ["--concurrency", "-1"], ["--concurrency", "1000001"],
        ["--concurrency", "٣"], ["--block", "0"], ["--block", "31536001"], ["--block", ""],
        ["--budget", "-1"], ["--budget", "1e3"],
    ],
)  # fmt: skip
def test_an_invalid_number_is_a_usage_error(
    dq: Any, worker: HandWorker, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The error names the allowed values, and no limit changes."""
    worker.exchange(*puts(A, 1))
    with pytest.raises(SystemExit) as end:
        dq.text("limit", "--site", HOST, *words)
    assert end.value.code == 2
    assert ": expected " in capsys.readouterr().err
    assert dq.found("limit", "--site", HOST) == {
        "partition": HOST, "delay_s": 0.0, "concurrency": 0, "blocked_s": 0.0,
        "budget": 0, "spent": 0,
    }  # fmt: skip


@pytest.mark.parametrize("where", ["waits", "in flight", "delayed", "came back"])
def test_a_known_partition_is_limited_without_a_warning(dq: Any, worker: HandWorker, where: str) -> None:
    """A partition is known if it has an entry anywhere, or its own limits."""
    due_in = 60.0 if where == "delayed" else 0.0
    want = 1 if where in ("in flight", "came back") else 0
    worker.exchange(
        put(1, partition=A, due_in=due_in), put(2, partition=b"b.example", due_in=60.0), want=want
    )
    if where == "came back":
        worker.exchange(release(1))
    assert dq.found("limit", "--site", HOST)["partition"] == HOST
    assert dq.said == []
    dq.text("limit", "--site", "new.example", "--concurrency", "2")
    assert len(dq.said) == 1
    assert dq.found("limit", "--site", "new.example")["concurrency"] == 2
    assert dq.said == []


def test_an_unknown_partition_is_reported_with_similar_names(dq: Any, worker: HandWorker) -> None:
    """Setting a limit prints a warning; showing it is an error. Both messages list similar names."""
    worker.exchange(*puts(A, 2), want=1)
    assert dq.found("limit", "--site", "a.exmaple", "--delay", "2")["delay_s"] == 2
    assert dq.status == 0
    (line,) = dq.said
    assert line == (
        "scrapy dq limit: the limit is set, but this crawl has no requests in a partition of that name; did "
        "you mean 'a.example'?"
    )
    with pytest.raises(CommandError, match=r"in a partition of that name; did you mean 'a.example'"):
        dq.text("limit", "--site", "b.example")
    with pytest.raises(CommandError, match=r"existing partitions: a.example, a.exmaple"):
        dq.text("limit", "--site", "xyz")


@pytest.mark.parametrize(
    ("there", "typed", "partition"),
    [
        *(("127.0.0.1", typed, "127.0.0.1") for typed in ("127.1", "0x7f.1", "[::ffff:7f00:1]")),
        ("xn--bcher-kva.example", "Bücher.example", "xn--bcher-kva.example"),
        ("a.example", "XN--BCHER-KVA.example.", "xn--bcher-kva.example"),
        ("a.example", "A.example", "a.example"),
        ("a.example", "MySlot", "MySlot"),  # no host has capitals, but a slot without requests may have
    ],
)
def test_a_site_is_limited_in_any_spelling(
    dq: Any, worker: HandWorker, there: str, typed: str, partition: str
) -> None:
    """The limit is stored under the name that requests use, even before there are requests."""
    worker.exchange(*puts(there.encode(), 2))
    assert dq.found("limit", "--site", typed, "--delay", "2")["partition"] == partition


def test_a_download_slot_that_looks_like_an_address_is_limited(dq: Any, worker: HandWorker) -> None:
    """A partition with exactly the typed name has precedence over the address that this name also means."""
    worker.exchange(*puts(b"127.1", 2), *puts(b"127.0.0.1", 2))
    assert dq.found("limit", "--site", "127.1", "--delay", "2")["partition"] == "127.1"


def test_a_crawl_without_partitions_has_one_without_a_name(dq: Any, worker: HandWorker) -> None:
    """All requests of such a crawl are in one partition with an empty name."""
    worker.exchange(*puts(b"", 2))
    with pytest.raises(CommandError, match="too long"):
        dq.text("limit", "--site", "x" * 513)
    with pytest.raises(CommandError, match="existing partitions: ''"):
        dq.text("limit", "--site", HOST)
    assert dq.found("limit", "--site", "", "--delay", "1")["delay_s"] == 1
    assert dq.said == []


def test_limits_of_a_finished_run_cannot_be_changed(dq: Any, worker: HandWorker) -> None:
    """The change would have no effect, because the next run takes its limits from the settings."""
    worker.exchange()
    for words in ([], ["--delay", "1"]):
        with pytest.raises(
            CommandError, match="the run is finished: the next run uses the limits of the settings"
        ):
            dq.text("limit", "--site", HOST, *words)


def test_a_crawl_that_is_deleted_during_the_command_gets_no_limit(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command does not create the crawl again by setting a limit."""
    worker.exchange(*puts(A, 1))

    def deleted(*args: Any, **options: Any) -> Any:
        live.redis.delete(*live.redis.keys(f"{live.key('')}*".replace("{", "[{]")))
        return limit(*args, **options)

    monkeypatch.setattr(command, "limit", deleted)
    with pytest.raises(NoSuchCrawl, match="there is no crawl"):
        dq.text("limit", "--site", HOST, "--delay", "1")
    assert not live.key_names()
