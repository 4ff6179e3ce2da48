"""Write the generated parts of the documentation: `python docs/generate.py`.

A generated part of a page stands between `<!-- generated: NAME -->` and `<!-- end -->`. The sources are the
definitions of the settings and of the commands, the names of the stats and the docstrings of what can be
imported. The lines of docs/settings.md that begin with "Default" are generated, and pictures/request.svg.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import runpy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from scrapy_dq.commands.group import subcommands
from scrapy_dq.commands.subcommand import Subcommand
from scrapy_dq.settings import SETTINGS, Setting
from scrapy_dq.stats import names

DOCS = Path(__file__).parent
MODULES = (
    "scrapy_dq", "scrapy_dq.frontier", "scrapy_dq.queue", "scrapy_dq.embedded", "scrapy_dq.scheduler",
    "scrapy_dq.dupefilter", "scrapy_dq.pipelines", "scrapy_dq.spiders", "scrapy_dq.connection",
    "scrapy_dq.commands", "scrapy_dq.web",
)  # fmt: skip
"""The public modules."""
SUMMARIES = {
    "RFPDupeFilter": "Scrapy's own class, under scrapy-redis's name for its dupefilter.",
    "ShutDown": "The queue was shut down or closed. Since Python 3.13 this is `queue.ShutDown`.",
}
"""Summaries of names that scrapy_dq re-exports from Python or Scrapy, depending on their version."""


COMMON_OPTIONS = {"-h", "-a", "--json", "--crawl", "-y", "-n", "--skip"}
"""Options that cli.md describes once, for all commands."""


def generated_files() -> Iterator[tuple[Path, str]]:
    """Yield each page that has generated parts, and each picture, with its up-to-date text."""
    settings = (DOCS / "settings.md").read_text("utf-8")
    for setting in SETTINGS:
        head = rf"(?m)^(### `{setting.name}`\n\n)Default .*$"
        line = rf"\1Default `{shown_default(setting)}`; {setting.allowed}."
        settings, found = re.subn(head, line, settings)
        if not found:
            raise SystemExit(
                f"docs/settings.md has no section that begins: ### `{setting.name}`, Default ..."
            )
    order = re.findall(r"(?m)^### `(\w+)`$", settings)
    yield DOCS / "settings.md", filled(settings, "settings", settings_table(order))
    for page, part in (("stats.md", stats_table()), ("api.md", public_names())):
        text = (DOCS / page).read_text("utf-8")
        yield DOCS / page, filled(text, page.removesuffix(".md"), part)
    yield DOCS / "cli.md", commands()
    yield (
        DOCS / "pictures" / "request.svg",
        runpy.run_path(str(DOCS / "pictures" / "request.py"))["picture"](),
    )


def shown_default(setting: Setting) -> str:
    """Return the default of a setting, as the documentation writes it."""
    default = setting.default
    if isinstance(default, str):
        return default or '""'
    if isinstance(default, tuple):
        return json.dumps(default)
    return f"{default:.12g}" if isinstance(default, float) else str(default)


def filled(page: str, name: str, part: str) -> str:
    """Return *page* with the text between its two marks replaced by *part*."""
    marks = rf"(<!-- generated: {name} -->\n)(?:.*?\n)??(<!-- end -->)"
    text, found = re.subn(marks, lambda mark: f"{mark[1]}\n{part}\n{mark[2]}", page, flags=re.DOTALL)
    if found != 1:
        raise SystemExit(
            f"a page must contain the mark <!-- generated: {name} --> exactly once; found {found}"
        )
    return text


def settings_table(order: list[str]) -> str:
    """Return the table of all settings, in the *order* of their sections."""
    by_name = {setting.name: setting for setting in SETTINGS}
    rows = [
        f"| [`{name}`](#{name.lower()}) | `{shown_default(by_name[name])}` | {by_name[name].doc} |\n"
        for name in order
    ]
    return "| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)


def commands() -> str:
    """Return cli.md with the list of all commands, and with what `--help` says of each."""
    text = (DOCS / "cli.md").read_text("utf-8")
    rows = []
    for subcommand in subcommands():
        text = filled(text, subcommand.name, described(subcommand))
        heading = re.findall(r"(?m)^## (.*)$", text[: text.index(f"<!-- generated: {subcommand.name} -->")])[
            -1
        ]
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        rows.append(f"- [`{subcommand.name}`](#{anchor}): {subcommand.summary}")
    return filled(text, "commands", "\n".join(rows))


def described(subcommand: Subcommand) -> str:
    """Return usage, description and own options of a command, from the definitions that its parser uses."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    subcommand.add_options(parser)
    rows = []
    for action in parser._actions:
        if not action.option_strings or COMMON_OPTIONS & {*action.option_strings}:
            continue
        value = action.metavar or "|".join(action.choices or ()) if action.nargs != 0 else ""
        value = {"?": f"[{value}]", "*": f"[{value} ...]"}.get(str(action.nargs), value)
        names = ", ".join(f"`{f'{name} {value}'.rstrip()}`" for name in action.option_strings)
        rows.append(f"- {names}: {action.help}\n")
    usage = f"`scrapy dq {subcommand.name} {subcommand.arguments}`"
    return f"{usage}\n\n{subcommand.description}\n\n{''.join(rows)}".rstrip()


def stats_table() -> str:
    """Return the table of this package's stats, by the docstrings below their names."""
    tree = ast.parse(inspect.getsource(names)).body
    rows = []
    for statement, after in pairwise(tree):
        if isinstance(statement, ast.Assign) and isinstance(after, ast.Expr):
            assert isinstance(statement.targets[0], ast.Name)
            assert isinstance(after.value, ast.Constant)
            value = getattr(names, statement.targets[0].id)
            rows.append(f"| `{value}` | {str(after.value.value).rstrip('.')} |\n")
    return "| stat | what it counts |\n|---|---|\n" + "".join(rows)


def public_names() -> str:
    """Return, for each public module, a table of its names; conf.py adds the full docstrings to the site."""
    seen: dict[int, str] = {}
    parts = []
    for path in MODULES:
        module = importlib.import_module(path)
        rows, documented = [], []
        public = sorted(set(module.__all__) - {"__version__"})
        for name in public:
            if getattr(getattr(module, name), "__name__", "") == name:  # not an alias
                seen.setdefault(id(getattr(module, name)), f"{path}.{name}")
        for name in public:
            value, full = getattr(module, name), f"{path}.{name}"
            first = seen.setdefault(id(value), full)
            rows.append(
                f"| `{name}` | {_summary(name, value) if first == full else f'the same as `{first}`'} |\n"
            )
            documented += [full] if first == full and name not in SUMMARIES else []
        marks = f"\n<!-- autodoc: {' '.join(documented)} -->\n" if documented else ""
        parts.append(f"## {path}\n\n| name | what it is |\n|---|---|\n{''.join(rows)}{marks}")
    return "\n".join(parts)


def _summary(name: str, value: Any) -> str:
    # Not inspect.getdoc(), which falls back to Scrapy's own docstring of a base class.
    return SUMMARIES.get(name) or " ".join(inspect.cleandoc(value.__doc__).split("\n\n")[0].split())


def main() -> None:
    for path, text in generated_files():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
