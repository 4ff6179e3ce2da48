"""What a crawl finds around it."""

from __future__ import annotations

from pathlib import Path

import pytest
import scrapy.utils.project

from scrapy_dq import surroundings


def test_two_workers_may_make_the_data_directory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapy finds no `.scrapy`, another process makes it, and Scrapy's mkdir fails: we look again."""
    (tmp_path / "scrapy.cfg").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "scrapy.settings.default_settings")
    mkdir = Path.mkdir

    def beaten(path: Path, *args: object, **kwargs: object) -> None:
        mkdir(path, parents=True)
        mkdir(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(scrapy.utils.project.Path, "mkdir", beaten)
    assert surroundings.data_dir() == tmp_path / ".scrapy" / "dq"
