"""Which worker empties a feed with `overwrite`: each file is emptied once in a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Spider

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds import storage
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage


class Feed:
    """The file of a feed, with items of an earlier run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path.parent.with_name("data")

    def worker(
        self, run: int, *, new: bool, overwrite: bool = True, crawl: str = "crawl", form: str = "jsonlines",
        batch: int = 0,
    ) -> Any:  # fmt: skip
        """Let a worker join *run* and open the feed. *new*: no worker has scraped anything in the run yet."""
        crawler = Mock(settings={"DQ_DATA_DIR": self.home})
        storage.run_begins(crawler, crawl, "epoch", run, new=new)
        return UnbufferedFileFeedStorage.from_crawler(
            crawler,
            str(self.path),
            feed_options={"overwrite": overwrite, "format": form, "batch_item_count": batch},
        )

    def write(self, storage: Any, item: str) -> None:
        with storage.open(Spider("any")) as file:
            file.write(item.encode())

    @property
    def notes(self) -> list[Path]:
        return sorted(self.home.glob("items/crawl/*.notes"))

    @property
    def text(self) -> str:
        return self.path.read_text()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    made = Feed(tmp_path / "folder" / "items.jsonl")
    made.write(made.worker(0, new=True), "0")
    assert made.text == "0"
    return made


def test_the_first_worker_empties_the_file_as_it_begins(feed: Feed) -> None:
    """If the file were emptied with the first item, the items of a worker that joined later would be lost."""
    first = feed.worker(1, new=True)
    feed.write(feed.worker(1, new=False), "a")
    feed.write(first, "b")
    assert feed.text == "ab"


def test_a_worker_that_continues_appends(feed: Feed) -> None:
    """A later worker appends even if the first worker was killed before it scraped an item."""
    feed.worker(1, new=True)
    feed.write(feed.worker(1, new=False), "a")
    feed.write(feed.worker(1, new=False), "b")
    assert feed.text == "ab"


def test_a_later_worker_on_another_host_empties_its_own_file(feed: Feed) -> None:
    """The first worker ran on another host, so this host's file is from the previous run."""
    feed.write(feed.worker(1, new=False), "a")
    assert feed.text == "a"


def test_a_file_without_a_record_is_kept_if_the_run_continues(feed: Feed) -> None:
    """The file may be from this run, whose items will not be scraped again."""
    shutil.rmtree(feed.home)
    feed.write(feed.worker(1, new=False), "a")
    assert feed.text == "0a"
    shutil.rmtree(feed.home)
    feed.write(feed.worker(2, new=True), "b")
    assert feed.text == "b"


def test_without_overwrite_nothing_is_emptied(feed: Feed) -> None:
    """The run is recorded, so later workers with `overwrite` keep the file. Batch files are not recorded."""
    feed.worker(1, new=True, overwrite=False, batch=5)
    assert [note.name[:15] for note in feed.notes] == ["epoch.000000000"]
    feed.write(feed.worker(1, new=True, overwrite=False), "a")
    assert feed.text == "0a"
    assert [note.name[:15] for note in feed.notes] == ["epoch.000000001"]
    feed.write(feed.worker(1, new=False), "b")
    assert feed.text == "0ab"


@pytest.mark.parametrize("form", ["json", "csv", "xml"])
def test_appending_to_json_csv_or_xml_is_reported(
    feed: Feed, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A second `scrapy crawl -o items.csv` or a later worker appends, which only jsonlines files allow."""
    feed.write(feed.worker(1, new=True, form=form), "a")
    assert caplog.text == ""
    feed.write(feed.worker(1, new=False, overwrite=False), "b")
    assert caplog.text == ""
    feed.write(feed.worker(1, new=False, overwrite=False, form=form), "c")
    assert "items.jsonl: it is not empty" in caplog.text
    assert f"Appended {form} has a second beginning" in caplog.text


def test_a_storage_that_scrapy_creates_as_a_test_does_not_empty_the_file(feed: Feed) -> None:
    """Scrapy creates these storages before the worker has joined a run."""
    UnbufferedFileFeedStorage.from_crawler(Mock(), str(feed.path), feed_options={"overwrite": True})
    assert feed.text == "0"


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_link_of_another_user_is_not_followed(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, overwrite: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The link is refused when Scrapy tests the storage, and also if it appears later."""
    ours = feed.path.with_name("ours")
    ours.write_text("precious")
    options = {"overwrite": overwrite, "format": "jsonlines"}
    begun = feed.worker(1, new=True, overwrite=overwrite)
    feed.path.unlink()
    feed.path.symlink_to(ours)
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:])) if path == feed.path else found

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(CrewError, match="is a link of another user"):
        UnbufferedFileFeedStorage.from_crawler(Mock(), str(feed.path), feed_options=options)
    assert "A feed cannot be written" in caplog.text
    with pytest.raises(CrewError):
        feed.write(begun, "a")
    assert ours.read_text() == "precious"


@pytest.mark.parametrize("what", ["another user's", "open to others"])
def test_a_record_that_another_user_could_have_written_is_ignored(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    if what == "open to others":
        feed.home.chmod(0o777)
    else:
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    before = feed.notes
    feed.write(feed.worker(1, new=False), "a")
    assert feed.text == "0a"
    assert feed.notes == before
    assert "is not a folder that only you can write to" in caplog.text


def test_without_records_only_a_new_run_empties_the_file(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the record that cannot be written, and the setting DQ_DATA_DIR."""
    shutil.rmtree(feed.home)
    feed.home.touch()
    feed.write(feed.worker(1, new=False), "a")
    assert feed.text == "0a"
    feed.write(feed.worker(2, new=True), "b")
    assert feed.text == "b"
    assert f"not recorded: [Errno 17] File exists: '{feed.home}'. DQ_DATA_DIR names" in caplog.text
    assert os.listdir(feed.path.parent) == ["items.jsonl"]


def test_only_the_first_worker_of_each_crawl_empties_a_shared_file(feed: Feed) -> None:
    """A worker that joins one crawl later does not empty the file, which now has items of the other crawl."""
    feed.write(feed.worker(1, new=True), "a")
    feed.write(feed.worker(7, new=True, crawl="other"), "o")
    feed.write(feed.worker(1, new=False), "b")
    feed.write(feed.worker(7, new=False, crawl="other"), "p")
    assert feed.text == "obp"
