"""scrapy_dq runs in a container as an unprivileged user who cannot write to the project's disk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.container import Container, contained
from support.given import MakeProject, StartSite
from support.project import Project
from support.redis_server import RedisServer
from support.tree_site import TreeSite

PAGES = 10


class Scene:
    """A site, a project that crawls it, and a container for the project."""

    def __init__(self, project: Project, site: TreeSite, container: Container) -> None:
        self.project = project
        self.site = site
        self.container = container
        self.volume = container.volume


@pytest.fixture(params=["modes", "mount"])
def scene(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    start_site: StartSite,
    make_project: MakeProject,
    tmp_path: Path,
) -> Iterator[Scene]:
    site = start_site(pages=PAGES)
    volume = tmp_path / "v"  # short, because the path of a socket has a small limit
    project = make_project(
        [site.start_url],
        redis_url=redis_server.url,
        settings={"RECORD_PATH": str(volume / "record"), "REMOTE_CONTROL_ENABLED": False},
    )
    project.record = volume / "record"
    with ExitStack() as stack:
        container = stack.enter_context(contained(project, volume, read_only=request.param == "mount"))
        yield Scene(project, site, container)


def test_a_worker_and_commands_need_no_folder(scene: Scene) -> None:
    """With a REDIS_URL, a worker and the commands need no folder in which they can write."""
    name, run = scene.project.name, scene.container.run
    crawled = run("crawl", name)
    assert "Spider closed (finished)" in crawled.stderr, crawled.stderr
    assert scene.project.count() == dict.fromkeys(scene.site.paths, 1)
    for words in (
        ["status", name, "--no-rate"], ["doctor", name], ["failed", name], ["events", name, "--curves"],
        ["push", name, scene.site.start_url], ["export", name, "-"], ["clear", name, "--all", "--yes"],
    ):  # fmt: skip
        done = run("dq", *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert not re.search("Read-only|Permission", done.stdout + done.stderr), words


def test_a_crew_without_a_folder_logs_to_standard_error(scene: Scene) -> None:
    """Each crew prints one line with the reason why it has no folder."""
    for _ in range(2):
        crew = scene.container.run("dq", "crawl", scene.project.name, "-w", "2", "--json")
        assert crew.returncode == 0, crew.stderr
        assert json.loads(crew.stdout)["finished"]
        (line,) = (line for line in crew.stderr.splitlines() if "logs cannot be written" in line)
        assert "choose another folder with --log-dir. They go to standard error" in line
        assert crew.stderr.count("Spider closed (finished)") == 2


def test_a_crew_with_a_feed_needs_a_folder_for_its_items(scene: Scene) -> None:
    """One line names the setting for the folder. In it, a second crew finds the first crew's items."""
    name, feed = scene.project.name, scene.volume / "items.jsonl"
    words = ["dq", "crawl", name, "-w", "2", "-O", str(feed), "--json"]
    refused = scene.container.run(*words)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "set DQ_DATA_DIR to use another folder" in refused.stderr
    assert not feed.exists()
    for _ in range(2):
        crew = scene.container.run(*words, "-s", f"DQ_DATA_DIR={scene.volume / 'dq'}")
        assert crew.returncode == 0, crew.stderr
        assert json.loads(crew.stdout)["finished"]
        assert len(feed.read_text().splitlines()) == PAGES


def test_without_redis_one_line_names_the_folder_that_is_needed(scene: Scene) -> None:
    """The line also names the setting for another folder. With that setting, the crawl works."""
    name, run = scene.project.name, scene.container.run
    folder = scene.project.folder / ".scrapy"
    for words in (["crawl", name], ["dq", "status", name], ["dq", "crawl", name]):
        done = run(*words, "-s", "REDIS_URL=")
        found = [
            line for line in done.stderr.splitlines() if str(folder) in line and "needs the folder" in line
        ]
        assert len(found) == 1, done.stderr
        assert "Set DQ_DATA_DIR to a folder" in found[0]
    own = scene.volume / "dq"
    crawled = run("crawl", name, "-s", "REDIS_URL=", "-s", f"DQ_DATA_DIR={own}")
    assert "Spider closed (finished)" in crawled.stderr, crawled.stderr
    assert (own / "redis.log").exists()
    assert scene.project.count() == dict.fromkeys(scene.site.paths, 1)
