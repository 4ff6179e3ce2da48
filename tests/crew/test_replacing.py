"""A replaced feed has all items of the run and keeps its earlier content, even if exports are killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.exporters import CsvItemExporter

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import ItemsFolder, Run
from scrapy_dq.crew.feeds.journal import Work
from scrapy_dq.crew.feeds.replacing import ReplacingFileStorage

THIS, LAST = Run("epoch", 3), Run("epoch", 2)


class Feed:
    """A feed in a folder, with the records about it."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "here" / "items"
        self.target.parent.mkdir(parents=True)
        self.home = folder / "data"
        self.folder = ItemsFolder(self.home, "crawl")
        self.folder.path.mkdir(mode=0o700, parents=True)
        self.notes = 0

    def export(self, text: str, *, run: Run = THIS, keeps: bool = False, **options: Any) -> None:
        """Export *text* as all items of the run."""
        with self.opened(run=run, keeps=keeps, **options) as file:
            file.write(text.encode())

    @contextmanager
    def opened(
        self, *, run: Run = THIS, keeps: bool = False, columns: list[str] | None = None, **options: Any
    ) -> Iterator[Any]:
        own = {"work": Work("items", run, "", keeps, ()), "folder": self.folder, "columns": columns}
        storage_class: Any = type("Storage", (ReplacingFileStorage,), own)
        self.options = {"format": "jsonlines"} | options
        storage = storage_class(str(self.target), feed_options=self.options)
        file = storage.open(Spider("any"))
        yield file
        storage.store(file)
        self.appends = storage.appends

    @property
    def text(self) -> str:
        return self.target.read_text()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_each_export_of_a_run_replaces_the_one_before(feed: Feed, overwrite: bool) -> None:
    """Earlier content is kept or dropped as chosen. The mode stays, except execute and setuid bits."""
    feed.export("0\n", run=LAST, overwrite=overwrite)
    feed.target.chmod(0o6750)
    before = "" if overwrite else "0\n"
    for text in ("1\n", "1\n2\n", "1\n2\n"):
        feed.export(text, overwrite=overwrite)
        assert feed.text == before + text
        assert feed.appends == (not overwrite)
    assert feed.target.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(feed.target.parent) == ["items"]


def test_items_written_by_other_programs_are_kept(feed: Feed) -> None:
    """Other programs may append to the feed, as `scrapy crawl -o` does, or replace it."""
    feed.export("1\n", overwrite=True)
    with feed.target.open("a") as file:
        file.write("other\n")
    feed.export("1\n2\n", overwrite=True)
    assert feed.text == "other\n1\n2\n"
    feed.target.rename(feed.target.with_name("away"))
    feed.target.write_text("another\n")
    feed.export("1\n2\n", overwrite=True)
    assert feed.text == "another\n1\n2\n"
    feed.target.unlink()
    feed.export("1\n", overwrite=True)
    assert feed.text == "1\n"


@pytest.mark.parametrize(("known", "keeps", "kept"), [
    ("this run", False, True), ("last run", True, False), ("", True, True), ("", False, False),
])  # fmt: skip
def test_items_that_scrapy_crawl_wrote_in_the_run_are_kept(
    feed: Feed, known: str, keeps: bool, kept: bool
) -> None:
    """Even -O keeps such items. If the run is older than the crew, feeds without a record may have some."""
    feed.target.write_text("0\n")
    if known:
        with feed.folder.beginning(THIS if known == "this run" else LAST, feed.target):
            pass
    feed.export("1\n", overwrite=True, keeps=keeps)
    assert feed.text == ("0\n1\n" if kept else "1\n")
    with feed.folder.beginning(THIS, feed.target) as (held, _):
        assert held


def test_a_batch_replaces_a_file_of_its_name(feed: Feed) -> None:
    for text in ("1\n", "2\n"):
        feed.export(text, batch_item_count=1)
        assert feed.text == text


@pytest.mark.parametrize("form", ["json", "xml"])
def test_nothing_is_appended_to_a_format_with_an_end(feed: Feed, form: str) -> None:
    """The export is refused, and the feed is unchanged."""
    feed.export("[]", run=LAST, format=form)
    feed.export("[1]", run=LAST, format=form)
    with pytest.raises(CrewError, match=r"nothing can be appended to .*items, which"):
        feed.export("[2]", format=form)
    assert feed.text == "[1]"


def test_a_continued_csv_file_has_one_header_and_keeps_its_columns(feed: Feed) -> None:
    """Columns that the file lacks are added at the end. Columns that the user chose are kept."""
    feed.target.write_text("a;'b;'\n1;2\n")
    kwargs = {"delimiter": ";", "quotechar": "'", "lineterminator": "\n"}
    for item in ({"c": 3, "b;": 4}, {"c": 5, "b;": 6}):
        with feed.opened(format="csv", columns=["c", "b;"], item_export_kwargs=kwargs) as file:
            options = feed.options["item_export_kwargs"]
            exporter = CsvItemExporter(file, fields_to_export=feed.options["fields"], **options)
            exporter.export_item(item)
            exporter.finish_exporting()
        assert feed.text == f"a;'b;'\n1;2\n;{item['b;']};{item['c']}\n"
    with feed.opened(run=Run("epoch", 4), format="csv", fields=["a"]):
        assert (feed.options["fields"], feed.options["item_export_kwargs"]) == (
            ["a"], {"include_headers_line": False},
        )  # fmt: skip


def test_a_link_is_followed_but_not_of_another_user(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link's target is replaced. In a shared folder, another user's link could lead to our files."""
    ours = feed.home / "ours"
    ours.write_text("0\n")
    feed.target.symlink_to(ours)
    feed.export("1\n")
    assert feed.target.is_symlink()
    assert ours.read_text() == "0\n1\n"
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = real(path)
        other = path == feed.target
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:])) if other else found

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(CrewError, match="is a link of another user"):
        feed.export("2\n")
    assert ours.read_text() == "0\n1\n"


def test_a_link_or_fifo_of_another_user_is_not_used(feed: Feed) -> None:
    """In a shared folder, another user may make a FIFO or a link in place of the feed or of its copy."""
    feed.target.with_name(".items.new").symlink_to(feed.home / "ours")
    feed.export("1\n")
    assert feed.text == "1\n"
    assert not (feed.home / "ours").exists()
    feed.target.unlink()
    os.mkfifo(feed.target)
    feed.export("2\n")
    assert feed.text == "2\n"


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_export_that_ends_at_any_step_can_be_repeated(tmp_path: Path, overwrite: bool) -> None:
    """The process ends before or after one of the export's changes to files. Then the export is repeated."""
    steps = 0
    while True:
        feed = Feed(tmp_path / f"{steps}")
        feed.export("0\n", run=LAST)
        feed.export("1\n", overwrite=overwrite)
        ended = ended_at(steps, lambda feed=feed: feed.export("1\n2\n", overwrite=overwrite))
        before = "" if overwrite else "0\n"
        assert feed.text in (before + "1\n", before + "1\n2\n")
        feed.export("1\n2\n", overwrite=overwrite)
        assert feed.text == before + "1\n2\n"
        if not ended:
            break
        steps += 1
    assert steps > 15


def ended_at(step: int, work: Callable[[], Any]) -> bool:
    """Do *work* in a process that ends at the *step*-th change of a file. Return whether it ended there."""
    child = os.fork()
    if child == 0:
        count = 0

        def changes(call: Callable[..., Any]) -> Callable[..., Any]:
            def changed(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                for moment in ("before", "after"):
                    if count == step:
                        os._exit(9)
                    count += 1
                    if moment == "before":
                        result = call(*args, **kwargs)
                return result

            return changed

        try:
            for name in ("replace", "fsync", "unlink", "fchmod", "mkdir", "open"):
                setattr(os, name, changes(getattr(os, name)))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9
