"""`scrapy dq crawl` refuses bad settings, feeds and spiders in one line, before a worker starts."""

from __future__ import annotations

from crew.conftest import SetScene
from support.project import PLAIN
from support.scrapy_redis_crawl import run_dq, run_dq_each

PASSWORD = "s3cr3t-w0rd"


def test_feeds_that_several_workers_cannot_write_are_refused(scene: SetScene) -> None:
    """The line names a solution. Bad settings, spiders and options are also refused. No page is crawled."""
    here = scene(pages=3)
    name = here.project.name
    (here.project.folder / "folder.jsonl").mkdir()
    (here.project.folder / "notes.json").write_text("{'not': 'ours'}")
    cases = [
        (["-o", f"ftp://me:{PASSWORD}\uff1f@there/items.csv"], "cannot be written: ValueError: ...@there' "),
        (["-o", "/proc/items.jsonl"], "/proc/items.jsonl': /proc cannot be written: "),
        (["-o", "notes.json"], "notes.json, which has an end. -O would replace it"),
        (["-o", "folder.jsonl"], "it is not a regular file"),
        (["-o", "items.nonsense"], "Unrecognized output format"),
        (["-s", 'FEEDS={"a.jl": {"format": "jl", "item_classes": ["no.Item"]}}'], "No module named 'no'"),
        (["-s", "DQ_ENABLED=0"], "DQ_ENABLED = False"),
        (["-s", "DQ_WORKER_TTL=x"], "DQ_WORKER_TTL"),
        (["-s", f"SCHEDULER={PLAIN['SCHEDULER']}"], "ADDONS = {"),
        (["-s", "REDIS_URL=", "-s", "DQ_DATA_DIR=/proc/nowhere"], "/proc/nowhere"),
        (
            ["-s", 'FEEDS={"a.jl": {"format": "none"}}'],
            "a feed cannot be written: see Scrapy's message above",
        ),
        (["-s", 'FEEDS={"a.jl": {"format": "jl"}, "./a.jl": {"format": "jl"}}'], "two feeds are written to"),
        (["-o", "%(none)s.csv"], "KeyError: 'none'"),
        (["--log-dir", "notes.json"], "another folder with --log-dir"),
        (["-s", 'REDIS_PARAMS={"credential_provider": "x"}'], "in REDIS_PARAMS cannot be used"),
        (["-a", "x"], "-a takes NAME=VALUE"),
    ]
    for (words, says), done in zip(
        cases, run_dq_each(here.project, [["crawl", name, *words] for words, _ in cases]), strict=True
    ):
        assert done.returncode == (2 if words == ["-a", "x"] else 1), words
        line = done.stderr.splitlines()[-1]
        assert line.startswith("scrapy dq crawl: "), words
        assert says in line
        assert PASSWORD not in done.stderr + done.stdout
        assert "started" not in done.stderr
    assert not list(here.project.folder.glob(".scrapy/dq/items/*/*.journal"))
    near = run_dq(here.project, "crawl", name[:-1])
    assert f"did you mean {name!r}?" in near.stderr
    mixed = run_dq(here.project, "crawl", name, "-o", "-:jsonlines")
    assert "standard output has the summary. Write it to a file" in mixed.stderr
    for words in (["-w", "0"], ["--restarts", "-1"], ["--restarts", "x"]):
        assert run_dq(here.project, "crawl", name, *words).returncode == 2
    assert here.done() == 0


def test_the_crew_shows_why_a_crawl_cannot_begin(scene: SetScene) -> None:
    """The crew shows the end of the worker's log, and does not start the worker again."""
    here = scene(pages=3, project={"SPIDER_MIDDLEWARES": {"tree_project.missing.Middleware": 1}})
    crew = here.crew("-w", "2")
    assert crew.wait(20) == 1
    assert "ModuleNotFoundError: No module named 'tree_project.missing'" in crew.err
    assert len(crew.pids) == 2
    assert "no worker could join" in crew.out
    assert "Continue with" not in crew.out


def test_flush_on_start_deletes_the_crawl_once_for_all_workers(scene: SetScene) -> None:
    """The crew deletes the crawl before its first worker starts. The workers do not delete it again."""
    here = scene(pages=20, project={"CLOSESPIDER_PAGECOUNT": 5})
    assert here.crew("-w", "1").wait() == 1
    done = here.done()
    assert done < 20
    crew = here.crew("-w", "2", "-s", "CLOSESPIDER_PAGECOUNT=0", "-s", "SCHEDULER_FLUSH_ON_START=1")
    assert crew.wait() == 0
    assert here.project.count("done").total() == 20 + done


def test_two_crews_of_one_crawl_do_not_write_feeds_at_once(scene: SetScene) -> None:
    """The second crew is refused while the first crew runs."""
    here = scene(pages=30, latency_s=0.5)
    first = here.crew("-w", "1", "-o", "items.jsonl")
    first.wait_for("worker 1 started")
    second = here.crew("-w", "1", "-o", "items.jsonl")
    assert second.wait() == 1
    assert "another `scrapy dq crawl` or `scrapy dq items` is using this crawl's items" in second.err
    first.interrupt()
    first.wait(10)
