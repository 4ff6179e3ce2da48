"""`scrapy dq items` counts the items in the journals, exports them again, and follows them."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from xml.etree import ElementTree

import pytest

from crew.conftest import SetScene
from crew.outcome import journals, start_and_wait
from support.crew_process import paths_of, wait_for_ends
from support.scrapy_redis_crawl import run_dq
from support.waiting import patience


def test_items_are_counted_and_exported_again(scene: SetScene) -> None:
    """Items are counted by worker. Any feed can be exported again, and -O overwrites it."""
    here = scene(pages=40)
    name, folder = here.project.name, here.project.folder
    assert here.crew("-w", "2", "-o", "items.jsonl").wait() == 0
    told = run_dq(here.project, "items", name, "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["crawl"], found["run"], found["items"]) == (name, 0, 40)
    assert found["in_no_feed"] == found["of_earlier_runs_in_no_feed"] == 0
    # On a busy machine, one worker may crawl all pages before the other has started.
    assert {worker["worker"] for worker in found["workers"]} <= {1, 2}
    assert sum(worker["items"] for worker in found["workers"]) == 40
    shown = run_dq(here.project, "items", name).stdout.splitlines()
    assert shown[0].startswith(f"Crawl {name!r}, run 0: 40 items in .scrapy/dq/items/")
    assert shown[1].split() == ["worker", "items", "MiB"]

    done = run_dq(here.project, "items", name, "-o", "all.csv", "-o", "page.xml", "--json")
    assert (done.returncode, json.loads(done.stdout)["feeds_not_written"]) == (0, []), done.stderr
    with (folder / "all.csv").open() as file:
        assert {row["path"] for row in csv.DictReader(file)} == here.site.paths
    assert len(ElementTree.parse(folder / "page.xml").getroot()) == 40
    for _ in range(2):
        done = run_dq(here.project, "items", name, "-O", "odd.txt", "-t", "jsonlines")
        assert done.stdout == "odd.txt: 40 items\n", done.stderr
        assert paths_of(folder / "odd.txt") == dict.fromkeys(here.site.paths, 1)


def test_items_left_by_a_killed_crew_are_exported(scene: SetScene) -> None:
    """`scrapy dq items` exports items without crawling. Then a crew continues. Its feed has each once."""
    here = scene(pages=60, latency_s=0.1)
    crew = start_and_wait(here)
    crew.kill()
    wait_for_ends(crew.pids, 5)
    found = json.loads(run_dq(here.project, "items", here.project.name, "--json").stdout)
    assert 0 < found["in_no_feed"] == found["items"] < 60
    shown = run_dq(here.project, "items", here.project.name).stdout
    assert f"{found['items']} of them are in no feed yet" in shown
    done = run_dq(here.project, "items", here.project.name, "-o", "part.jsonl")
    assert done.stdout == f"part.jsonl: {found['items']} items\n"
    assert paths_of(here.project.folder / "part.jsonl").total() == found["items"]
    assert here.crew("-w", "2", "-o", "items.jsonl").wait() == 0
    assert paths_of(here.feed) == dict.fromkeys(here.site.paths, 1)
    assert not journals(here)


def test_items_are_printed_as_they_arrive(scene: SetScene) -> None:
    """--follow prints the items of later workers, but no items from before."""
    here = scene(pages=30, latency_s=0.05)
    follower = subprocess.Popen(
        here.project.command("dq", "items", here.project.name, "--follow"),
        cwd=here.project.folder, env=here.project.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert any("are printed as they arrive" in line for line in follower.stderr)
        assert here.crew("-w", "2", "-o", "items.jsonl").wait() == 0
        lines = [json.loads(follower.stdout.readline()) for _ in range(30)]
        assert {line["path"] for line in lines} == here.site.paths
        follower.send_signal(signal.SIGINT)
        rest, _ = follower.communicate(timeout=patience(10))
        assert (rest, follower.returncode) == ("", 0)
    finally:
        follower.kill()
        follower.wait()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), 1, "no item of crawl"),
        (("--follow", "-o", "x.csv"), 2, "it goes with neither"),
        (("--export", "-o", "x.csv"), 2, "name one of these"),
        (("-t", "xml"), 2, "-t is the format of -o or -O"),
    ],
)
def test_an_error_is_printed_in_one_line(
    scene: SetScene, words: tuple[str, ...], status: int, says: str
) -> None:
    here = scene(pages=1)
    done = run_dq(here.project, "items", here.project.name, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done.stderr
    assert says in done.stderr


def test_without_a_shared_feed_nothing_is_exported(scene: SetScene) -> None:
    here = scene(pages=3)
    assert here.crew("-w", "1", "-o", "items.jsonl").wait() == 0
    done = run_dq(here.project, "items", here.project.name, "--export")
    assert done.returncode == 1
    assert "FEEDS names no feed that all workers share: name one with -o or -O" in done.stderr
