"""Sphinx: `make docs`. GitHub shows the same pages; what it cannot show is added here.

- index.md: each of its sections becomes a part of the navigation;
- glossary.md: the rows of its table become a glossary, and an emphasized term on any page links to it;
- api.md: the docstrings of the names in `<!-- autodoc: ... -->`;
- `<!-- include: NAME -->`: the text of a file of the project's root, in place of the line above it.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import scrapy_dq

project = "scrapy_dq"
release = version = scrapy_dq.__version__
author = copyright = "the authors of scrapy_dq"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"scrapy_dq {release}"
html_static_path = ["_static"]
html_css_files = ["code.css"]
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write names in single backquotes
myst_heading_anchors = 3
myst_links_external_new_tab = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Blocks that show what a program prints are not always valid in their language.
suppress_warnings = ["misc.highlighting_failure"]

HERE = Path(__file__).parent
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "start.md",
    "SECURITY.md": "security.md",
}
"""The pages that include the files of the project's root."""
TERM = re.compile(r"^\| ([^|]+) \| (.+) \|$", re.MULTILINE)
GLOSSARY = [
    (row[1].split(", "), row[2])
    for row in TERM.finditer((HERE / "glossary.md").read_text("utf-8"))
    if row[1] not in ("term", "---")
]
TERMS = {term for terms, _ in GLOSSARY for term in terms}


def for_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Change the text of one page, before it is parsed."""
    text = re.sub(r"[^\n]+\n\n<!-- include: (\S+) -->", included, source[0])
    text = re.sub(r"\]\((?:\.\./)?([A-Z]+\.md)\b", lambda link: f"]({PAGES[link[1]]}", text)
    text = re.sub(r"\[([^]]+)\]\((?:\.\./)?example_project[^)]*\)", r"\1", text)
    text = re.sub(r"<!-- autodoc: (.+?) -->", documented, text)
    if page == "index":
        text = re.sub(r"(?ms)^## (.+?)\n(.*?)(?=^## |\Z)", navigated, text)
    elif page == "glossary":
        entries = ("\n".join(terms) + f"\n  {meaning}\n" for terms, meaning in GLOSSARY)
        text = text[: text.index("| term |")] + "```{glossary}\n" + "\n".join(entries) + "```\n"
    else:
        text = re.sub(r"(?<!\*)(\*{1,2})([\w -]+)\1(?!\*)", linked, text)
    source[0] = text


def included(mark: re.Match[str]) -> str:
    """Return a file of the root without its title; its links to pages stay links to pages."""
    text = (HERE.parent / mark[1]).read_text("utf-8").partition("\n")[2]
    return text.replace("](docs/", "](")


def documented(mark: re.Match[str]) -> str:
    """Return autodoc's directives for public names."""
    lines = []
    for path in mark[1].split():
        value = getattr(__import__(path.rpartition(".")[0], fromlist=["_"]), path.rpartition(".")[2])
        if isinstance(value, type):
            lines += [f".. autoclass:: {path}", "   :members:", "   :show-inheritance:", ""]
        else:
            lines += [f".. autofunction:: {path}", ""]
    return "```{eval-rst}\n" + "\n".join(lines) + "```"


def navigated(section: re.Match[str]) -> str:
    """Return a section of the index with the pages that it links to as a part of the navigation."""
    pages = re.findall(r"\]\((\w[\w/-]*)\.md\)", section[2])
    return (
        f"{section[0]}\n```{{toctree}}\n:hidden:\n:caption: {section[1]}\n\n" + "\n".join(pages) + "\n```\n\n"
    )


def linked(marked: re.Match[str]) -> str:
    """Return an emphasized term as a link to the glossary; other words stay as they are."""
    stars, word = marked[1], marked[2]
    return f"{stars}{{term}}`{word} <{word.lower()}>`{stars}" if word.lower() in TERMS else marked[0]


def setup(app: Sphinx) -> None:
    app.connect("source-read", for_the_site)
