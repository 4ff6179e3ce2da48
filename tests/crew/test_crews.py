"""`scrapy dq crawl` with real workers: a shared feed, settings of workers, late workers, the exit status."""

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

import pytest
from scrapy.settings import default_settings

from crew.conftest import SetScene
from crew.outcome import assert_tidy, journals, repeats
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.crew.records import Kind, read
from scrapy_dq.crew.worker_agent import THRESHOLDS
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.admin.control import Command, steer
from support.crew_process import paths_of
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.tree_spider import spider_of
from support.waiting import free_port, wait_until

LONGEST_LINE = 80
FAILS = spider_of("""
    def parse(self, response):
        if page_path(response) != "/p/0" and not os.path.exists("mended"):
            raise ValueError("not mended")
        yield from super().parse(response)
""")
LATE = spider_of("", before="time.sleep(2 * ('\"number\": %d' in os.environ.get('SCRAPY_DQ_CREW', '')))\n")
"""A spider whose worker with the given number starts two seconds late."""
OWN_EXTENSIONS = spider_of("""
    class Own:
        pass

    custom_settings = {"EXTENSIONS": {Own: 500, "scrapy.extensions.telnet.TelnetConsole": None}}
""")
TELLS_COLLECTOR = spider_of("""
    def parse(self, response):
        self.logger.info("The collector: %s, %s", gc.get_threshold(), gc.get_freeze_count() > 10_000)
""")


def test_two_workers_crawl_a_site_and_write_one_feed(scene: SetScene) -> None:
    """The feed has the item of each page once. The output to a pipe has plain lines."""
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
    assert "requests done: " not in crew.out  # requests for robots.txt are done, but are no pages


def test_a_spider_with_its_own_extensions_runs_in_a_crew(
    scene: SetScene,
) -> None:
    """A spider's EXTENSIONS do not remove the extension that makes a process a worker of the crew."""
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
    """With DQ_TUNE_GC = False, workers keep Python's thresholds."""
    here = scene(pages=1, spider=TELLS_COLLECTOR)
    # With this file, the crew is not forked from the fork server, which has frozen its objects.
    (here.project.folder / "sitecustomize.py").touch()
    crew = here.crew("-w", "1", "--log-dir", "logs", "-s", f"DQ_TUNE_GC={tuned}")
    assert crew.wait() == 0
    (log,) = here.project.folder.glob("logs/*/worker-1.log")
    thresholds = THRESHOLDS if tuned else gc.get_threshold()
    assert f"The collector: {thresholds}, {tuned}" in log.read_text()


@pytest.mark.skipif(not hasattr(default_settings, "REMOTE_CONTROL_ENABLED"), reason="Scrapy before 2.19")
@pytest.mark.parametrize("asked", [False, True])
def test_the_remote_control_of_scrapy_is_off_in_workers_by_default(scene: SetScene, asked: bool) -> None:
    """Scrapy enables its RemoteControl by default, but a crew's workers do not."""
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


def test_items_of_a_retry_after_the_end_are_appended_to_the_feed(scene: SetScene) -> None:
    """`scrapy dq retry` opens the finished run again, so its feed is continued, even with -O."""
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


@pytest.mark.parametrize(
    "where", ["| head -c 1", "2>&1 | head -n 1", "> /dev/full", "2> /dev/full", ">&- 2>&-"]
)
def test_a_complete_crawl_exits_with_0_even_if_its_reader_has_gone(scene: SetScene, where: str) -> None:
    """The output cannot be written, because its reader has gone or the disk is full. The feed is complete."""
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


def test_a_crew_works_with_closed_standard_streams(scene: SetScene) -> None:
    """The workers' pipes do not get the numbers of closed streams. --json prints only JSON."""
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
    """A late worker or a late crew finds the run finished, and ends. The late crew's -O keeps the feed."""
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


def test_csv_has_the_columns_of_all_items(scene: SetScene) -> None:
    """No worker's first item has all columns, and a worker may find new columns late."""
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
    """The crew's exit status is 1. The output does not show the login."""
    here = scene(pages=3)
    crew = here.crew("-w", "1", "-o", f"ftp://me:s3kr@127.0.0.1:{free_port()}/%(dq_worker)s.jl")
    assert crew.wait() == 1
    assert "run 0 is finished" in crew.out
    assert "\n1 feed could not be stored, and lacks all items" in crew.out
    assert "worker 1: Error storing jl feed (3 items) in: ftp://...@127.0.0.1:" in crew.err
    assert "s3kr" not in crew.out + crew.err


def test_a_stop_also_applies_to_a_worker_that_has_just_died(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """A worker that died before `scrapy dq stop` is not restarted, and a worker that joins later closes."""
    here = scene(pages=400, latency_s=0.1, project={"CONCURRENT_REQUESTS": 1}, spider=LATE % 3)
    crew = here.crew("-w", "3", "-o", "items.jsonl")
    wait_until(lambda: here.done() >= 4, "four pages are done", 20)
    with connect_url(redis_server.url) as client, crew.frozen():  # the crew sees the death after the stop
        os.kill(crew.pids[1], signal.SIGKILL)
        steer(client, here.project.name, Command.STOP)
    crew.wait_for("worker 2 died")
    assert crew.wait(15) == 1
    assert len(crew.pids) == 3
    # The killed worker may have finished its page without writing the item.
    unwritten = set(here.project.count("done")) - set(paths_of(here.feed))
    assert len(unwritten) <= 1
