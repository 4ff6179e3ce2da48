"""The documentation: generated parts are up to date, links have targets, and commands parse."""

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


def generated() -> Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """Yield the page and the text of each block in one of *languages*."""
    for page, text in PAGES.items():
        for language, block in re.findall(r"(?ms)^ *```(\w+)\n(.*?)^ *```$", text):
            if language in languages:
                yield page, block


def commands() -> Iterator[str]:
    """Yield every command line: each line of an `sh` block, and each line after `$` in a `console` block."""
    for _, block in blocks("sh"):
        yield from filter(None, block.splitlines())
    for _, block in blocks("console"):
        yield from re.findall(r"^\$ (.*)", block, re.MULTILINE)


def test_the_generated_parts_are_up_to_date() -> None:
    """`python docs/generate.py` writes these parts."""
    for path, text in generated().generated_files():
        assert path.read_text("utf-8") == text, f"{path.name}: run `python docs/generate.py`"


def test_the_reference_has_every_public_name() -> None:
    """docs/api.md lists exactly the public names, each with a description."""
    assert set(generated().MODULES) == set(PUBLIC)
    for module, names in PUBLIC.items():
        section = re.search(rf"(?ms)^## {module}\n(.*?)(?=^## |\Z)", PAGES["docs/api.md"])
        assert section
        assert set(re.findall(r"(?m)^\| `(\w+)` \| .{10,} \|$", section[1])) == set(names.split())


def test_every_block_has_a_language() -> None:
    """A block without a language would be skipped by the tests that parse commands and Python."""
    for page, text in PAGES.items():
        fences = re.findall(r"(?m)^ *```(.*)$", text)
        assert all(fences[::2]), page
        assert not any(fences[1::2]), page


@pytest.mark.parametrize("command", sorted({line for line in commands() if line.startswith("scrapy dq ")}))
def test_the_command_line_is_understood(command: str) -> None:
    """The command's own parser knows the subcommand and each option."""
    parser, group = ScrapyArgumentParser(conflict_handler="resolve"), Command()
    group.settings = Settings()
    group.add_options(parser)
    options, words = parser.parse_known_args(shlex.split(command.partition(" | ")[0])[2:])
    assert options.subcommand
    assert not [word for word in words if word.startswith("-")]


@pytest.mark.parametrize("subcommand", subcommands(), ids=lambda each: each.name)
def test_a_command_is_documented_as_its_help_says(subcommand: Subcommand) -> None:
    """The section in cli.md has the command's description and each of its options, except the common ones."""
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
    """The command in from-scrapy-redis.md changes imports in files that git tracks, and in no other file."""
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
    """Return the anchors that GitHub makes from the headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_existing_files_and_headings(page: str) -> None:
    """A link to a local page leads to an existing file, and its anchor to an existing heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^ *```.*?^ *```$", "", PAGES[page])):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in slugs(target.read_text("utf-8")), link


def test_files_named_in_the_path_of_a_request_exist() -> None:
    """The page and its picture may leave out the beginning of each path."""
    stored = {f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "scrapy_dq").rglob("*.*")}
    text = PAGES["docs/request.md"] + (DOCS / "pictures" / "request.svg").read_text()
    for name in set(re.findall(r"[\w/]+\.(?:py|lua)\b", text)):
        assert any(path.endswith(f"/{name}") for path in stored), name


def test_files_named_in_the_package_exist() -> None:
    """Docstrings, comments and strings may name the end of a path. Paths in scrapy/ are not checked."""
    folders = ("scrapy_dq", "tests", "benchmarks", "docs", "example_project")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    stored = {f"/{path.relative_to(ROOT).as_posix()}" for path in files}
    for path in (*SOURCES, *LUA):
        for name in set(re.findall(r"(?<![\w/.-])[\w/]+\.(?:py|lua)\b", path.read_text("utf-8"))):
            found = name.startswith("scrapy/") or any(other.endswith(f"/{name}") for other in stored)
            assert found, f"{path.name} names {name}"
