"""The commands that only read, as a user runs them: `scrapy dq ...` in a project, in its own process."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from commands.conftest import READ_ONLY
from support.given import MakeProject, StartSite
from support.live_frontier import HandWorker, LiveFrontier, put
from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq, run_dq_each
from support.waiting import free_port

PASSWORD = "s3cr3t-w0rd"


@pytest.fixture
def project(make_project: MakeProject, start_site: StartSite, server: RedisServer) -> Project:
    """Return a project whose crawl was stopped after a few pages. One page failed."""
    site = start_site()
    project = make_project(
        ["http://127.0.0.1:9/refused", site.start_url], redis_url=server.url,
        settings={"RETRY_ENABLED": False, "CLOSESPIDER_PAGECOUNT": 3, "CONCURRENT_REQUESTS": 1},
    )  # fmt: skip
    project.run_worker()
    return project


def test_each_command_finds_the_crawl_of_a_spider(project: Project) -> None:
    """The commands print plain lines of 80 columns, exit with 0, and write nothing to standard error."""
    expected = {
        "status": "failed ", "workers": "No worker is registered.", "search": "http://127.0.0.1:",
        "failed": "http://127.0.0.1:9/refused", "dead": "0 dead letters.", "events": "a worker left",
        "doctor": "ok ",
    }  # fmt: skip
    for name in READ_ONLY:
        done = run_dq(project, name, project.name)
        assert (done.returncode, done.stderr) == (0, "")
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert PASSWORD not in done.stdout
        assert expected[name] in done.stdout


def test_a_crawl_can_be_given_by_name_and_mistakes_are_reported(project: Project) -> None:
    """--crawl names the crawl. A missing name, a misspelled name and an unreachable Redis are mistakes."""
    name = project.name
    _, listed, as_json, by_name, nothing, typo, away = run_dq_each(
        project,
        [
            ["pause", name], ["status"], ["status", "--json"], ["status", "--crawl", name, "--no-rate"],
            ["search"], ["search", "--crawl", name[:-1], "x"],
            ["doctor", "-s", f"REDIS_URL=redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"],
        ],
    )  # fmt: skip
    assert f"{name}:{name}" in "".join(listed.stdout.split())  # the last column may wrap
    assert "paused " in listed.stdout
    crawl = json.loads(as_json.stdout)["crawls"][0]
    assert (crawl["spider"], crawl["crawl"], crawl["phase"]) == (name, name, "open")
    assert crawl["hold"] == "paused"
    assert crawl["failed"] == 1
    assert f"Crawl {name!r} at" in by_name.stdout
    for done, status, says in (
        (nothing, 2, "scrapy dq search: name a spider, or a crawl with --crawl"),
        (typo, 1, f"did you mean --crawl {name!r}?"),
        (away, 1, "cannot be reached"),
    ):
        assert (done.returncode, done.stdout) == (status, "")
        (line,) = done.stderr.splitlines()
        assert says in line
        assert PASSWORD not in line
    wrong = [["search", name, "-n", "0"], ["status", "x", "y"], ["limit", name]]
    for words, done in zip(wrong, run_dq_each(project, wrong), strict=True):
        assert done.returncode == 2
        assert f"\nscrapy dq {words[0]}: error: " in done.stderr


def test_commands_can_read_a_crawl_in_the_embedded_redis(make_project: MakeProject) -> None:
    """Each command starts the embedded Redis for a short time. A spider that needs arguments is reported."""
    broken = (
        "import scrapy\n\n\nclass Broken(scrapy.Spider):\n    name = 'broken'\n\n"
        "    def __init__(self, needed, **kwargs):\n        super().__init__(**kwargs)\n"
        "\n\nclass Fine(scrapy.Spider):\n    name = 'fine'\n"
    )
    project = make_project(["http://127.0.0.1:9/"], spider=broken)
    listed, table, looked, doctor = run_dq_each(
        project, [["status", "--json"], ["status"], ["status", "fine"], ["doctor", "--json"]]
    )
    assert len(table.stdout.splitlines()) == 3
    assert "broken: needs -a?" in table.stdout
    broken_one, fine = json.loads(listed.stdout)["crawls"]
    assert "needed" in broken_one["why"]
    assert (fine["crawl"], fine["phase"]) == ("fine", "absent")
    assert "there is no crawl 'fine' at unix://" in looked.stderr
    assert "existing crawls: none" in looked.stderr
    assert json.loads(doctor.stdout)["fit"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import scrapy\nimport nope\n", "broken.py:2: ModuleNotFoundError: No module named 'nope' ("),
        ("\n\ndef x(:\n", "broken.py:3: SyntaxError: invalid syntax ("),
    ],
)
def test_a_broken_module_of_the_project_is_named(
    make_project: MakeProject, server: RedisServer, source: str, says: str
) -> None:
    """Each command that loads spiders names the module in one line. Commands without a spider still work."""
    project = make_project([], redis_url=server.url)
    (project.folder / "tree_project" / "spiders" / "broken.py").write_text(source)
    name, url = project.name, "http://a.example/1"
    commands = [["status"], ["status", name], ["push", name, url], ["crawl", name], ["adopt", name]]
    *broken, by_name = run_dq_each(project, [*commands, ["search", "--crawl", name]])
    for done in broken:
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1
        assert f"the project's spiders cannot be loaded: tree_project/spiders/{says}" in line
        assert "need no spider with --crawl NAME" in line
    assert "there is no crawl" in by_name.stderr


def test_wrong_usage_has_exit_status_two(make_project: MakeProject) -> None:
    """One line on standard error names the mistake. The command needs neither Redis nor a spider."""
    project = make_project([], redis_url=f"redis://127.0.0.1:{free_port()}/0")
    name, entry_id = project.name, "0" * 24
    commands = [
        ["adopt", name, "-a", "FOO"], ["status", "--watch"], ["failed", name, "x"],
        ["dead", name, entry_id, "x"], ["clear", name], ["clear", "--seen", "http://x"],
        ["search", "http://x"], ["push", name], ["retry", name], ["retry", entry_id],
    ]  # fmt: skip
    for command, done in zip(commands, run_dq_each(project, commands), strict=True):
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), command
        assert done.stderr.startswith(f"scrapy dq {command[0]}: ")


def test_outside_a_project_a_command_creates_no_folder(make_project: MakeProject) -> None:
    """A command prints one line and exits with 1, unless SCRAPY_SETTINGS_MODULE names the settings."""
    project = make_project([])
    (project.folder / "scrapy.cfg").unlink()
    before = sorted(project.folder.rglob("*"))
    commands = [["crawl", "x"], ["status"], ["push", "x", "http://y"]]
    for command, done in zip(commands, run_dq_each(project, commands), strict=True):
        line = f"scrapy dq {command[0]}: no Scrapy project here: run this in the folder that has scrapy.cfg"
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
        assert done.stderr.startswith(line)
    assert sorted(project.folder.rglob("*")) == before
    named = subprocess.run(
        project.command("dq", "status"), cwd=project.folder, capture_output=True, text=True, timeout=120,
        env=project.environ() | {"SCRAPY_SETTINGS_MODULE": "tree_project.settings"}, check=False,
    )  # fmt: skip
    assert named.stdout.splitlines()[1].split() == ["absent", f"{project.name}:", project.name]


def test_a_crawl_that_is_named_needs_no_project(
    make_project: MakeProject, server: RedisServer, live: LiveFrontier
) -> None:
    """--crawl helps with `scrapy runspider`, and on machines without the project. `push` needs a spider."""
    project = make_project([])
    (project.folder / "scrapy.cfg").unlink()
    HandWorker(live, "worker").exchange(put(1))
    where = ["--crawl", live.crawl, "-s", f"REDIS_URL={server.url}"]
    looked, paused, pushed = run_dq_each(
        project, [["status", *where], ["pause", *where], ["push", "http://localhost/", *where]]
    )
    assert f"Crawl {live.crawl!r}" in looked.stdout
    assert (paused.returncode, "paused" in paused.stdout) == (0, True)
    assert (pushed.returncode, "name the spider" in pushed.stderr) == (2, True)


def test_commands_do_not_write_to_the_log_file_of_the_crawl(project: Project) -> None:
    """A command would empty the crawl's log. It writes to --logfile, except through another user's link."""
    log, other = project.folder / "crawl.log", project.folder / "other.log"
    log.write_text("of a crawl")
    settings = ["-s", "LOG_FILE_APPEND=False"]
    with (project.folder / "tree_project" / "settings.py").open("a") as file:
        file.write(f"\nLOG_FILE = {str(log)!r}\n")
    for words in (["status"], ["status", "--logfile", str(other)]):
        assert run_dq(project, *words, project.name, *settings).returncode == 0
    assert (log.read_text(), other.exists()) == ("of a crawl", True)
    if os.geteuid() == 0:
        other.unlink()
        other.symlink_to(log)
        os.chown(other, 65534, 65534, follow_symlinks=False)
        refused = run_dq(project, "status", "--logfile", str(other), project.name, *settings)
        assert (refused.returncode, log.read_text()) == (1, "of a crawl")
        assert "is a link of another user" in refused.stderr
