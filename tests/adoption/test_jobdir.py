"""The adoption of a crawl that Scrapy's own scheduler has left in a JOBDIR."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.utils.misc import load_object
from scrapy.utils.request import RequestFingerprinter

from adoption.conftest import Case
from scrapy_dq.adoption.source import BadSource
from scrapy_dq.adoption.takeover import Report
from scrapy_dq.commands.adopt import _advice
from scrapy_dq.frontier import keys

SQUEUES = [
    f"{serializer}{order}{kind}"
    for kind in ("DiskQueue", "SQLiteQueue")
    for serializer in ("Pickle", "Marshal")
    for order in ("Lifo", "Fifo")
]
ORDERS = {"Lifo": "priority-lifo", "Fifo": "priority-fifo"}
HOST = "http://example.com"


def url(number: int) -> str:
    return f"{HOST}/{number}"


def settings_of(queue: str) -> dict[str, Any]:
    return {
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}",
        # The default, DownloaderAwarePriorityQueue, needs an engine, and serves slots alternately.
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
    }


class Left:
    """A JOBDIR that Scrapy's own scheduler fills and empties."""

    def __init__(self, case: Case, folder: Path, **settings: Any) -> None:
        self._case = case
        self.folder = folder / "job"
        self.settings = settings

    def scheduler(self, folder: Path | None = None) -> Scheduler:
        crawler = self._case.crawler(**self.settings, JOBDIR=str(folder or self.folder))
        crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
        scheduler = Scheduler.from_crawler(crawler)
        assert crawler.spider is not None
        scheduler.open(crawler.spider)
        return scheduler

    def fill(self, requests: Sequence[Request], *, close: bool = True) -> Scheduler:
        scheduler = self.scheduler()
        for request in requests:
            assert scheduler.enqueue_request(request)
        if close:
            scheduler.close("shutdown")
        return scheduler

    def served(self) -> list[str]:
        """Return the URLs in Scrapy's order. The folder is not changed."""
        copied = self.folder.with_name("copied")
        shutil.copytree(self.folder, copied)
        scheduler, found = self.scheduler(copied), []
        while (request := scheduler.next_request()) is not None:
            found.append(request.url)
        scheduler.close("finished")
        return found

    def adopt(self, **options: Any) -> Report:
        return self._case.adopt(self.settings, jobdir=str(self.folder), **options)


@pytest.fixture
def left(case: Case, tmp_path: Path) -> Left:
    return Left(case, tmp_path, **settings_of("PickleLifoDiskQueue"))


def some(count: int) -> list[Request]:
    rng = random.Random(7)
    return [
        Request(
            url(n), priority=rng.choice((0, 5, -3)), dont_filter=n % 3 == 0, meta={"depth": n},
            headers={"X": str(n)}, cookies={"c": "d"} if n % 5 == 0 else {},
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("queue", SQUEUES)
def test_requests_are_served_as_scrapy_would_have(queue: str, case: Case, tmp_path: Path) -> None:
    """Each disk queue is adopted in several batches. Start requests come last, from another queue."""
    order = next(order for name, order in ORDERS.items() if name in queue)
    left = Left(case, tmp_path, **settings_of(queue), DQ_ORDER=order)
    requests = some(1_200)
    for request in requests[::4]:
        request.meta["is_start_request"] = True
    left.fill(requests)
    report = left.adopt()
    assert (report.counts.adopted, report.counts.known, report.counts.dead) == (1200, 0, 0)
    assert (report.counts.fingerprints, report.counts.invalid_fingerprints) == (800, 0)
    assert report.source.served == order
    assert left.served() == [request.url for request in case.serve(**left.settings)]


def test_a_queue_with_a_folder_for_each_slot_is_adopted(case: Case, tmp_path: Path) -> None:
    """Scrapy's default, DownloaderAwarePriorityQueue, has a folder for each slot."""
    left = Left(case, tmp_path, **settings_of("PickleLifoDiskQueue"))
    left.folder.joinpath("requests.queue").mkdir(parents=True)
    crawler = case.crawler(**left.settings)

    downloader = SimpleNamespace(slots={}, get_slot_key=lambda request: request.url.split("/")[2])
    crawler.engine = SimpleNamespace(downloader=downloader)  # type: ignore[assignment]
    queue = DownloaderAwarePriorityQueue.from_crawler(
        crawler, load_object(left.settings["SCHEDULER_DISK_QUEUE"]), str(left.folder / "requests.queue")
    )
    urls = [f"http://host{n % 7}.example/{n}" for n in range(100)]
    for each in urls:
        queue.push(Request(each))
    queue.close()
    assert left.adopt().counts.adopted == 100
    assert sorted(request.url for request in case.serve(**left.settings)) == sorted(urls)


def test_pages_that_scrapy_has_seen_are_not_crawled_again(left: Left, case: Case) -> None:
    """Pages that Scrapy has seen are in the crawl's `seen`, with the fingerprints that our workers use."""
    requests = [Request(url(n)) for n in range(30)]
    left.fill(requests)
    scheduler = left.scheduler()
    for _ in range(10):
        assert scheduler.next_request() is not None
    scheduler.close("shutdown")
    report = left.adopt()
    assert (report.counts.adopted, report.counts.new_fingerprints) == (20, 30)
    seen = case.client.smembers(keys.prefix(case.name) + "seen")
    fingerprint = RequestFingerprinter(case.crawler()).fingerprint
    assert seen == {fingerprint(request) for request in requests}


def test_fingerprints_of_older_versions_are_read(left: Left, case: Case) -> None:
    """Before Scrapy 2.19, each fingerprint was a line of text. Invalid lines are counted."""
    left.fill([Request(url(0), dont_filter=True)])
    fingerprint = RequestFingerprinter(case.crawler()).fingerprint
    found = [fingerprint(Request(url(n))).hex() for n in range(2_500)]
    (left.folder / "requests.seen").write_text("\n".join([*found, "none", ""]))
    counts = left.adopt().counts
    assert (counts.fingerprints, counts.new_fingerprints, counts.invalid_fingerprints) == (2501, 2500, 1)


def test_fingerprints_of_any_size_are_read(left: Left) -> None:
    """A project's fingerprinter may return fingerprints of another size than Scrapy's."""
    left.fill([Request(url(0), dont_filter=True)])
    (left.folder / "requests.seen").write_text("\n".join(["ab" * 32, "cd" * 32, ""]))
    assert left.adopt().counts.new_fingerprints == 2


def test_a_jobdir_deleted_during_the_adoption_is_reported(left: Left, case: Case) -> None:
    left.fill([Request(url(n)) for n in range(2_000)])
    case.progress.while_under_way = lambda: shutil.rmtree(left.folder, ignore_errors=True)
    with pytest.raises(BadSource, match=r"cannot be read .* Requests that were already adopted stay"):
        left.adopt()


def test_a_repeated_adoption_stores_nothing_twice(left: Left, case: Case, tmp_path: Path) -> None:
    """Equal requests are recognized, even from a copy of the folder."""
    left.fill([*some(50), *[Request(HOST, dont_filter=True)] * 3])
    assert left.adopt().counts.adopted == 53
    left.folder = Path(shutil.copytree(left.folder, tmp_path / "another"))
    again = left.adopt().counts
    assert (again.adopted, again.known, again.new_fingerprints) == (0, 53, 0)
    assert case.look().census.waiting == 53


def test_an_unreadable_request_becomes_a_dead_letter(left: Left, case: Case) -> None:
    """The class that the pickle names is not imported. The other request is adopted."""
    left.fill([Request(url(0), meta={"of": Path("x")}), Request(url(1))])
    counts = left.adopt().counts
    assert (counts.adopted, counts.dead) == (1, 1)
    (reason,) = case.dead()
    assert reason.startswith("it names pathlib.")


def test_the_jobdir_of_a_killed_crawl_is_adopted(left: Left, case: Case) -> None:
    """The process was killed, so the file still has the count of requests from when it was opened."""
    scheduler = left.fill(some(40), close=False)
    assert scheduler.dqs is not None
    for queue in scheduler.dqs.queues.values():
        queue.f.flush()  # type: ignore[attr-defined]
    killed = left.folder.with_name("killed")
    shutil.copytree(left.folder, killed)
    scheduler.close("shutdown")
    left.folder = killed
    report = left.adopt()
    assert report.counts.adopted == 40
    assert "was interrupted" in " ".join(_advice(report, case.crawler(), ""))


def test_a_truncated_file_is_refused(left: Left, case: Case) -> None:
    left.fill([Request(url(n)) for n in range(20)])
    (path,) = left.folder.glob("requests.queue/0")
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadSource, match=r"requests.queue/0 is damaged"):
        left.adopt()
    assert not case.client.keys(keys.prefix(case.name) + "*")


def test_a_truncated_fifo_file_is_read_up_to_the_cut(case: Case, tmp_path: Path) -> None:
    left = Left(case, tmp_path, **settings_of("PickleFifoDiskQueue"))
    left.fill([Request(url(n)) for n in range(20)])
    (path,) = left.folder.glob("requests.queue/0/q00000")
    path.write_bytes(path.read_bytes()[:-7])
    report = left.adopt()
    assert (report.counts.adopted, report.source.closed) == (19, False)


def test_a_jobdir_of_another_spider_is_refused(left: Left, case: Case) -> None:
    """The requests name callbacks that this spider does not have."""
    left.fill([Request(url(1))])
    (path,) = left.folder.glob("requests.queue/0")
    path.unlink()
    queue = load_object(left.settings["SCHEDULER_DISK_QUEUE"])(case.crawler(), str(path))
    super(type(queue), queue).push(Request(url(1)).to_dict() | {"callback": "parse_other"})
    queue.close()
    with pytest.raises(BadSource, match=r"is not the JOBDIR of spider .*parse_other.*Nothing was adopted"):
        left.adopt()
    assert not case.client.keys(keys.prefix(case.name) + "*")


def test_fingerprints_of_another_fingerprinter_are_refused(left: Left, case: Case) -> None:
    """Otherwise all finished pages would be crawled again."""
    left.fill([Request(url(n)) for n in range(5)])
    (left.folder / "requests.seen").write_bytes(b"\0\x14" + b"x" * 20)
    with pytest.raises(BadSource, match="another REQUEST_FINGERPRINTER_CLASS"):
        left.adopt()
    assert not case.client.keys(keys.prefix(case.name) + "*")


def test_a_folder_that_is_not_a_jobdir_is_refused(left: Left, tmp_path: Path) -> None:
    left.folder = tmp_path
    with pytest.raises(BadSource, match=r"is not a JOBDIR of Scrapy: it has neither requests.queue nor"):
        left.adopt()


def test_the_order_of_an_sqlite_queue_must_be_known(case: Case, tmp_path: Path) -> None:
    left = Left(case, tmp_path, **settings_of("PickleFifoSQLiteQueue"))
    left.fill([Request(url(n)) for n in range(5)])
    left.settings = settings_of("PickleLifoDiskQueue")
    with pytest.raises(BadSource, match="add --queue fifo or --queue lifo"):
        left.adopt()
    assert left.adopt(queue="fifo").source.served == "priority-fifo"


def test_a_jobdir_in_use_is_refused(left: Left, case: Case) -> None:
    """The queue would change during the adoption."""
    filter_ = RFPDupeFilter(str(left.folder.parent))  # this opens requests.seen
    left.folder = left.folder.parent
    with pytest.raises(BadSource, match=r"process \d+ uses .*: stop its crawl with one Ctrl-C"):
        left.adopt()
    filter_.close("finished")


def test_an_empty_jobdir_has_nothing_to_adopt(left: Left, case: Case) -> None:
    left.fill([])
    report = left.adopt()
    assert report.nothing
    assert "There is nothing to adopt" in " ".join(_advice(report, case.crawler(), ""))
