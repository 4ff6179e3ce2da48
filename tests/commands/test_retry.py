"""`scrapy dq retry`: which requests it moves, its question, and its output for a finished run."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from commands.test_listing import end_badly
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import peek, records
from scrapy_dq.frontier.model import Status
from scrapy_dq.frontier.moves import Fail
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, entry_id, fail, put, puts
from support.stored_requests import stored


def url(n: int) -> str:
    return f"http://x.example/{n}"


def counts(live: LiveFrontier) -> tuple[int, int, int]:
    """Return the numbers of waiting, failed and dead entries."""
    census = peek(live.redis, live.crawl).census
    return census.waiting, census.failed, census.dead


class Terminal(io.StringIO):
    """A terminal in which the user has already typed an answer."""

    def isatty(self) -> bool:
        return True


def test_retry_all_prints_the_number_and_asks(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `y` counts as consent. Without a terminal, the command needs --yes."""
    end_badly(worker, 3)
    for answer in ("n\n", "\n", "", "ja\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        with pytest.raises(CommandError, match="nothing was changed"):
            dq.text("retry", "--all")
        assert dq.said == ["Continue? [y/N] "]
    for nobody in (io.StringIO("y\n"), None):
        monkeypatch.setattr(sys, "stdin", nobody)
        with pytest.raises(CommandError, match="--yes"):
            dq.text("retry", "--all")
    assert counts(live) == (0, 3, 3)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    text = dq.text("retry", "--all")
    asked, told = " ".join(text.split()).split(" Back in the backlog: ")
    assert asked.startswith(f"To the backlog of crawl {live.crawl!r} at 127.0.0.1:")
    assert asked.endswith(": 3 failed requests and 3 dead letters.")
    assert told == "3 failed requests and 3 dead letters."
    assert counts(live) == (6, 0, 0)
    assert "Nothing to retry." in dq.text("retry", "--all", "--failed")
    assert dq.status == 0


def test_entries_are_retried_by_id_or_url(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """Ids and URLs select failed and dead requests alike."""
    end_badly(worker, 3)
    failed, dead = dq.listed("failed"), dq.listed("dead")
    found = dq.found("retry", failed[0]["id"], dead[0]["url"], failed[1]["url"])
    assert (found["failed"], found["dead"], found["missing"]) == (2, 1, [])
    assert counts(live) == (3, 1, 2)
    assert worker.take(9)
    assert "Back in the backlog: 1 failed request." in dq.text("retry", failed[2]["url"])
    assert dq.status == 0


def test_a_request_is_retried_by_a_url_whose_login_is_not_shown(dq: Any, worker: HandWorker) -> None:
    """Lists show the URL without its login, but the user types the whole URL to select the request."""
    with_login = "http://me:s3cret@x.example/"
    worker.exchange(*(put(n, payload=stored(with_login)) for n in range(2)), want=2)
    worker.exchange(Fail(entry_id(0), "why", with_login), bury(1))
    for name in ("failed", "dead"):
        assert [each["url"] for each in dq.listed(name)] == ["http://...@x.example/"]
        assert "s3cret" not in dq.text(name)
    found = dq.found("retry", with_login)
    assert (found["failed"], found["dead"], found["missing"]) == (1, 1, [])


def test_unknown_ids_and_urls_are_reported(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """The command still moves the known requests. The exit status is 1 if any request is missing."""
    end_badly(worker, 2)
    missing = ["0" * 24, "http://x.example/none"]
    text = dq.text("retry", *missing, url(0))
    assert "Back in the backlog: 1 failed request." in text
    assert dq.said == [f"Not among the failed or dead: {' '.join(missing)}"]
    assert dq.status == 1
    assert dq.found("retry", *missing)["missing"] == missing
    assert counts(live) == (1, 1, 2)
    dq.said.clear()
    dq.text("retry", "http://x.example/\x1b[2J\n", "x://" + "x" * 1000)
    assert dq.said == [f"Not among the failed or dead: http://x.example/?[2J? x://{'x' * 1000}"]


def test_a_request_is_retried_by_a_long_url(dq: Any, worker: HandWorker) -> None:
    """The URL in a record is cut to 2,000 characters, but the stored request has the whole URL."""
    long = url(1) + "?" + "x" * 3000
    for n, words in enumerate(([long], ["--match", f"{url(1)}*x"])):
        worker.exchange(put(n, payload=stored(long)), put(n + 2, payload=stored(long + "y")), want=2)
        worker.exchange(*(Fail(entry, "why", long[:2000]) for entry in sorted(worker.held)))
        assert dq.found("retry", *words)["failed"] == 1
        assert worker.take(9) == [n]
        worker.exchange(ack(n))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--match", "*/1"], (1, 0)),
        (["--match", "http://x.example/[12]"], (2, 0)),
        (["--match", "*/1", "--match", "*/3"], (1, 1)),
        (["--match", "*", "--dead"], (0, 3)),
        (["--match", "*", "--failed"], (3, 0)),
        (["--reason", "valueerror"], (3, 0)),
        (["--reason", "DIED"], (0, 3)),
        (["--reason", "ValueError: 1"], (1, 0)),
        (["--match", "*/[0-9]", "--reason", "5"], (0, 1)),
        (["--match", "x.example"], (0, 0)),
    ],
)
def test_entries_are_retried_by_pattern_and_reason(
    dq: Any, worker: HandWorker, words: list[str], expected: tuple[int, int]
) -> None:
    """A pattern must match the whole URL. A part of the reason is enough, in upper or lower case."""
    end_badly(worker, 3)
    found = dq.found("retry", *words)
    assert (found["failed"], found["dead"]) == expected
    assert dq.status == 0


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["a.example"], 2),
        (["A.EXAMPLE."], 2),
        (["a.example", "--reason", "ValueError: 1"], 1),
        (["a.example", "--dead"], 0),
        (["c.example"], 0),
    ],
)
def test_failed_requests_of_one_site_are_retried(
    dq: Any, worker: HandWorker, words: list[str], count: int
) -> None:
    """The site may be spelled in another way."""
    worker.exchange(*puts(b"a.example", 2), *puts(b"b.example", 1, begin=2), want=3)
    worker.exchange(*(fail(n, f"ValueError: {n}") for n in range(3)))
    found = dq.found("retry", "--site", *words)
    assert (found["failed"], found["missing"]) == (count, [] if count else [words[0]])
    assert dq.status == (0 if count else 1)


def test_an_unreadable_entry_is_retried_without_a_url(
    dq: Any, live: LiveFrontier, worker: HandWorker
) -> None:
    """The entry's id, its reason or --all select the entry."""
    worker.exchange(*(put(n, payload=b"\xffno entry") for n in range(3)), want=3)
    worker.exchange(*(bury(n, f"unreadable {n}") for n in range(3)))
    assert dq.found("retry", "--match", "*://*")["dead"] == 0
    assert dq.found("retry", entry_id(0).hex())["dead"] == 1
    assert dq.found("retry", "--reason", "unreadable 1")["dead"] == 1
    assert dq.found("retry", "--all", "--yes")["dead"] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "select some with"),
        (["--failed"], "select some with"),
        (["--all", "--match", "*"], "select some with"),
        (["--all", "http://x.example/1"], "select some with"),
        (["spider", "a.example", "--all"], "'a.example' is not an id .* or a URL; --site names a site"),
    ],
)
def test_wrong_usage_changes_nothing(
    dq: Any, live: LiveFrontier, worker: HandWorker, words: list[str], says: str
) -> None:
    """The error names the valid options."""
    end_badly(worker, 1)
    with pytest.raises(CommandError, match=says):
        dq.text("retry", *words)
    assert counts(live) == (0, 1, 1)


def test_the_retry_of_a_finished_run_prints_how_to_continue(dq: Any, live: LiveFrontier) -> None:
    """The run is open again, and still has its fingerprints."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, payload=stored(url(1))), want=1)
    assert worker.exchange(fail(1)).status is Status.FINISHED
    worker.leave()
    known = "The run was finished and is open again; it still knows what it has seen."
    text = dq.text("retry", "--all", "--yes")
    assert text.splitlines()[2:] == [known, f"Continue with: scrapy crawl <spider> -s DQ_CRAWL={live.crawl}"]
    assert counts(live) == (1, 0, 0)
    again = HandWorker(live, "again")
    again.exchange(want=1)
    again.exchange(fail(1))
    again.exchange(put(2))
    again.leave()
    assert "No worker is alive.\nContinue with: scrapy crawl" in dq.text("retry", "http://localhost/1")


def test_a_retry_that_moves_nothing_does_not_open_a_finished_run(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was deleted during the command. So no run is opened, and no line says how to continue."""

    decode = records.failed

    def read(record: bytes) -> records.Entry:
        live.redis.delete(live.key("failed"))
        return decode(record)

    monkeypatch.setattr("scrapy_dq.frontier.records.failed", read)
    worker.exchange(put(1, payload=stored(url(1))), want=1)
    assert worker.exchange(fail(1)).status is Status.FINISHED
    worker.leave()
    text = dq.text("retry", "--all", "--yes")
    assert "1 were not moved" in text
    assert "is open again" not in text
    assert "Continue with" not in text
    assert dq.status == 1
    assert peek(live.redis, live.crawl).phase == "finished"
