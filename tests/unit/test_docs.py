"""The documentation: generated parts are up to date, links lead somewhere, commands are tested."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.settings import Settings

from scrapy_dq.commands import Command
from scrapy_dq.commands.group import subcommands
from scrapy_dq.commands.subcommand import Subcommand
from test_house import LUA, PUBLIC, SOURCES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = (
    "README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "example_project/README", "verification/README",
)  # fmt: skip
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in [*sorted(DOCS.rglob("*.md")), *(ROOT / f"{name}.md" for name in ELSEWHERE)]
}
# By its beginning: a test that runs this command, or why there is none.
COMMANDS = {
    "redis-cli XADD books:start_urls": "tests/scheduling/test_redis_spider.py "
    "test_streams_feed_and_are_told_what_is_done",
    "redis-cli XPENDING books:start_urls": "tests/scheduling/test_redis_spider.py "
    "test_streams_feed_and_are_told_what_is_done",
    "scrapy dq status --crawl": "tests/commands/test_status.py "
    "test_a_crawl_that_does_not_exist_is_reported_with_the_nearest",
    "scrapy dq status": "tests/commands/test_status.py test_all_counts_are_reported",
    "scrapy dq workers": "tests/commands/test_workers.py test_workers_are_listed_with_what_is_known_of_them",
    "scrapy dq search": "tests/commands/test_listing.py test_an_entry_is_found_wherever_it_is",
    "scrapy dq search books http": "tests/commands/test_listing.py test_what_is_known_of_a_url_is_shown",
    "scrapy dq failed": "tests/commands/test_listing.py test_each_is_reported_with_url_reason_time_worker",
    "scrapy dq events": "tests/commands/test_events.py test_a_crawl_with_a_killed_worker",
    "scrapy dq events books --curves": "tests/commands/test_events.py "
    "test_curves_are_drawn_before_the_events",
    "scrapy dq report": "tests/commands/test_report.py test_a_page_holds_all_that_is_known",
    "scrapy dq pause": "tests/commands/test_steering.py test_they_say_which_workers_were_notified",
    "scrapy dq resume": "tests/commands/test_steering.py test_they_say_which_workers_were_notified",
    "scrapy dq stop": "tests/commands/test_steering.py test_they_say_which_workers_were_notified",
    "scrapy dq doctor": "tests/commands/test_doctor.py test_a_redis_that_is_fit",
    "scrapy dq retry books --all": "tests/commands/test_retry.py test_all_says_how_many_and_asks",
    "scrapy dq retry": "tests/commands/test_retry.py test_those_are_retried_that_are_named",
    "scrapy dq push": "tests/commands/test_push.py test_urls_wait_in_the_crawl",
    "scrapy dq limit": "tests/commands/test_limit.py test_each_limit_is_set_and_taken_back",
    "scrapy dq clear books --site": "tests/commands/test_clear.py "
    "test_what_waits_in_one_partition_is_dropped",
    "scrapy dq clear books --seen": "tests/commands/test_clear.py test_what_is_forgotten_can_be_pushed_again",
    "scrapy dq move": "tests/commands/test_move.py test_it_says_what_was_moved_and_which_settings_follow",
    "scrapy dq clear": "tests/commands/test_clear.py test_it_says_what_there_is_and_asks",
    "scrapy dq crawl": "tests/crew/test_crews.py test_ctrl_c_stops_gracefully_and_the_same_command_continues",
    "scrapy dq web": "tests/commands/test_web.py test_steering_without_a_token_makes_one",
    "scrapy dq metrics": "tests/commands/test_metrics.py test_they_are_printed_once",
    "scrapy dq export": "tests/commands/test_export.py test_all_of_a_crawl_travels",
    "scrapy dq import": "tests/commands/test_export.py test_all_of_a_crawl_travels",
    "scrapy dq adopt": "tests/adoption/test_command.py test_what_was_adopted_is_reported",
    "python demo.py": "no test: it is `make demo`",
    "python -m bookshop.site": "tests/crawl/test_example_project.py "
    "test_products_that_are_sold_are_visited_again",
    "scrapy crawl stock": "tests/crawl/test_example_project.py test_products_that_are_sold_are_visited_again",
    "scrapy crawl books": "tests/crawl/test_deploying.py test_a_worker_of_the_unit",
    "scrapy crawl books -s DQ_TRACE=0.01": "tests/scheduling/test_tracing.py "
    "test_one_trace_leads_from_a_start_request_to_each_page_on_two_workers",
    "export ": "no test: it only sets a variable",
    "git grep -lz": "tests/unit/test_docs.py test_the_import_paths_of_a_project_are_changed",
    "redis-cli rpush": "tests/scheduling/test_redis_spider.py "
    "test_what_is_fed_is_crawled_and_the_spider_closes_when_nothing_comes",
    ".venv/bin/python -m pytest tests/crawl/test_real_pages.py": "tests/crawl/test_real_pages.py "
    "test_many_workers_process_the_pages_that_plain_scrapy_does",
    "pip install": "no test: it needs a package index; tests/test_wheel.py installs the wheel without one",
    "cat more.jsonl": "no test: it only shows a file",
    "make simulate": "tests/simulation/test_seeds.py test_no_promise_is_broken",
    "make simulate-mutations": "tests/simulation/test_seeds.py test_a_rule_that_is_taken_out_is_found",
    "cd ": "no test: it only changes the folder",
    "valkey-cli --user admin": "tests/crawl/test_deploying.py test_a_crawl_of_several_shards",
    "redis-cli -s": "no test: redis-cli is not always installed; tests/embedded connects to the same socket",
    "tail redis.log": "no test: it only shows a file",
    "sudo apt-get": "no test: it changes the machine",
}


def generated() -> Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """Yield the page and the text of each block in one of these languages."""
    for page, text in PAGES.items():
        for language, block in re.findall(r"(?ms)^ *```(\w+)\n(.*?)^ *```$", text):
            if language in languages:
                yield page, block


def commands() -> Iterator[str]:
    """Yield every command line: all of a block of sh, those after a prompt in one of console."""
    for _, block in blocks("sh"):
        yield from filter(None, block.splitlines())
    for _, block in blocks("console"):
        yield from re.findall(r"^\$ (.*)", block, re.MULTILINE)


def test_the_generated_parts_are_up_to_date() -> None:
    """`python docs/generate.py` writes them."""
    for path, text in generated().generated_files():
        assert path.read_text("utf-8") == text, f"{path.name}: run `python docs/generate.py`"


def test_the_reference_has_every_public_name() -> None:
    """And its full docstring, if it is not shown elsewhere."""
    assert set(generated().MODULES) == set(PUBLIC)
    for module, names in PUBLIC.items():
        section = re.search(rf"(?ms)^## {module}\n(.*?)(?=^## |\Z)", PAGES["docs/api.md"])
        assert section
        assert set(re.findall(r"(?m)^\| `(\w+)` \| .{10,} \|$", section[1])) == set(names.split())


def test_every_block_has_a_language() -> None:
    """Else a command could stand in one that no test looks at."""
    for page, text in PAGES.items():
        fences = re.findall(r"(?m)^ *```(.*)$", text)
        assert all(fences[::2]), page
        assert not any(fences[1::2]), page


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_is_tested_or_says_why_not(command: str) -> None:
    """The longest beginning counts."""
    found = [beginning for beginning in COMMANDS if command.startswith(beginning)]
    assert found, "name a test that runs it in COMMANDS, or why there is none"
    path, _, test = COMMANDS[max(found, key=len)].partition(" ")
    if path != "no":
        assert re.search(rf"(?m)^(async )?def {test}\(", (ROOT / path).read_text("utf-8"))


def test_every_entry_of_the_table_is_a_command_of_the_docs() -> None:
    assert not [each for each in COMMANDS if not any(line.startswith(each) for line in commands())]


@pytest.mark.parametrize("command", sorted({line for line in commands() if line.startswith("scrapy dq ")}))
def test_the_command_line_is_understood(command: str) -> None:
    """The subcommand and each option exist, by the parser that runs them."""
    parser, group = ScrapyArgumentParser(conflict_handler="resolve"), Command()
    group.settings = Settings()
    group.add_options(parser)
    options, words = parser.parse_known_args(shlex.split(command.partition(" | ")[0])[2:])
    assert options.subcommand
    assert not [word for word in words if word.startswith("-")]


@pytest.mark.parametrize("subcommand", subcommands(), ids=lambda each: each.name)
def test_a_command_is_documented_as_its_help_says(subcommand: Subcommand) -> None:
    """Its section of cli.md has its description, and each option that is not every command's."""
    parser = ScrapyArgumentParser(conflict_handler="resolve")
    subcommand.add_options(parser)
    section = generated().described(subcommand)
    assert section in PAGES["docs/cli.md"]
    assert subcommand.description in section
    own = [each for each in parser._option_string_actions if each.startswith("--")]
    common = {"--help", *generated().COMMON_OPTIONS, "--yes"}
    assert not [each for each in own if f"`{each}" not in section and each not in common]


def test_the_page_of_the_commands_is_short() -> None:
    assert len(PAGES["docs/cli.md"].split()) <= 5_000


def test_the_import_paths_of_a_project_are_changed(tmp_path: Path) -> None:
    """By the command that from-scrapy-redis.md shows: in files that git has, and in no others."""
    (command,) = {line for line in commands() if line.startswith("git grep")}
    for name in ("settings.py", "other.txt", "not_added.py"):
        (tmp_path / name).write_text("SCHEDULER = 'scrapy_redis.scheduler.Scheduler'\n")
    for line in ("git init -q", "git add settings.py other.txt", command):
        subprocess.run(line, shell=True, cwd=tmp_path, check=True, timeout=60)
    changed = [path.name for path in tmp_path.iterdir() if path.is_file() and "scrapy_dq" in path.read_text()]
    assert changed == ["settings.py"]


def test_every_target_of_make_exists() -> None:
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    named = {name for text in PAGES.values() for name in re.findall(r"`make ([\w-]+)", text)}
    assert named <= set(targets)


def test_python_in_the_docs_can_be_parsed() -> None:
    for page, block in blocks("python"):
        ast.parse(textwrap.dedent(block), page)


def slugs(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """To a file that is there, and to a heading in it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^ *```.*?^ *```$", "", PAGES[page])):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in slugs(target.read_text("utf-8")), link


def test_the_files_that_the_way_of_a_request_names_exist() -> None:
    """In the page, and in its picture, which leave out the beginning of a path."""
    stored = {f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "scrapy_dq").rglob("*.*")}
    text = PAGES["docs/request.md"] + (DOCS / "pictures" / "request.svg").read_text()
    for name in set(re.findall(r"[\w/]+\.(?:py|lua)\b", text)):
        assert any(path.endswith(f"/{name}") for path in stored), name


def test_the_files_that_the_package_names_exist() -> None:
    """In its docstrings, comments and strings, without the beginning of a path; but for Scrapy's files."""
    folders = ("scrapy_dq", "tests", "benchmarks", "docs", "example_project")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    stored = {f"/{path.relative_to(ROOT).as_posix()}" for path in files}
    for path in (*SOURCES, *LUA):
        for name in set(re.findall(r"(?<![\w/.-])[\w/]+\.(?:py|lua)\b", path.read_text("utf-8"))):
            found = name.startswith("scrapy/") or any(other.endswith(f"/{name}") for other in stored)
            assert found, f"{path.name} names {name}"
