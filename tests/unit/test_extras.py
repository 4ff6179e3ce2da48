"""If an error advises the user to install packages, pip can find these packages."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scrapy_dq.extras import pip_install

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest depends on it

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ["embedded", "web", "metrics", "zstd", "fast", "otel"])
def test_the_advice_names_the_packages_of_an_extra(extra: str) -> None:
    """The advice lists all packages of the extra that this Python needs, and no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [Requirement(each) for each in project["optional-dependencies"][extra]]
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
