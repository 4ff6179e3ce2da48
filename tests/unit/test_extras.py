"""Packages that an error tells the user to install can be installed."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scrapy_dq.extras import pip_install

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ["embedded", "web", "metrics", "zstd", "otel"])
def test_the_advice_names_the_packages_of_an_extra(extra: str) -> None:
    """The advice lists all packages of the extra that this Python needs, and no others."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = [
        Requirement(line) for line in setup["options.extras_require"][extra].split("\n") if line.strip()
    ]
    named = [each.name for each in listed if each.marker is None or each.marker.evaluate()]
    assert pip_install(extra) == f"pip install {' '.join(named)}"


def test_without_package_metadata_the_advice_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert pip_install("web") == "install the packages of the extra 'web' of scrapy_dq"


def test_no_text_advises_to_install_scrapy_dq_from_an_index() -> None:
    files = [*(ROOT / "scrapy_dq").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    command = re.compile(r"pip install [^\n`]*scrapy[-_]dq\[")
    assert [str(path.relative_to(ROOT)) for path in files if command.search(path.read_text())] == []
