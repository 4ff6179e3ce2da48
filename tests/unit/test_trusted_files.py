"""Files that are opened by a path that a project names, where other users may have been first."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage
from scrapy_dq.crew.launch import log_paths
from scrapy_dq.crew.private_folder import make_private
from scrapy_dq.crew.trusted_files import open_trusted, resolved


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder that is as /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def give_away(path: Path) -> None:
    """Make it another user's."""
    os.chown(path, 65534, 65534, follow_symlinks=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
@pytest.mark.parametrize("kind", ["link", "link in a link", "link in their folder", "folder"])
def test_what_others_have_put_on_the_way_to_it_is_not_entered(
    tmp_path: Path, shared: Path, kind: str
) -> None:
    """They may have taken the name of the folder."""
    ours = tmp_path / "home"
    ours.mkdir()
    (ours / "items.jl").write_text("precious")
    if kind == "folder":
        (shared / "out").mkdir()
    else:
        (shared / "out").symlink_to(ours)
    give_away(shared / "out")
    if kind == "link in their folder":
        give_away(shared)
    (tmp_path / "link").symlink_to("tmp/../tmp")
    folder = tmp_path / "link" if kind == "link in a link" else shared
    options = {"overwrite": True, "format": "jsonlines"}
    for below in ("items.jl", "more/items.jl"):
        with pytest.raises(CrewError, match=f"{shared / 'out'} (is a link of|belongs to) another user"):
            UnbufferedFileFeedStorage.from_crawler(Mock(), str(folder / "out" / below), feed_options=options)
        with pytest.raises(CrewError):
            open_trusted(folder / "out" / below, os.O_WRONLY | os.O_CREAT)
        with pytest.raises(CrewError):
            make_private(folder / "out" / below)
    assert [path.read_text() for path in ours.iterdir()] == ["precious"]


def test_a_path_leads_where_the_kernel_finds_it(tmp_path: Path) -> None:
    """Through links of one's own, and through parents of what they lead to."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "a/b/up").symlink_to("../../absolute")
    (tmp_path / "absolute").symlink_to(tmp_path / "a")
    (tmp_path / "round").symlink_to("round")
    for path in ("link/../x", "link/up/x", "absolute/b/up/b/../x", "a/./b//x"):
        assert resolved(tmp_path / path) == Path(os.path.realpath(tmp_path / path))
    with pytest.raises(CrewError, match=r"does not exist, and \.\. follows it"):
        resolved(tmp_path / "none/../link/x")
    with pytest.raises(OSError, match="symbolic links"):
        open_trusted(tmp_path / "round", os.O_WRONLY | os.O_CREAT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
def test_the_logs_of_a_crew_are_not_written_to_what_others_have_made(
    tmp_path: Path, shared: Path, kind: str
) -> None:
    """LOG_FILE gets the number of each worker, which everybody can guess; a pipe would be waited for."""
    ours, log = tmp_path / "ours", shared / "crawl-2.log"
    ours.write_text("precious")
    if kind == "link":
        log.symlink_to(ours)
    else:
        os.mkfifo(log) if kind == "pipe" else log.write_text("theirs")
        log.chmod(0o666)
    give_away(log)
    with pytest.raises(CrewError, match=f"{log} (is a link of|may have been put there by) another user"):
        log_paths(2, tmp_path / "logs", str(shared / "crawl.log"), "books")
    assert ours.read_text() == "precious"
    assert kind != "file" or log.read_text() == "theirs"


def test_a_pipe_that_was_put_there_just_now_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was nothing when it was looked at; whoever reads from a pipe decides when it opens."""
    pipe, real = tmp_path / "pipe", Path.lstat
    os.mkfifo(pipe)

    def lstat(path: Path) -> os.stat_result:
        if path == pipe:
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(OSError, match="No such device"):
        open_trusted(pipe, os.O_WRONLY | os.O_CREAT)


def test_the_logs_of_a_crew_are_appended_to(tmp_path: Path) -> None:
    """As Scrapy does with its LOG_FILE; their folder is made."""
    for _ in range(2):
        for path in log_paths(2, tmp_path, str(tmp_path / "new/crawl.log"), "books"):
            with open(path, "ab", opener=open_trusted) as log:
                log.write(b"x")
    assert (tmp_path / "new/crawl-2.log").read_text() == "xx"
