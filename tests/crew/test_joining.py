"""Parts are joined once, whenever the joining process is killed; other runs and -O are respected."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_dq.crew.errors import CrewError, FeedInUse, Interrupted
from scrapy_dq.crew.feeds import records
from scrapy_dq.crew.feeds.joining import Joined, Joining, left_feeds, noted
from scrapy_dq.crew.feeds.parts import PartsFolder, part_path, write_lock
from scrapy_dq.crew.feeds.plan import JoinedFeed, plan_feeds
from scrapy_dq.crew.feeds.records import Run, record_of
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage, run_begins

THIS, LAST = Run("epoch", 3), Run("epoch", 2)


class NoBar:
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


class Feed:
    """A feed of JSON lines in a folder."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "here" / "items.jsonl"
        self.parts = folder / "here" / "items.jsonl.parts"
        self.home = folder / "data"
        self.records = self.home / "feeds"
        self.target.parent.mkdir(parents=True)
        self.said: list[str] = []

    def write_part(self, text: str, run: Run = THIS) -> Path:
        self.parts.mkdir(exist_ok=True)
        part = part_path(self.parts, *run, 1)
        part.write_text(text)
        return part

    def joining(self, overwrite: bool = False, kind: str = "jsonlines") -> Joining:
        options = {"format": kind, "overwrite": overwrite}
        return Joining(JoinedFeed("items.jsonl", self.target, options), "crawl", self.home, self.said.append)

    def join(
        self, *, run: Run = THIS, overwrite: bool = False,
        stopped: Callable[[], None] = lambda: None, took_part: bool = True, began: bool = True,
    ) -> Joined | None:  # fmt: skip
        joining = self.joining(overwrite)
        with joining.held():
            return joining.join(run, NoBar(), stopped, took_part=took_part, began=began)

    def crawl_alone(self, text: str, run: Run = THIS, *, new: bool = False) -> None:
        """Let a `scrapy crawl -O` join *run*, and write to the feed."""
        crawler = Mock(settings={"DQ_DATA_DIR": self.home})
        run_begins(crawler, "crawl", run, new=new)
        storage = UnbufferedFileFeedStorage.from_crawler(
            crawler, str(self.target), feed_options={"overwrite": True}
        )
        with storage.open(Spider("any")) as file:
            file.write(text.encode())

    @property
    def lines(self) -> list[str]:
        return self.target.read_text().splitlines()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def test_parts_are_joined_in_order_and_removed(feed: Feed) -> None:
    """The feed keeps its mode; with all joined, nothing is left beside it."""
    feed.target.write_text("0\n")
    feed.target.chmod(0o640)
    for text in ("1\n2\n", "3\ntor", "4\n"):
        feed.write_part(text)
    assert feed.join() == Joined(feed.target, 4, True)
    assert feed.lines == ["0", "1", "2", "3", "4"]
    assert feed.target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(feed.target.parent)) == ["items.jsonl"]


@pytest.mark.parametrize(("owner", "mode"), [("this user", 0o664), ("another user", None)])
def test_a_feed_never_becomes_a_program(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, owner: str, mode: int | None
) -> None:
    """In a shared folder somebody else may have made a file of that name, with a program and a setuid bit."""
    feed.target.write_text("#!/bin/sh\n")
    feed.target.chmod(0o6775)
    feed.write_part("1\n")
    if owner == "another user":
        uid = os.getuid()
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert feed.join() == Joined(feed.target, 1, True)
    found = feed.target.stat().st_mode & 0o7777
    assert found == mode if mode else not found & 0o7111


@pytest.mark.parametrize("what", ["another user's", "open to others", "a link"])
def test_a_folder_that_somebody_else_may_write_to_is_refused(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """Its links and parts would decide which files are written, and what the feed holds."""
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        feed.parts.symlink_to(tmp_path / "elsewhere")
    else:
        feed.write_part("forged\n")
        feed.parts.chmod(0o777 if what == "open to others" else 0o700)
    if what == "another user's":
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(CrewError, match="only you can write"), feed.joining().held():
        pass
    with pytest.raises(CrewError, match="only you can write"):
        write_lock(feed.parts)
    assert not feed.target.exists()
    assert os.listdir(tmp_path / "elsewhere" if what == "a link" else feed.parts) in ([], [
        part.name for part in feed.parts.glob("*.part")
    ])  # fmt: skip


@pytest.mark.parametrize("what", ["a file", "open to others"])
def test_without_a_record_a_run_that_continues_is_appended_to(feed: Feed, what: str) -> None:
    """The data directory cannot be used: the feed may hold items of the run. One that begins replaces it."""
    if what == "a file":
        feed.home.touch()
    else:
        feed.home.mkdir()
        feed.home.chmod(0o777)
    for text in "123":
        feed.write_part(f"{text}\n")
        feed.join(overwrite=True, began=text == "1")
    assert feed.lines == ["1", "2", "3"]
    assert feed.said == [f"{feed.target}: appended to: it may hold what this run has scraped before"] * 2
    feed.write_part("4\n", Run("epoch", 4))
    feed.join(run=Run("epoch", 4), overwrite=True)
    assert feed.lines == ["4"]
    assert sorted(os.listdir(feed.target.parent)) == ["items.jsonl"]


def test_records_of_the_newest_feeds_are_kept(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """`%(time)s` gives each run a feed of another name."""
    monkeypatch.setattr(records, "MOST_FEEDS", 2)
    for name in ("a", "b", "a", "c"):
        with record_of(feed.target.with_name(name), feed.home) as record:
            record.note("crawl", THIS)
    held = {}
    for name in "abc":
        with record_of(feed.target.with_name(name), feed.home) as record:
            held[name] = record.holds(THIS)
    assert held == {"a": True, "b": False, "c": True}


def test_a_crew_that_came_too_late_empties_no_feed(feed: Feed) -> None:
    """The run is finished: the feed is all of it already, unless its parts are still there."""
    feed.write_part("1\n")
    feed.join(overwrite=True)
    feed.write_part("")
    assert feed.join(overwrite=True, took_part=False) is None
    assert feed.lines == ["1"]
    assert "left unchanged" in feed.said[0]
    assert not feed.parts.exists()
    feed.target.write_text("0\n")
    following = Run("epoch", 4)
    feed.write_part("1\n", following)
    feed.write_part("", following)
    feed.join(run=following, overwrite=True, took_part=False)
    assert feed.lines == ["1"]
    feed.write_part("", Run("epoch", 5))
    feed.join(run=Run("epoch", 5), overwrite=True)
    assert feed.lines == []


def test_parts_of_other_runs_are_joined_or_with_overwrite_left_out(feed: Feed) -> None:
    """A killed parent left them; either way it is said."""
    feed.write_part("1\n", LAST)
    feed.write_part("2\n")
    feed.join()
    assert feed.lines == ["1", "2"]
    feed.write_part("3\n", LAST)
    feed.write_part("4\n", Run("epoch", 4))
    feed.join(run=Run("epoch", 4), overwrite=True)
    assert feed.lines == ["4"]
    assert not feed.parts.exists()
    assert ["also joined" in feed.said[0], "discarded" in feed.said[1]] == [True, True]


def test_without_parts_nothing_is_touched(feed: Feed) -> None:
    """Scrapy does not write a feed without items either, with FEED_STORE_EMPTY off."""
    assert feed.join() is None
    assert not feed.target.exists()
    assert not feed.parts.exists()


def test_a_link_is_followed(feed: Feed, tmp_path: Path) -> None:
    """The file that it leads to is replaced, with its parts beside it."""
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "items.jsonl"
    real.write_text("0\n")
    feed.target.symlink_to(real)
    feed.parts = tmp_path / "real" / "items.jsonl.parts"
    feed.write_part("1\n")
    feed.join()
    assert feed.target.is_symlink()
    assert real.read_text() == "0\n1\n"


def test_a_link_of_another_user_is_not_followed(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a shared folder anybody can make one, to a file of ours, and the feed would replace that."""
    ours = tmp_path / "ours"
    ours.write_text("precious\n")
    feed.target.symlink_to(ours)
    with as_another_user(monkeypatch, feed.target):
        with pytest.raises(CrewError, match=rf"{feed.target} is a link of another user.*choose another file"):
            feed.joining()
        options = {str(feed.target): {"format": "jsonlines"}}
        crawler = Crawler(Spider, {"FEEDS": options})
        crawler.spider = Spider("any")
        with pytest.raises(CrewError, match="is a link of another user"):
            plan_feeds(crawler)
    assert ours.read_text() == "precious\n"
    assert not list(tmp_path.rglob("*.parts"))


@contextmanager
def as_another_user(monkeypatch: pytest.MonkeyPatch, link: Path) -> Iterator[None]:
    """Have *link* belong to a user who is neither this one nor root."""
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:])) if path == link else found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", lstat)
        yield


def test_parts_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Whoever could make files there could add items to the feed."""
    os.close(write_lock(tmp_path / "parts"))
    assert (tmp_path / "parts").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_folder_that_another_user_has_put_in_place_of_the_parts_is_refused(tmp_path: Path) -> None:
    """Whoever may write to the folder above it can rename it; `joined` could then lead to a file of ours."""
    ours = tmp_path / "ours"
    ours.write_text("precious\n")
    folder = PartsFolder(tmp_path / "items.jsonl", tmp_path / "data")
    with folder.held():
        folder.path.rename(tmp_path / "away")
        folder.path.mkdir(mode=0o700)
        folder.joined.symlink_to(ours)
        with pytest.raises(OSError, match="symbolic links"):
            folder.open_joined()
        os.chown(folder.path, 65534, 65534)
        for call in (folder.open_joined, lambda: folder.finished_parts(lambda: None)):
            with pytest.raises(CrewError, match="is not a folder that only you can write to"):
                call()
    assert ours.read_text() == "precious\n"


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_another_user_has_put_in_place_of_a_feed_is_not_read(
    feed: Feed, tmp_path: Path, kind: str
) -> None:
    """In a folder as /tmp anybody can, while the crew works: a FIFO, or a link."""
    feed.write_part("1\n")
    joining = feed.joining()
    if kind == "fifo":
        os.mkfifo(feed.target)
    else:
        (tmp_path / "secret").write_text("0\n")
        feed.target.symlink_to(tmp_path / "secret")
    with joining.held(), pytest.raises(CrewError, match="is not a file any more: remove it"):
        joining.join(THIS, NoBar(), lambda: None)
    assert list(feed.parts.glob("*.part"))


def test_a_worker_that_still_writes_is_waited_for(feed: Feed) -> None:
    """Workers outlive a killed parent for a moment: their part is not removed under them."""
    part = feed.write_part("1\n")
    lock = write_lock(feed.parts)
    joining = threading.Thread(target=feed.join)
    joining.start()
    joining.join(0.2)
    assert joining.is_alive()
    with part.open("a") as more:
        more.write("2\n")
    os.close(lock)
    joining.join(5)
    assert feed.lines == ["1", "2"]
    assert "waiting for their end" in feed.said[0]


def test_an_interrupted_join_leaves_all_as_it_was(feed: Feed) -> None:
    """The next one joins it."""
    feed.target.write_text("0\n")
    feed.write_part("1\n")

    def stopped() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        feed.join(stopped=stopped)
    assert feed.lines == ["0"]
    feed.join()
    assert feed.lines == ["0", "1"]


def test_a_feed_that_cannot_be_written_keeps_its_parts(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, say; it is said where they are."""
    feed.write_part("1\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(CrewError, match=r"No space left.*Its parts stay in .*items.jsonl.parts"):
            feed.join()
    feed.join()
    assert feed.lines == ["1"]


def test_a_feed_with_invalid_json_is_reported_like_others(feed: Feed) -> None:
    """The first of it may look like JSON; where the parts are is said."""
    feed.target.write_text("[1, nonsense]")
    feed.write_part("[2]")
    joining = feed.joining(kind="json")
    says = r"cannot be joined: .*is not valid JSON from here on: 'nonsense]'. Its parts stay in .*parts; "
    with joining.held(), pytest.raises(CrewError, match=says):
        joining.join(THIS, NoBar(), lambda: None)
    assert feed.lines == ["[1, nonsense]"]


def test_a_folder_that_is_removed_again_and_again_is_given_up(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file that is not there any more keeps nobody out."""
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    with pytest.raises(CrewError, match="is removed repeatedly"), feed.joining().held():
        pass


def test_one_crew_at_a_time(feed: Feed) -> None:
    """A second one is refused; after the first it is not."""
    with feed.joining().held(), pytest.raises(CrewError, match="another `scrapy dq crawl` writes"):
        feed.join()
    feed.join()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_at_any_step_joins_nothing_twice_and_loses_nothing(tmp_path: Path, overwrite: bool) -> None:
    """Before and after each call that changes a file; the next crew of the same run makes it good."""
    steps = 0
    while True:
        feed = Feed(tmp_path / f"{steps}")
        feed.write_part("1\n")
        feed.join(overwrite=overwrite)  # this run was stopped once before
        feed.write_part("2\n3\n")
        feed.write_part("4\n5")
        survived = not killed_at(steps, lambda f=feed: f.join(overwrite=overwrite))
        if survived:
            assert feed.lines == ["1", "2", "3", "4"]
        feed.write_part("5\n")
        feed.join(overwrite=overwrite)
        assert Counter(feed.lines) == Counter("12345"), steps
        assert sorted(os.listdir(feed.target.parent)) == ["items.jsonl"]
        if survived:
            break
        steps += 1
    assert steps > 12


def test_a_crew_that_is_killed_at_any_step_is_continued_by_scrapy_crawl(tmp_path: Path) -> None:
    """And that one by the next crew. What the killed one has joined is not emptied, nor joined again."""
    steps, survived = 0, False
    while not survived:
        feed = Feed(tmp_path / f"{steps}")
        feed.crawl_alone("0\n", LAST, new=True)
        feed.write_part("1\n2\n")
        survived = not killed_at(steps, lambda f=feed: f.join(overwrite=True))
        feed.crawl_alone("3\n")
        feed.write_part("4\n")
        feed.join(overwrite=True)
        assert Counter(feed.lines) == Counter("1234"), steps
        steps += 1
    assert steps > 12


def test_the_record_is_locked_until_it_names_the_run_of_a_replaced_feed(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `scrapy crawl -O` in between would empty it, as that of an older run."""
    feed.crawl_alone("0\n", LAST, new=True)
    feed.write_part("1\n")
    replace, locked = os.replace, []

    def replaced(old: Any, new: Any) -> None:
        replace(old, new)
        if new == feed.target:
            with (feed.records / "runs.lock").open() as file, suppress(BlockingIOError):
                locked.append(True)
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                locked.clear()

    monkeypatch.setattr(os, "replace", replaced)
    feed.join(overwrite=True)
    assert locked


def test_a_run_is_one_feed_whichever_way_it_is_crawled(feed: Feed) -> None:
    """By `scrapy crawl -O` and `scrapy dq crawl -O` in turn; the next run replaces it, by either."""

    def crew(text: str, run: Run) -> None:
        feed.write_part(text, run)
        feed.join(run=run, overwrite=True)

    feed.crawl_alone("0\n", LAST, new=True)
    crew("1\n", LAST)
    feed.crawl_alone("2\n", LAST)
    assert feed.lines == ["0", "1", "2"]
    crew("3\n", THIS)
    feed.crawl_alone("4\n")
    crew("5\n", THIS)
    assert feed.lines == ["3", "4", "5"]
    feed.crawl_alone("6\n", Run("epoch", 4))  # it joins others, who began the run with another feed
    assert feed.lines == ["6"]


def test_a_marker_of_version_0_1_0_counts(feed: Feed) -> None:
    """A crew of it was killed as it joined; the marker has no name of the crawl."""
    feed.target.write_text("1\n")
    marker = {"parts": [feed.write_part("1\n").name], "run": THIS}
    (feed.parts / "joined.json").write_text(json.dumps(marker))
    with record_of(feed.target, feed.home) as record:
        record.note("crawl", LAST)
    feed.crawl_alone("2\n")
    feed.write_part("3\n")
    feed.join(overwrite=True)
    assert feed.lines == ["1", "2", "3"]


def test_a_marker_that_others_could_have_written_removes_nothing(
    feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a folder that others can write to, `NAME.parts` may be a link to files of ours."""
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "precious").touch()
    (ours / "joined.json").write_text(json.dumps({"parts": ["precious"], "crawl": "crawl", "run": THIS}))
    feed.parts.symlink_to(ours)
    feed.target.write_text("0\n")
    feed.crawl_alone("1\n", new=True)
    assert sorted(os.listdir(ours)) == ["joined.json", "precious"]
    assert feed.lines == ["1"]
    assert "only you can write" in caplog.text


def killed_at(step: int, work: Callable[[], Any]) -> bool:
    """Do *work* in a child that is ended before or after its n-th change of a file; False: it got through."""
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
            for name in ("replace", "fsync", "unlink", "rmdir", "chmod", "mkdir"):
                setattr(os, name, changes(getattr(os, name)))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def test_what_a_killed_crew_has_left_is_found_by_its_note(feed: Feed) -> None:
    """By a crew of the same crawl that writes another feed; with -O, what the feed holds stays."""
    say, home = feed.said.append, feed.home
    target = feed.target.with_name("b.jsonl")
    other = Joining(JoinedFeed("b.jsonl", target, {"format": "jsonlines"}), "crawl", home, say)
    with noted(feed.joining(overwrite=True)):
        feed.write_part('{"n": 1}\n', LAST)
        assert not left_feeds("crawl", [feed.joining()], home, say), "its own"
        assert not left_feeds("another crawl", [other], home, say)
        (left,) = left_feeds("crawl", [other], home, say)
        with pytest.raises(FeedInUse), noted(left):
            pass
    feed.target.write_text('{"n": 0}\n')
    (feed.records / "of-0.1.0.json").write_text('{"run": ["epoch", 1]}')
    feed.write_part('{"n": 2}\n')
    (left,) = left_feeds("crawl", [other], home, say)
    with noted(left):
        assert left.join(THIS, NoBar(), lambda: None, took_part=False) == Joined(feed.target, 2, True)
    assert [json.loads(line)["n"] for line in feed.lines] == [0, 1, 2]
    assert [note.name for note in feed.records.glob("*.json")] == ["of-0.1.0.json"]
    assert not left_feeds("crawl", [other], home, say)


def test_a_feed_that_cannot_be_noted_is_reported(feed: Feed) -> None:
    """And written: others may write to the data directory, say."""
    feed.home.mkdir()
    feed.home.chmod(0o777)
    with noted(feed.joining()):
        feed.write_part("{}\n")
    assert f"nothing is recorded about {feed.target}: " in feed.said[0]
    assert "only a `scrapy dq crawl` with the same feed joins its parts" in feed.said[0]
    assert not left_feeds("crawl", [], feed.home, feed.said.append)
