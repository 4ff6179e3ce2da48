"""`scrapy dq export` and `import` move a whole crawl. A command that would lose a part of it refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from commands.conftest import Dq
from commands.test_clear import TTL, beaten, quick_looks  # noqa: F401  fixtures
from commands.test_listing import WHERE, by_place, everywhere, page  # noqa: F401  fixtures
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.exports.files import BadExport
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import Admission, FrontierRefused
from scrapy_dq.frontier.reader import Reader
from scrapy_dq.inspection.place import NoSuchCrawl
from support.killed import MAX_COUNT, killed_before
from support.live_frontier import HandWorker, LiveFrontier, ack, put
from support.redis_server import RedisServer
from support.stored import roll_back

KEPT = {place: page for place, page in WHERE.items() if place not in ("in flight", "declined")}
PLACES = KEPT | {"returned": "129"}
"""For each place: the pages of `everywhere` that are there after an import.

Pages that were leased or declined are then `returned`.
"""


pytestmark = pytest.mark.usefixtures("_quick_disks")


@pytest.fixture
def new(live: LiveFrontier, server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Iterator[Dq]:
    """Yield the commands for a crawl that does not exist yet. Its shards are deleted at the end."""
    name = f"{live.crawl}-new"
    yield Dq(server.url, name, capsys)
    for number in range(4):
        roll_back(live.redis, Shard(name, number), {})


@pytest.fixture
def exported(dq: Any, everywhere: LiveFrontier, tmp_path: Path) -> Path:  # noqa: F811
    """Return an export of a crawl that has an entry in each place. The export leaves the crawl unchanged."""
    path = tmp_path / "books.jsonl"
    before = everywhere.dump()
    dq.text("export", str(path), **TTL)
    assert everywhere.dump() == before
    return path


def places(dq: Dq) -> dict[str, str]:
    found = Counter[str]()
    urls: dict[str, str] = {}
    for each in dq.found("search", "shop.example/p/")["entries"]:
        found[each["where"]] += 1
        urls[each["where"]] = "".join(sorted(urls.get(each["where"], "") + each["request"]["url"][-1]))
    return urls


@pytest.mark.parametrize("settings", [{}, {"DQ_SHARDS": 3, "DQ_ORDER": "fifo", "DQ_SEEN": "compact"}])
def test_an_import_restores_the_whole_crawl(new: Dq, exported: Path, settings: dict[str, Any]) -> None:
    """Each entry is in its place again, even with other settings. A second import changes nothing."""
    settings = {"DQ_PARTITION_BY": "none", **settings}
    text = new.text("import", str(exported), **settings)
    assert f"Crawl {new.crawl!r} at " in text
    assert re.search(r"^requests +9$", text, re.MULTILINE)
    assert f"Continue with: scrapy crawl <spider> -s DQ_CRAWL={new.crawl}" in text
    assert places(new) == PLACES
    status = new.found("status", "--no-rate")
    assert (status["waiting"], status["delayed"], status["dead"], status["failed"]) == (6, 1, 1, 1)
    again = new.text("import", str(exported), **settings)
    assert "This file was imported before.\n" in again
    assert new.found("import", str(exported), **settings)["before"]
    assert places(new) == PLACES


def test_all_urls_are_exported_without_logins(dq: Any, everywhere: LiveFrontier, beaten: HandWorker) -> None:  # noqa: F811
    """The list contains the URL of each entry, without its login. It can be made while workers live."""
    urls = dq.lines("export", "--urls", "-")
    assert len(urls) == 9
    assert "http://...@shop.example/p/5" in urls
    assert "s3cret" not in dq.printed


def test_a_crawl_with_live_workers_is_refused_unless_it_is_on_hold(
    dq: Any,
    live: LiveFrontier,
    beaten: HandWorker,  # noqa: F811
    tmp_path: Path,
) -> None:
    path = tmp_path / "x"
    beaten.exchange(page(1), page(2))
    with pytest.raises(
        FrontierRefused, match=r"worker worker of crawl .* is alive: nothing was written\. Pau"
    ):
        dq.text("export", str(path), **TTL)
    assert list(tmp_path.iterdir()) == []
    steer(live.redis, live.crawl, Command.PAUSE)
    found = dq.found("export", str(path), **TTL)
    assert (found["entries"], found["fingerprints"]) == (2, 0)


def test_an_export_writes_no_file_if_the_crawl_changes(
    dq: Any, live: LiveFrontier, worker: HandWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crawl changes although it is on hold, because a worker may still settle its leases."""
    worker.exchange(*(page(n) for n in range(9)), want=3)
    steer(live.redis, live.crawl, Command.PAUSE)
    heads = Reader.heads

    async def changed(self: Any, *args: Any) -> Any:
        await asyncio.to_thread(worker.leave)
        async for each in heads(self, *args):
            yield each

    monkeypatch.setattr(Reader, "heads", changed)
    with pytest.raises(CommandError, match="has changed during the export: nothing was written"):
        dq.text("export", str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


def test_seen_can_be_exported_alone(
    dq: Any, new: Dq, live: LiveFrontier, worker: HandWorker, tmp_path: Path
) -> None:
    """After a run has finished, `seen` is all that can be exported."""
    path = str(tmp_path / "seen.jsonl.zst")
    worker.exchange(*(put(n, admission=Admission.SEEN, token=b"%020d" % n) for n in range(9)), want=9)
    worker.exchange(*map(ack, range(9)))
    worker.leave(keep_seen=True)
    with pytest.raises(CommandError, match=r"has finished: no request waits\. --seen-only exports"):
        dq.text("export", path)
    dq.text("export", path, "--seen-only")
    new.text("import", path, DQ_PARTITION_BY="none")
    status = new.found("status", "--no-rate")
    assert (status["seen"], status["waiting"], status["done"], status["phase"]) == (9, 0, 0, "open")
    with pytest.raises(CommandError, match="without URLs: choose --urls or --seen-only"):
        dq.text("export", path, "--seen-only", "--urls")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("partition_by", "slot", "has DQ_PARTITION_BY 'slot', this project 'none': no worker could join"),
        ("scrapy_dq_export", 2, "this version reads format 1 only"),
    ],
)
def test_an_export_that_no_worker_here_could_use_is_refused(
    new: Dq, live: LiveFrontier, exported: Path, field: str, value: Any, message: str
) -> None:
    lines = exported.read_bytes().splitlines(keepends=True)[:-1]
    lines[0] = json.dumps(json.loads(lines[0]) | {field: value}).encode() + b"\n"
    end = {"lines": len(lines), "sha256": sha256(b"".join(lines)).hexdigest()}
    exported.write_bytes(b"".join(lines) + json.dumps({"end": end}).encode() + b"\n")
    with pytest.raises(CommandError if field == "partition_by" else BadExport, match=message):
        new.text("import", str(exported), DQ_PARTITION_BY="none")
    assert live.redis.exists(keys.meta(new.crawl)) == 0


def test_an_import_leaves_an_existing_crawl_alone(dq: Any, everywhere: LiveFrontier, exported: Path) -> None:  # noqa: F811
    before = everywhere.dump()
    with pytest.raises(FrontierRefused, match="already exists: delete it"):
        dq.text("import", str(exported), DQ_PARTITION_BY="none")
    assert everywhere.dump() == before


@pytest.mark.parametrize("name", ["export", "import"])
def test_wrong_arguments_and_missing_files_are_reported(dq: Any, name: str, live: LiveFrontier) -> None:
    with pytest.raises(WrongUsage, match="a spider and a file, not 3 words"):
        dq.text(name, "books", "a", "b")
    error = (BadExport, "cannot be read") if name == "import" else (NoSuchCrawl, "there is no crawl")
    with pytest.raises(error[0], match=error[1]):
        dq.text(name, "/nowhere/x")
    assert live.dump() == {}


def test_an_import_that_is_killed_at_any_command_loses_and_doubles_nothing(
    new: Dq, live: LiveFrontier, exported: Path
) -> None:
    """After each kill -9, the half-imported crawl refuses other commands, except `clear`."""
    settings = {"DQ_PARTITION_BY": "none", "DQ_SHARDS": 2}
    kills = 0
    for number in range(1, MAX_COUNT):
        if not killed_before(number, lambda: new.text("import", str(exported), **settings)):
            break
        kills += 1
        if live.redis.hget(keys.meta(new.crawl), "shards") == b"0>2":
            with pytest.raises(FrontierRefused, match="is half imported"):
                new.text("move", "--shards", "3")
        if number == 20:  # a half-imported crawl may be deleted
            new.text("clear", "--all", "--yes", DQ_SHARDS=2)
            assert not live.redis.exists(keys.meta(new.crawl), keys.meta(Shard(new.crawl, 1)))
    assert kills > 20
    assert places(new) == PLACES
    assert new.found("import", str(exported), **settings)["before"]
