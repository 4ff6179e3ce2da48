"""`scrapy dq clear` deletes a site's requests, fingerprints, a crawl or old crawls. It asks first."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from commands.test_listing import end_badly
from commands.test_push import HOST, OWN, SPIDERS, Push
from scrapy_dq.commands.input import confirm
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.admin import liveness
from scrapy_dq.frontier.admin.drop import waiting_in
from scrapy_dq.frontier.model import Admission, FrontierRefused, Seen, Status
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.inspection.place import NoSuchCrawl
from scrapy_dq.scrapy_redis import fingerprint
from support.given import StartRedis
from support.killed import MAX_COUNT, killed_before
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put, puts
from support.waiting import Stopwatch

TTL = {"DQ_WORKER_TTL": 1}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands read heartbeats every 50 ms instead of every second."""
    monkeypatch.setattr(liveness, "POLL_S", 0.05)


@pytest.fixture
def beaten(live: LiveFrontier, worker: HandWorker) -> Iterator[HandWorker]:
    """Yield a worker of another machine whose heart beats."""
    with beating(live, worker):
        yield worker


@contextmanager
def beating(live: LiveFrontier, worker: HandWorker) -> Iterator[None]:
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.01):
            if live.redis.exists(live.key("beats")):
                live.redis.hincrby(live.key("beats"), worker.worker_id, 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_clear_prints_the_counts_and_asks(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints all counts. If the user agrees, it deletes the crawl's keys, and no other key."""
    end_badly(worker, 2)
    worker.exchange(*puts(b"a", 5, 100), put(200, due_in=900), want=2)
    worker.leave()
    live.redis.set(live.crawl, "mine")
    before = live.dump()
    for answer in (io.StringIO("y\n"), io.StringIO("")):
        monkeypatch.setattr(sys, "stdin", answer)
        with pytest.raises(CommandError, match="--yes"):
            dq.text("clear", "--all")
    assert live.dump() == before
    text = dq.text("clear", "--all", "--yes")
    for part in ("0 workers", "5 waiting", "1 delayed", "2 failed", "2 dead", "is deleted."):
        assert part in text
    assert live.dump() == {}
    assert live.redis.get(live.crawl) == b"mine"
    live.redis.delete(live.crawl)
    with pytest.raises(NoSuchCrawl, match="there is no crawl"):
        dq.text("clear", "--all", "--yes")


def test_clear_refuses_while_a_worker_is_alive(dq: Any, live: LiveFrontier, beaten: HandWorker) -> None:
    """The error names the worker and the two ways to continue."""
    before = live.redis.hgetall(live.key("meta"))
    with pytest.raises(FrontierRefused, match="worker worker of crawl") as refusal:
        dq.text("clear", "--all", "--yes", **TTL)
    for part in ("scrapy dq stop", "--force", "nothing was deleted"):
        assert part in str(refusal.value)
    assert "SCHEDULER_FLUSH_ON_START" not in str(refusal.value)
    assert dq.said == ["Watching for up to 1 s whether worker is alive"]
    assert live.redis.hgetall(live.key("meta")) == before


def test_a_worker_that_is_silent_for_long_is_dead(
    dq: Any, live: LiveFrontier, worker: HandWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """The command watches the worker's heartbeat once, for DQ_WORKER_TTL."""
    caplog.set_level("INFO", liveness.__name__)
    worker.exchange(put(1), put(2), want=1)
    began = time.monotonic()
    found = dq.found("clear", "--all", "--yes", **TTL)
    assert time.monotonic() - began >= 1
    assert (found["deleted"]["waiting"], found["deleted"]["in_flight"]) == (1, 1)
    assert live.dump() == {}
    assert caplog.text.count("clear: watching for up to 1 s whether worker is alive") == 1


def test_clear_does_not_wait_for_a_worker_that_died_on_this_machine(
    dq: Any, live: LiveFrontier, worker: HandWorker
) -> None:
    """The command sees that the worker's process no longer exists."""
    gone = own_identity() | {"pid": 2**22 + 1, "pid_start": "1"}
    worker.leave()
    live.call("join", "gone", gone, "epoch", IDENTITY)
    began = Stopwatch()
    dq.text("clear", "--all", "--yes", DQ_WORKER_TTL=60)
    assert began.seconds < 5
    assert live.dump() == {}


def test_force_deletes_under_workers(dq: Any, live: LiveFrontier, beaten: HandWorker) -> None:
    """The output warns that workers will close. A worker's next exchange reports that the crawl is gone."""
    beaten.exchange(put(1), put(2), want=1)
    text = dq.text("clear", "--all", "--force", "--yes", DQ_WORKER_TTL=60)
    assert "close with reason frontier_lost" in text
    assert beaten.exchange(put(3)).status is Status.LOST


def test_clear_refuses_if_a_worker_joins_during_the_question(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command looks for live workers again after the user has answered."""
    worker.exchange(put(1))
    worker.leave()
    with ExitStack() as stack:

        def consent(question: str, options: Any) -> None:
            stack.enter_context(beating(live, HandWorker(live, "late")))

        monkeypatch.setattr(confirm, "require_consent", consent)
        with pytest.raises(FrontierRefused, match="worker late"):
            dq.text("clear", "--all", **TTL)
    assert live.members() == {"late"}


def finish(live: LiveFrontier, days_ago: float) -> None:
    """Finish a run of one page, and change the time of its end to that number of days ago."""
    worker = HandWorker(live, f"worker of {live.crawl}")
    worker.exchange(put(1), want=1)
    worker.exchange(ack(1))
    worker.exchange()
    worker.leave(keep_seen=True)
    assert peek(live.redis, live.crawl).phase == "finished"
    live.redis.hset(live.key("meta"), "ended", int((live.redis.time()[0] - days_ago * 86_400) * 1000))


def test_crawls_that_were_finished_long_ago_are_listed_and_deleted(
    start_redis: StartRedis, dq_at: Callable[[str], Any]
) -> None:
    """Without the user's consent, no crawl is deleted. Open and recently ended crawls are always kept."""
    server = start_redis()
    with ExitStack() as stack:
        crawls = {
            name: stack.enter_context(closing(LiveFrontier(server.url, name)))
            for name in ("open", "lately", "old [1]", "older", "retried")
        }
        HandWorker(crawls["open"], "idle").exchange(put(1))
        for name, days in (("lately", 2), ("old [1]", 31), ("older", 400), ("retried", 400)):
            finish(crawls[name], days)
        again = HandWorker(crawls["retried"], "again")
        again.exchange(put(2))
        again.leave()
        crawls["older"].redis.set("foreign", "stays")
        dq = dq_at(server.url)
        dq.crawl = ""
        before = crawls["older"].dump()
        with pytest.raises(CommandError, match="nothing was changed"):
            dq.lines("clear", "--finished-before", "30d")
        listed = [line.split(":")[0].strip() for line in dq.printed.splitlines() if ": run " in line]
        assert listed == ["old [1]", "older"]
        assert crawls["older"].dump() == before
        found = dq.found("clear", "--finished-before", "30d", "--yes")
        assert (found["deleted"], found["kept"]) == (["old [1]", "older"], {})
        left = {name for name, live in crawls.items() if live.dump()}
        assert left == {"open", "lately", "retried"}
        assert crawls["older"].redis.get("foreign") == b"stays"
        assert "No finished crawl" in dq.text("clear", "--finished-before", "720h")
        for words in (("books",), ("--force",)):
            with pytest.raises(WrongUsage):
                dq.text("clear", "--finished-before", "30d", *words)


def test_a_crawl_that_begins_again_before_the_answer_stays(
    start_redis: StartRedis, dq_at: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user did not consent to delete a new run. Only the other crawl is deleted. The exit status is 1."""
    server = start_redis()
    with ExitStack() as stack:
        old, again = (
            stack.enter_context(closing(LiveFrontier(server.url, name))) for name in ("old", "again")
        )
        for live in (old, again):
            finish(live, 31)

        def consent(question: str, options: Any) -> None:
            HandWorker(again, "next").exchange(put(2))

        monkeypatch.setattr(confirm, "require_consent", consent)
        dq = dq_at(server.url)
        dq.crawl = ""
        with pytest.raises(CommandError, match="crawl 'again': a new run has begun"):
            dq.lines("clear", "--finished-before", "30d")
        assert dq.printed.splitlines()[-1] == "1 crawl is deleted."
        assert old.dump() == {}
        assert peek(again.redis, "again").census.waiting == 1


@pytest.mark.parametrize("name", ["meta", "members", "seen", "discarded"])
def test_a_key_of_another_type_is_deleted_with_the_rest(
    dq: Any, live: LiveFrontier, worker: HandWorker, name: str
) -> None:
    """With --force, a key of any type is deleted with all others."""
    worker.exchange(put(1, partition=b"a", token=b"token", admission=Admission.SEEN), want=1)
    live.redis.delete(live.key(name))
    live.redis.set(live.key(name), "not ours")
    dq.found("clear", "--all", "--yes", "--force", **TTL)
    assert not live.key_names()


def test_a_crawl_that_cannot_be_read_is_not_deleted_without_force(
    dq: Any, live: LiveFrontier, worker: HandWorker
) -> None:
    """The error names the command that deletes the crawl."""
    live.redis.delete(live.key("rotation"))
    live.redis.set(live.key("rotation"), "not ours")
    with pytest.raises(FrontierRefused, match=r"has another type: .* clear --all --force"):
        dq.found("clear", "--all", "--yes", **TTL)
    assert "rotation" in live.key_names()


TRAP = "trap.example"
YES = ("--site", TRAP, "--yes")


@pytest.fixture
def filled(live: LiveFrontier, worker: HandWorker) -> HandWorker:
    worker.exchange(*(put(n, partition=TRAP.encode()) for n in range(20)), want=2)
    worker.exchange(*(put(n, partition=TRAP.encode(), due_in=99.0) for n in range(20, 25)))
    worker.exchange(*(put(n, partition=b"shop.example") for n in range(30, 35)))
    return worker


def test_the_waiting_requests_of_one_partition_are_dropped(
    dq: Any, live: LiveFrontier, filled: HandWorker
) -> None:
    """Workers keep their leases. An event records the number of dropped requests."""
    assert dq.text("clear", *YES) == f"23 requests of {TRAP} dropped.\n"
    status = dq.found("status", "--no-rate")
    assert (status["waiting"], status["delayed"], status["in_flight"]) == (5, 0, 2)
    assert "23 requests dropped: trap.example" in dq.text("events")
    assert dq.found("clear", *YES)["dropped"] == 0


def test_nothing_is_dropped_without_consent(
    dq: Any, live: LiveFrontier, filled: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match="standard input is not a terminal"):
        dq.text("clear", "--site", TRAP)
    answer = io.StringIO("n\n")
    monkeypatch.setattr(answer, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", answer)
    with pytest.raises(CommandError, match="nothing was changed"):
        dq.text("clear", "--site", TRAP)
    assert "Drop 18 requests of trap.example, and its delayed requests?" in dq.said[-1]
    assert waiting_in(live.redis, live.crawl, TRAP) == 18


@pytest.mark.usefixtures("filled")
def test_a_misspelled_site_is_refused(dq: Any) -> None:
    """Another spelling of the same host name means the same site."""
    with pytest.raises(CommandError, match=r"no requests in a partition of that name; did you mean"):
        dq.text("clear", "--site", "trap.exampel", "--yes")
    with pytest.raises(WrongUsage, match="is not the name of a site"):
        dq.text("clear", "--site", "", "--yes")
    assert dq.found("clear", "--site", "TRAP.example.", "--yes")["dropped"] == 23


def test_a_killed_clear_of_a_site_can_be_repeated(dq: Any, live: LiveFrontier, filled: HandWorker) -> None:
    """After each kill -9, the next command drops the remaining requests."""
    kills = 0
    while kills < MAX_COUNT and killed_before(kills + 1, lambda: dq.text("clear", *YES)):
        kills += 1
        live.state()
    assert kills > 3
    status = dq.found("status", "--no-rate")
    assert (status["waiting"], status["delayed"], status["in_flight"]) == (5, 0, 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], r"choose one: --site HOST .*, --seen \[URL ...\] .*, --all .*, --finished-before AGE"),
        (["--all", "--site", TRAP], "choose one"),
        (["--seen", "http://a/", "--all"], "choose one"),
        (["--site", TRAP, "--force"], "--force belongs to --all"),
        (["--all", "--strict"], "--file and --strict belong to --seen"),
        (["--seen", "http://a/"], "name the spider before the URLs"),
    ],
)
def test_clear_needs_to_know_what_to_delete(
    dq: Any, live: LiveFrontier, worker: HandWorker, words: list[str], says: str
) -> None:
    before = live.dump()
    with pytest.raises(WrongUsage, match=says):
        dq.text("clear", *words, "--yes")
    assert live.dump() == before


@pytest.fixture
def pusher(live: LiveFrontier) -> HandWorker:
    """Return a worker with the fingerprinter of the spider `pushed`."""
    return HandWorker(live, "worker", OWN)


def test_a_forgotten_url_can_be_pushed_again(dq: Any, tmp_path: Path, pusher: HandWorker) -> None:
    """The URL may be written in another way. The output counts forgotten URLs and URLs not seen before."""
    push = Push(dq, tmp_path)
    push(f"{HOST}/1?a=1&b=2", f"{HOST}/2")
    found = dq.found("clear", "pushed", "--seen", f"{HOST}/1?b=2&a=1", f"{HOST}/9", **SPIDERS)
    assert (found["forgotten"], found["not_seen"], found["bad"], dq.status) == (1, 1, 0, 0)
    assert push(f"{HOST}/1?a=1&b=2", f"{HOST}/2")["pushed"] == 1
    text = dq.text("clear", "pushed", "--seen", f"{HOST}/2", **SPIDERS)
    assert "forgotten        1\nnot seen before  0" in text


def test_a_file_can_list_the_requests_to_forget(dq: Any, tmp_path: Path, pusher: HandWorker) -> None:
    """The body is a part of the request. The command reports bad lines, and reads the others."""
    push, file = Push(dq, tmp_path), tmp_path / "forget.jsonl"
    slot = json.dumps({"url": f"{HOST}/1", "method": "POST", "body": "x"})
    push.file(f"{HOST}/1", slot, f"{HOST}/2")
    file.write_text(f"{slot}\nnonsense\n# no line\n{HOST}/2\n")
    found = dq.found("clear", "pushed", "--seen", "--file", str(file), **SPIDERS)
    assert (found["forgotten"], found["not_seen"], found["bad"], dq.status) == (2, 0, 1, 1)
    assert dq.said == ["scrapy dq clear: line 2: ValueError: Missing scheme in request url: nonsense"]
    assert push.file(f"{HOST}/1", slot, f"{HOST}/2")["known"] == 1
    found = dq.found("clear", "pushed", "--seen", "--file", str(file), "--strict", **SPIDERS)
    assert (found["forgotten"], found["bad"]) == (1, 1)
    assert "invalid          1" in dq.text("clear", "pushed", "--seen", "--file", str(file), **SPIDERS)


def test_thousands_of_requests_are_forgotten(dq: Any, tmp_path: Path, pusher: HandWorker) -> None:
    """The command sends the fingerprints of a large file in several parts."""
    push = Push(dq, tmp_path)
    lines = [f"http://a/{n}" for n in range(4000)]
    push.file(*lines)
    found = dq.found("clear", "pushed", "--seen", "--file", str(tmp_path / "requests.jsonl"), **SPIDERS)
    assert found["forgotten"] == 4000


def test_adopted_fingerprints_are_forgotten(dq: Any, live: LiveFrontier, pusher: HandWorker) -> None:
    """The command also removes the fingerprint that scrapy-redis uses."""
    live.call("adopt", pusher.epoch, 0, "", 1, [fingerprint(Request(f"{HOST}/1"))])
    assert dq.found("clear", "pushed", "--seen", f"{HOST}/1", **SPIDERS)["forgotten"] == 1


def test_a_url_is_forgotten_if_seen_expires(dq: Any, tmp_path: Path, live: LiveFrontier) -> None:
    """With DQ_SEEN_TTL, each fingerprint is stored with a time."""
    push, expiring = Push(dq, tmp_path), {"DQ_SEEN_TTL": 1000, "SCHEDULER_PERSIST": True}
    push.text(f"{HOST}/1", "--crawl", "", DQ_CRAWL=live.crawl, **expiring)
    assert live.redis.type(live.key("seen")) == b"zset"
    assert dq.found("clear", "pushed", "--seen", f"{HOST}/1", **SPIDERS, **expiring)["forgotten"] == 1
    assert live.redis.hget(live.key("meta"), "seen_kind").decode() == Seen.EXPIRING.value


def test_another_fingerprinter_or_a_missing_crawl_is_refused(dq: Any, live: LiveFrontier) -> None:
    """If the fingerprinters differ or there is no crawl, the commands create nothing."""
    with pytest.raises(NoSuchCrawl, match="there is no crawl"):
        dq.found("clear", "pushed", "--seen", f"{HOST}/1", **SPIDERS)
    assert live.dump() == {}
    HandWorker(live, "worker", replace(OWN, fingerprinter="another"))
    for words in (("clear", "pushed", "--seen"), ("search", "pushed")):
        with pytest.raises(CommandError, match="REQUEST_FINGERPRINTER_CLASS 'another'"):
            dq.found(*words, f"{HOST}/1", **SPIDERS)


def test_a_second_clear_deletes_the_rest_of_an_interrupted_one(dq: Any, live: LiveFrontier) -> None:
    """The first command deleted the crawl, but left some buckets of its `seen` set."""
    live.redis.hset(live.key("discarded"), "generation", 3000)
    for n in range(3000):
        live.redis.sadd(live.key(f"seen:generation:{n}"), n)
    assert dq.text("clear", "--all") == f"The remains of crawl {live.crawl!r} are deleted.\n"
    assert live.dump() == {}


def test_a_clear_reports_that_a_part_is_left(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To delete a very large `seen` set, several commands or the next run are needed."""
    monkeypatch.setattr("scrapy_dq.frontier.frontier.FLUSH_SWEEP_S", 0.05)
    worker.leave()
    live.redis.hset(live.key("discarded"), mapping={f"generation {n}": 2**26 for n in range(100)})
    said = r"is deleted, except a part of its seen set: run this again"
    with pytest.raises(CommandError, match=said):
        dq.text("clear", "--all", "--yes")
    assert "is deleted" not in dq.printed
    monkeypatch.setattr("scrapy_dq.commands.clear.SWEEP_S", 0.05)
    with pytest.raises(CommandError, match=r"some is left after 0.05 s: run this again"):
        dq.text("clear", "--all")
    assert live.key_names() == {"discarded"}
    HandWorker(live, "again").leave()
    with pytest.raises(CommandError, match=said):
        dq.text("clear", "--all", "--yes", "--json")
    assert json.loads(dq.printed)["left"] is True
