"""Real crews: `scrapy dq crawl` with real workers that are killed, stopped and started again."""

from __future__ import annotations

import csv
import gc
import json
import os
import re
import shlex
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from scrapy.settings import default_settings

from crew.conftest import Scene, SetScene
from scrapy_dq.backend.connection import connect_url
from scrapy_dq.crew.feeds.journal import Kind, read
from scrapy_dq.crew.worker_agent import THRESHOLDS
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.admin.control import Word, steer
from scrapy_dq.inspection.history import read_events, said
from support.crew_process import CrewProcess, alive, paths_of, wait_for_ends
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.tree_spider import spider_of
from support.waiting import Stopwatch, free_port, wait_until

LONGEST_LINE = 80
FAILS = spider_of("""
    def parse(self, response):
        if page_path(response) != "/p/0" and not os.path.exists("mended"):
            raise ValueError("not mended")
        yield from super().parse(response)
""")
LATE = spider_of("", before="time.sleep(2 * ('\"number\": %d' in os.environ.get('SCRAPY_DQ_CREW', '')))\n")
"""The worker with that number begins two seconds later."""
OWN_EXTENSIONS = spider_of("""
    class Own:
        pass

    custom_settings = {"EXTENSIONS": {Own: 500, "scrapy.extensions.telnet.TelnetConsole": None}}
""")
TELLS_COLLECTOR = spider_of("""
    def parse(self, response):
        self.logger.info("The collector: %s, %s", gc.get_threshold(), gc.get_freeze_count() > 10_000)
""")


def held_by(redis: RedisServer, scene: Scene, pid: int | None = None) -> int:
    """Return how many leases a process holds; without one, all."""
    with connect_url(redis.url) as client:
        members = peek(client, scene.project.name).members
    return sum(member.in_flight for member in members if pid in (None, member.identity["pid"]))


def repeats(scene: Scene) -> int:
    """Return how many items the feed holds beyond one for each page; none is missing."""
    found = paths_of(scene.feed)
    assert set(found) == scene.site.paths
    return found.total() - len(found)


def journals(scene: Scene, kind: str = "journal") -> list[Path]:
    """Return the journals whose items may be in no feed; *kind* "exported": the others."""
    return sorted(scene.project.folder.glob(f".scrapy/dq/items/*/*.{kind}"))


def assert_tidy(scene: Scene) -> None:
    """Nothing is left beside a feed of a run that is finished, and no item is in a journal only."""
    assert not list(scene.feed.parent.glob(".*.new"))
    assert not journals(scene)


def start_and_wait(scene: Scene, *words: str, part: float = 0.2) -> CrewProcess:
    """Start a crew of two, and wait until a part of the site is done."""
    crew = scene.crew("-w", "2", "-o", "items.jsonl", *words)
    goal = scene.done() + part * len(scene.site.paths)
    wait_until(lambda: scene.done() >= goal or not crew.running, f"{goal} pages are done", 30)
    assert crew.running, crew.err
    return crew


def test_two_workers_crawl_a_site_and_write_one_feed(scene: SetScene) -> None:
    """Each page's item is there once; what is printed reads well in a pipe."""
    here = scene(pages=60, latency_s=0.05)
    crew = here.crew("-w", "2", "-o", "items.jsonl", "-o", "items.csv", "-O", "items.json")
    assert crew.wait() == 1
    assert "only one of -o" in crew.err  # as in Scrapy

    feeds = ("-o", "items.jsonl", "-o", "items.csv", "-o", "items.json")
    own_limits = ("-s", "DOWNLOAD_DELAY=0.001", "-s", "CLOSESPIDER_ITEMCOUNT=1000", "-s", "ROBOTSTXT_OBEY=1")
    crew = here.crew("-w", "2", *feeds, *own_limits)

    assert crew.wait() == 0
    assert "Warning: DOWNLOAD_DELAY = 0.001: each worker keeps its own pace" in crew.err
    assert "Warning: CLOSESPIDER_ITEMCOUNT = 1000: each worker counts separately" in crew.err
    assert repeats(here) == 0
    with here.feed.with_suffix(".csv").open(newline="") as rows:
        assert sorted(rows.read().split()) == sorted(["path", *here.site.paths])
    found = json.loads(here.feed.with_suffix(".json").read_text())
    assert {item["path"] for item in found} == here.site.paths
    assert_tidy(here)
    records = [record for path in journals(here, "exported") for record in read(path)]
    ended = Counter(record.entry_id for record in records if record.kind == Kind.END)
    assert ended == Counter(record.entry_id for record in records if record.is_item)
    assert len(ended) == 60
    assert "run 0 is finished" in crew.out
    assert "\nitems.jsonl: 60 items\n" in crew.out
    assert "\x1b" not in crew.out + crew.err
    table = [line for line in crew.out.splitlines() if not line.startswith("Crawl")]
    assert max(map(len, table)) <= LONGEST_LINE
    assert re.search(r"^ +all .* 60 +60 ", crew.out, re.MULTILINE)
    assert "requests done: " not in crew.out  # robots.txt is no page of the crawl


def test_pages_that_are_not_the_requests_that_are_done_are_explained(scene: SetScene) -> None:
    here = scene(pages=4, redirect_every=3)
    crew = here.crew("-w", "2")
    assert crew.wait() == 0
    assert re.search(r"^ +all .* 4 +4 ", crew.out, re.MULTILINE)
    assert "\n4 pages, 6 requests done: redirects and retries are done without a page; " in crew.out


def test_a_spider_with_extensions_of_its_own_has_these_and_is_a_worker_too(
    scene: SetScene,
) -> None:
    """What makes a process a worker of a crew is not a setting of the project."""
    here = scene(pages=5, spider=OWN_EXTENSIONS)
    crew = here.crew("-w", "1", "-o", "items.jsonl", "--log-dir", "logs")
    assert crew.wait() == 0
    assert repeats(here) == 0
    assert_tidy(here)
    assert re.search(r"\n +all +\S+ +5 +5 ", crew.out)
    (log,) = here.project.folder.glob("logs/*/worker-1.log")
    enabled = log.read_text().partition("Enabled extensions:")[2].partition("]")[0]
    assert "Own'" in enabled
    assert "TelnetConsole" not in enabled


@pytest.mark.parametrize("tuned", [True, False])
def test_workers_collect_garbage_rarely(scene: SetScene, tuned: bool) -> None:
    """Unless DQ_TUNE_GC = False."""
    here = scene(pages=1, spider=TELLS_COLLECTOR)
    crew = here.crew("-w", "1", "--log-dir", "logs", "-s", f"DQ_TUNE_GC={tuned}")
    assert crew.wait() == 0
    (log,) = here.project.folder.glob("logs/*/worker-1.log")
    thresholds = THRESHOLDS if tuned else gc.get_threshold()
    assert f"The collector: {thresholds}, {tuned}" in log.read_text()


@pytest.mark.skipif(not hasattr(default_settings, "REMOTE_CONTROL_ENABLED"), reason="Scrapy before 2.19")
@pytest.mark.parametrize("asked", [False, True])
def test_workers_run_no_code_that_they_are_sent_unless_the_project_asks(scene: SetScene, asked: bool) -> None:
    """Scrapy's RemoteControl is on by default."""
    here = scene(pages=1)
    if asked:
        with (here.project.folder / "tree_project" / "settings.py").open("a") as file:
            file.write(
                f"REMOTE_CONTROL_ENABLED = True\nREMOTE_CONTROL_JOBS_DIR = {str(here.project.folder)!r}\n"
            )
    crew = here.crew("-w", "1", "--log-dir", "logs")
    assert crew.wait() == 0
    (log,) = here.project.folder.glob("logs/*/worker-1.log")
    assert ("Remote control HTTP server listening" in log.read_text()) == asked


def test_a_killed_worker_is_started_again(scene: SetScene) -> None:
    """Nothing is missing; what it held is crawled twice, and has its items once."""
    here = scene(pages=80, latency_s=0.2)
    crew = start_and_wait(here)
    os.kill(crew.pids[0], signal.SIGKILL)

    assert crew.wait() == 0

    assert "worker 1 died: killed by SIGKILL" in crew.err
    assert len(crew.pids) == 3
    assert repeats(here) == 0
    assert_tidy(here)


def test_a_killed_parent_stops_its_workers_and_the_next_crawl_finishes(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """By themselves, within the grace; the next one exports their items with its own."""
    here = scene(pages=80, latency_s=0.3)
    crew = start_and_wait(here)
    crew.kill()
    killed = Stopwatch()
    wait_for_ends(crew.pids, 5)
    assert killed.seconds < 3
    assert held_by(redis_server, here) == 0
    assert not here.feed.exists()

    here.site.set_latency(0.05)
    following = here.crew("-w", "2", "-o", "items.jsonl")

    assert following.wait() == 0
    assert repeats(here) == 0
    assert_tidy(here)


@pytest.mark.parametrize("addon", [True, False])
def test_scrapy_crawl_after_a_killed_parent_says_where_items_are_and_loses_none(
    scene: SetScene, addon: bool
) -> None:
    """It goes on as with -o; the crew that exports the rest keeps what it has written, also with -O."""
    here = scene({"ADDONS": {"scrapy_dq.Addon": 500}} if addon else {}, pages=60, latency_s=0.3)
    crew = start_and_wait(here)
    crew.kill()
    wait_for_ends(crew.pids, 5)
    here.site.set_latency(0.02)
    feeds = {"items.jsonl": {"format": "jsonlines"}}
    alone = here.project.run_to_end(settings={"FEEDS": json.dumps(feeds)})
    assert "holds items of a `scrapy dq crawl` that was killed" in alone.text
    assert f"`scrapy dq crawl {here.project.name}` with -o or FEEDS does" in alone.text
    assert 0 < len(here.feed.read_text().splitlines()) < 60

    joining = here.crew("-w", "1", "-O" if addon else "-o", "items.jsonl")

    assert joining.wait() == 0
    assert repeats(here) == 0
    assert_tidy(here)


def test_the_items_of_a_killed_crew_are_in_the_feeds_of_the_next(scene: SetScene) -> None:
    """Whatever their names; each feed of a run gets all of it, and keeps its time."""
    here = scene(pages=60, latency_s=0.3)
    crew = start_and_wait(here)
    crew.kill()
    wait_for_ends(crew.pids, 5)
    here.site.set_latency(0.02)

    following = here.crew("-w", "1", "-s", "CLOSESPIDER_PAGECOUNT=20", "-o", "out/%(name)s-%(time)s.csv")
    assert following.wait() == 1
    (out,) = (here.project.folder / "out").iterdir()
    some = out.read_text().splitlines()
    assert 20 < len(some) < 60
    finishing = here.crew("-w", "1", "-o", "items.jsonl", "-o", "out/%(name)s-%(time)s.csv")
    assert finishing.wait() == 0
    assert repeats(here) == 0
    assert out.read_text().splitlines()[: len(some)] == some
    assert sorted(out.read_text().split()) == sorted(["path", *here.site.paths])
    assert_tidy(here)


@pytest.mark.parametrize("flag", ["-o", "-O"])
def test_the_feed_of_a_finished_run_whose_parent_was_killed_is_written(scene: SetScene, flag: str) -> None:
    """Before a new run begins: this command crawls nothing, the next does, and forgets the journals."""
    here = scene(pages=5)
    assert here.crew("-w", "1", flag, "items.jsonl").wait() == 0
    for path in journals(here, "exported"):
        path.rename(path.with_suffix(".journal"))
    here.feed.write_text("of another program\n")

    crew = here.crew("-w", "1", flag, "other.jsonl")

    assert crew.wait() == 0
    assert "Run 0 was finished, but its feeds were not written: they are written now" in crew.err
    assert "other.jsonl: 5 items" in crew.out
    assert set(here.site.hits().values()) == {1}
    assert paths_of(here.feed.with_name("other.jsonl")) == dict.fromkeys(here.site.paths, 1)
    following = here.crew("-w", "1", flag, "other.jsonl")
    assert following.wait() == 0
    assert set(here.site.hits().values()) == {2}
    assert paths_of(here.feed.with_name("other.jsonl")) == dict.fromkeys(here.site.paths, 1 + (flag == "-o"))
    assert len(journals(here, "exported")) == 1


def test_ctrl_c_stops_gracefully_and_the_same_command_continues(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """Exit status 1; what is done is in the feed, also with -O, and no page is crawled twice."""
    here = scene(pages=60, latency_s=0.3)
    here.feed.write_text("of an earlier crawl\n")
    crew = here.crew("-w", "2", "-O", "items.jsonl")
    wait_until(lambda: here.done() >= 12, "some pages are done", 30)
    crew.interrupt()
    assert crew.wait(10) == 1
    assert not any(map(alive, crew.pids))
    assert held_by(redis_server, here) == 0
    assert re.search(r"Continue with: scrapy dq crawl tree-\w+ -w 2 -O items.jsonl", crew.out)
    assert paths_of(here.feed) == here.project.count("done")

    here.site.set_latency(0.02)
    following = here.crew("-w", "2", "-O", "items.jsonl")
    assert following.wait() == 0
    assert "items.jsonl: 60 items\n" in following.out
    assert repeats(here) == 0
    assert_tidy(here)

    # A new run overwrites.
    last = here.crew("-w", "2", "-O", "items.jsonl")
    assert last.wait() == 0
    assert "run 1 is finished" in last.out
    assert repeats(here) == 0


def test_what_is_tried_again_after_the_end_is_appended(scene: SetScene) -> None:
    """A finished run that `scrapy dq retry` opens again goes on with its feed, also with -O."""
    here = scene(pages=13, spider=FAILS)
    words = ("-w", "1", "-O", "items.jsonl")
    first = here.crew(*words, "-a", "a=b", "-s", "DQ_MAX_ATTEMPTS=9")
    assert first.wait() == 0
    assert paths_of(here.feed) == {"/p/0": 1}
    name = f"{here.project.name} -a a=b -s DQ_MAX_ATTEMPTS=9"
    assert re.fullmatch(
        rf"Requests of this run: \d+ failed for good\. `scrapy dq failed {name}` shows why; "
        rf"`scrapy dq retry {name} --all` runs them again",
        first.out.splitlines()[-1],
    )
    assert os.listdir(here.project.folder / ".scrapy") == ["dq"]
    assert (here.project.folder / ".scrapy" / "dq").stat().st_mode & 0o777 == 0o700
    (here.project.folder / "mended").touch()
    again = run_dq(here.project, "retry", here.project.name, "--all", "--yes")
    assert again.returncode == 0, again.stderr
    crew = here.crew(*words)
    assert crew.wait() == 0
    assert "items.jsonl: " in crew.out
    assert repeats(here) == 0
    assert_tidy(here)


def test_a_second_ctrl_c_stops_at_once_and_loses_nothing(scene: SetScene, redis_server: RedisServer) -> None:
    """Pages that take long are not waited for; they are crawled by the next."""
    here = scene(pages=60, latency_s=0.2)
    crew = start_and_wait(here)
    here.site.set_latency(300)
    wait_until(lambda: held_by(redis_server, here) >= 4, "slow pages are at work")
    crew.interrupt()
    crew.wait_for("Stopping: the workers finish")
    crew.interrupt()
    assert crew.wait(5) == 1
    assert not any(map(alive, crew.pids))

    here.site.set_latency(0.02)
    following = here.crew("-w", "2", "-o", "items.jsonl")
    assert following.wait() == 0
    assert repeats(here) == 0


def test_a_worker_that_does_not_stop_is_killed(scene: SetScene) -> None:
    """One that hangs in a callback, say, after the second Ctrl-C and its grace."""
    here = scene(pages=60, latency_s=0.2, project={"DQ_SHUTDOWN_GRACE": 0})
    crew = start_and_wait(here)
    os.kill(crew.pids[0], signal.SIGSTOP)
    crew.interrupt()
    crew.wait_for("Stopping: the workers finish")
    crew.interrupt()
    assert crew.wait(12) == 1
    assert "worker 1 does not stop: killed" in crew.err
    assert not any(map(alive, crew.pids))


def test_restarts_have_a_limit(scene: SetScene) -> None:
    """Past it the crew goes on with those that live; with none, it says so and exits with 1."""
    here = scene(pages=100, latency_s=0.3)
    crew = start_and_wait(here, "--restarts", "0")
    first, second = crew.pids
    os.kill(first, signal.SIGKILL)
    crew.wait_for("worker 1 is not restarted: 0 restarts are the limit (--restarts)")
    done = here.done()
    wait_until(lambda: here.done() > done + 4, "the other goes on", 10)
    os.kill(second, signal.SIGKILL)
    assert crew.wait(10) == 1
    assert "No worker is left, and the run is not finished." in crew.err
    assert len(crew.pids) == 2


def test_what_all_workers_are_told_applies_to_those_that_are_down(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """One that died before `scrapy dq stop` is not started again; one that begins meanwhile closes."""
    here = scene(pages=400, latency_s=0.1, project={"CONCURRENT_REQUESTS": 1}, spider=LATE % 3)
    crew = here.crew("-w", "3", "-o", "items.jsonl")
    wait_until(lambda: here.done() >= 4, "some pages are done", 20)
    with connect_url(redis_server.url) as client, crew.frozen():  # the crew sees the death after the stop
        os.kill(crew.pids[1], signal.SIGKILL)
        steer(client, here.project.name, Word.STOP)
    crew.wait_for("worker 2 died")
    assert crew.wait(15) == 1
    assert len(crew.pids) == 3
    # The page that the killed worker was at may be done, and its item not written.
    unwritten = set(here.project.count("done")) - set(paths_of(here.feed))
    assert len(unwritten) <= 1


@pytest.mark.parametrize(
    "where", ["| head -c 1", "2>&1 | head -n 1", "> /dev/full", "2> /dev/full", ">&- 2>&-"]
)
def test_the_exit_status_is_that_of_the_crawl_even_if_the_reader_ends(scene: SetScene, where: str) -> None:
    """A pipe whose reader has gone, a disk that is full: the feed is joined, and that is what counts."""
    here = scene(pages=3)
    command = [*here.project.command("dq", "crawl", here.project.name), "-w", "1", "-o", "items.jsonl"]
    environ = here.project.environ()
    del environ["PYTHONUNBUFFERED"]
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(command)} {where}; exit ${{PIPESTATUS[0]}}"], cwd=here.project.folder,
        env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not re.search("Traceback|BrokenPipe", done.stderr)
    assert repeats(here) == 0
    assert_tidy(here)


def test_closed_standard_streams_are_no_obstacle(scene: SetScene) -> None:
    """Pipes that took their numbers would not reach the workers; JSON is not mixed with anything."""
    here = scene(pages=3)
    command = shlex.join([*here.project.command("dq", "crawl", here.project.name), "-w", "1"])
    for where in ("<&- >&- 2>&-", "--json <&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{command} {where}"], cwd=here.project.folder, env=here.project.environ(),
            stdout=subprocess.PIPE, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0
    assert json.loads(done.stdout)["finished"]


def test_a_late_worker_begins_no_new_run(scene: SetScene, redis_server: RedisServer) -> None:
    """It finds the crew's run finished, and closes; so does a late crew, whose -O leaves the feed alone."""
    here = scene(pages=3, spider=LATE % 2)
    crew = here.crew("-w", "2", "-o", "items.jsonl")
    assert crew.wait() == 0
    assert here.project.count("done") == dict.fromkeys(here.site.paths, 1)
    assert "run 0 is finished" in crew.out
    assert repeats(here) == 0
    with connect_url(redis_server.url) as client:
        name = peek(client, here.project.name).run_name
    crew = here.crew("-w", "1", "-O", "items.jsonl", "-s", f"DQ_RUN_NAME={name}")
    assert crew.wait() == 0
    assert repeats(here) == 0


def test_a_crew_that_finishes_an_earlier_run_reports_that_its_own_has_not_begun(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """A warning at the start, a last line and status 3; the same command then begins the run."""
    here = scene(pages=30, latency_s=0.1)
    (killed,) = here.project.start_workers(1, settings={"DQ_RUN_NAME": "night-6"})
    wait_until(lambda: here.done() > 3, "night-6 is under way")
    killed.kill()
    here.site.set_latency(0.0)
    crew = here.crew("-w", "1", "-s", "DQ_RUN_NAME=night-7", "--logfile", "crawl.log")
    assert crew.wait() == 3
    assert "run 0 'night-6' is not finished, and this worker continues it" in crew.err
    last = "Finished run 0 'night-6'; 'night-7' has not begun: run the command again"
    assert crew.out.splitlines()[-1] == last
    log = here.project.folder / "crawl-1.log"
    assert f"WARNING: {last}" in log.read_text().splitlines()[-1]
    with connect_url(redis_server.url) as client:
        began, *_, finished, _left = read_events(client, here.project.name)
    assert (said(began), said(finished)) == ("the run 'night-6' began", "the run 'night-6' finished")
    crew = here.crew("-w", "1", "--json", "-s", "DQ_RUN_NAME=night-7")
    assert crew.wait() == 0
    summary = json.loads(crew.out)
    assert (summary["run"], summary["run_name"], summary["not_begun"]) == (1, "night-7", None)
    assert summary["pages"] == 30


def test_what_workers_log_as_errors_is_shown_and_where_they_log(scene: SetScene) -> None:
    """The first line of each, the worker's number, what was raised; each worker has a log of its own."""
    spider = spider_of("""
    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/p/2"):
            self.logger.error("this page is wrong\\nsecond line")
        if response.url.endswith("/p/3"):
            raise ValueError("page 3 is odd\\nand so on")
""")
    here = scene(pages=5, spider=spider)
    crew = here.crew("-w", "2", "--logfile", "crawl.log")
    assert crew.wait() == 0
    assert re.search(r"^worker [12]: this page is wrong$", crew.err, re.MULTILINE)
    assert "second line" not in crew.err
    assert re.search(r"^worker [12]: Spider error .*: ValueError: page 3 is odd$", crew.err, re.MULTILINE)
    logs = [here.project.folder / f"crawl-{number}.log" for number in (1, 2)]
    assert sum("second line" in log.read_text() for log in logs) == 1
    assert re.search(r"^ +all +.* 2 +0 +[\d.]+ s$", crew.out, re.MULTILINE)


def test_a_start_request_that_each_worker_crawls_is_shown_once(scene: SetScene) -> None:
    """It cannot be stored. A later request of a worker that cannot be stored either is in its log alone."""
    spider = spider_of("""
    async def start(self):
        self.record("joined", "/")
        while Path(RECORD_PATH).read_text().count("joined ") < 2:  # the run would be over for one
            await asyncio.sleep(0.02)
        yield scrapy.Request(START_URLS[0], lambda response: self.then(response))

    def then(self, response):
        yield scrapy.Request(response.url + "?2", lambda response: None)
""")
    here = scene(pages=1, spider=spider)
    crew = here.crew("-w", "2", "--logfile", "crawl.log")
    assert crew.wait() == 0
    assert here.site.hits()["/p/0"] == 2
    assert re.findall(r"^Warning: .*: (.*)\. No more", crew.err, re.M) == [
        "each worker crawls this start request"
    ]
    logs = [here.project.folder / f"crawl-{number}.log" for number in (1, 2)]
    assert all("/p/0?2> cannot be stored" in log.read_text() for log in logs)


def test_a_crawl_on_hold_says_so(scene: SetScene, redis_server: RedisServer) -> None:
    """With its counts; and at the end, how it goes on."""
    here = scene(pages=40, latency_s=0.1)
    name = here.project.name
    crew = here.crew("-w", "1")
    wait_until(lambda: here.done() >= 4, "some pages are done", 20)
    with connect_url(redis_server.url) as client:
        steer(client, name, Word.PAUSE)
        crew.wait_for("done; paused, ")
        crew.interrupt()
        assert crew.wait(10) == 1
        assert f"The crawl is paused: first run scrapy dq resume {name}\n" in crew.out
        (log,) = here.project.folder.glob(".scrapy/dq/logs/*/worker-1.log")
        way = f"`scrapy dq resume --crawl {name}`, and then the same command, continues"
        assert f". The crawl is on hold: {way}" in log.read_text()
        following = here.crew("-w", "1")
        following.wait_for("done; paused, ")
        steer(client, name, Word.RESUME)
    assert following.wait() == 0


def test_a_crew_shows_why_its_workers_wait(scene: SetScene, redis_server: RedisServer) -> None:
    """A full Redis answers the crew, and nothing moves; when it has memory again, the crawl goes on."""
    here = scene(pages=60, latency_s=0.1)
    with redis_server.client() as client:
        crew = here.crew("-w", "2")
        try:
            wait_until(lambda: here.done() > 5, "it crawls", 60)
            client.config_set("maxmemory", 1)
            crew.wait_for(" wait: Redis's memory is full: raise its maxmemory", 60)
        finally:
            client.config_set("maxmemory", 0)
    assert crew.wait(120) == 0, crew.err
    assert here.done() >= len(here.site.paths)


def test_csv_has_the_columns_of_all_items(scene: SetScene) -> None:
    """Though no worker's first item has them all, and one of them adds some late."""
    spider = spider_of("""
    def parse(self, response):
        for found in super().parse(response):
            if isinstance(found, dict):
                found = found | {"only-" + found["path"][-1]: "x"}
            yield found
""")
    here = scene(pages=10, spider=spider)
    crew = here.crew("-w", "2", "-o", "items.csv", "-o", "%(dq_worker)s.own.csv")
    assert crew.wait() == 0
    with here.feed.with_suffix(".csv").open(newline="") as rows:
        found = {row["path"]: {name for name, value in row.items() if value} for row in csv.DictReader(rows)}
    assert found == {path: {"path", f"only-{path[-1]}"} for path in here.site.paths}
    assert not any("columns" in own.read_text() for own in here.project.folder.glob("*.own.csv"))


def test_a_feed_that_cannot_be_stored_is_a_failure(scene: SetScene) -> None:
    """Each worker has its own, on another machine; and its login is not shown."""
    here = scene(pages=3)
    crew = here.crew("-w", "1", "-o", f"ftp://me:s3kr@127.0.0.1:{free_port()}/%(dq_worker)s.jl")
    assert crew.wait() == 1
    assert "run 0 is finished" in crew.out
    assert "\n1 feed could not be stored, with all items in it" in crew.out
    assert "worker 1: Error storing jl feed (3 items) in: ftp://...@127.0.0.1:" in crew.err
    assert "s3kr" not in crew.out + crew.err


FAILING = spider_of("""
    async def start(self):
        async for request in super().start():
            yield request
        raise RuntimeError("the list of URLs ends in the middle")

    def parse(self, response):
        logging.getLogger("pages").error("the price is missing")
        yield from super().parse(response)
""")


def test_an_incomplete_start_and_repeated_errors_are_explained(scene: SetScene) -> None:
    """What runs start() again, and what ends the run without; an error of all pages is shown once."""
    here = scene(pages=10, spider=FAILING)
    crew = here.crew("-w", "1")
    assert crew.wait() == 1
    assert here.done() == 10
    assert crew.err.count("worker 1: the price is missing") == 1
    name = here.project.name
    assert f"Continue with: scrapy dq crawl {name} -w 1\n" in crew.out
    assert f"did not complete. To end the run without it: scrapy dq complete {name}\n" in crew.out
