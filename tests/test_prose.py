"""Texts follow the section "Words" of CONTRIBUTING.md: they contain few phrases of its list."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 60
"""Maximum number of phrases per 100,000 words. Scrapy and dramatiq have fewer than 30."""
PARTS = {
    "source": ("scrapy_dq", "benchmarks", "example_project"),
    "tests": ("tests",),
    "documents": ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
}
# The right column of the word list has a better phrase for each group.
PHRASES = re.compile(
    r"""
      \b (?:some|no|any)body \b | \b who(?:so)?ever \b
    | \b (?:is|are|was|were) \s (?:said|told|none) \b | \b says \s so \b
    | \b (?:by|of) \s (?:itself|themselves|its \s own|their \s own) \b
    | \b those \s (?:that|of|who|in|with|which) \b | \b that \s of \b
    | , \s too \b
    | \b (?:once \s more|anew|for \s ever|meanwhile|but \s for|of \s which) \b
    | \b (?:of|by|to|with|in|from|for|at|about|after|before|than) \s what \b
    | (?:^|[.:;]\s) Of \s (?:the|those|these|all|this|each|a|an|one|its|it) \b
    | (?:^|[.:;]\s) What \s (?:is|was|has|it|a|an|the|others|they|can|cannot) \b (?! [^.\n]* \? )
    """,
    re.VERBOSE | re.MULTILINE,
)


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a file: comments and strings of code, or a document without its code blocks."""
    if path.suffix == ".py":
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
                    yield token.string.strip("rfbRFB\"'# ")
    elif path.suffix == ".lua":
        yield from (line.partition("--")[2].strip() for line in path.read_text("utf-8").splitlines())
    elif path.suffix == ".md":
        yield re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text("utf-8"))


@pytest.mark.parametrize("part", PARTS)
def test_texts_have_few_phrases_of_the_word_list(part: str) -> None:
    """A failure lists the phrases. Rewrite the sentences that contain them."""
    words, found = 0, []
    for name in PARTS[part]:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*.*")):
            if path == Path(__file__):
                continue
            for text in texts(path):
                words += len(text.split())
                found += [f"{path.relative_to(ROOT)}: {match[0]!r}" for match in PHRASES.finditer(text)]
    assert words > 10_000
    assert len(found) <= MOST * words / 100_000, "\n".join(found)
