"""Symbolic links in place of files that a project names: only links of this user or of root are followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrapy_dq.crew import launch
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.launch import log_paths
from scrapy_dq.crew.own_files import open_own, real_path


def test_a_link_of_the_same_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("items.jl")
    with open(tmp_path / "link", "w", opener=open_own) as file:
        file.write("x")
    assert real_path(tmp_path / "link").samefile(tmp_path / "items.jl")
    assert (tmp_path / "items.jl").read_text() == "x"
    with open("/dev/stderr", "ab", buffering=0, opener=open_own) as file:  # a link of root
        file.write(b"")


def test_a_link_that_was_made_just_now_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link appeared after the code had checked the path."""
    (tmp_path / "ours").write_text("precious")
    (tmp_path / "link").symlink_to("ours")
    monkeypatch.setattr(os.path, "islink", lambda path: False)
    monkeypatch.setattr(Path, "is_symlink", lambda path: False)
    with pytest.raises(OSError, match="symbolic links"):
        open_own(tmp_path / "link", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert (tmp_path / "ours").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_logs_of_a_crew_are_not_written_through_links_of_another_user(tmp_path: Path) -> None:
    """Each log's name contains the number of its worker, so any user can guess the name."""
    (tmp_path / "ours").write_text("precious")
    log = tmp_path / "crawl-2.log"
    log.symlink_to("ours")
    os.chown(log, 65534, 65534, follow_symlinks=False)
    with pytest.raises(CrewError, match=f"{log} is a link of another user"):
        log_paths(2, tmp_path / "logs", str(tmp_path / "crawl.log"), "books", tmp_path)
    assert (tmp_path / "ours").read_text() == "precious"


def test_the_logs_of_a_crew_are_appended_to(tmp_path: Path) -> None:
    """The crew appends to its logs as Scrapy does to a LOG_FILE, and makes missing folders."""
    for _ in range(2):
        for path in log_paths(2, tmp_path, str(tmp_path / "new/crawl.log"), "books", tmp_path):
            with open(path, "ab", opener=open_own) as log:
                log.write(b"x")
    assert (tmp_path / "new/crawl-2.log").read_text() == "xx"


def test_a_crew_may_take_the_last_logs_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crew is refused only if too few unused names for its logs are left."""
    monkeypatch.setattr(launch, "MAX_LOGS", 2)
    assert len(log_paths(2, tmp_path, None, "books", tmp_path)) == 2
    with pytest.raises(CrewError, match="locked by another process"):
        log_paths(3, tmp_path, None, "books", tmp_path)
