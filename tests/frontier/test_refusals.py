"""A call that cannot be served is refused with a reason and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scrapy_dq.frontier import keys, peek
from scrapy_dq.frontier.model import Admission, FrontierRefused, Order, Seen, Status
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put

# Another crawl under this name


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"fingerprinter": "another"}, "REQUEST_FINGERPRINTER_CLASS 'fingerprinter'"),
        ({"spider": "another"}, "spider class 'spider'"),
        ({"partition_by": "slot"}, "DQ_PARTITION_BY 'none', this worker has 'slot'"),
    ],
)
def test_a_worker_of_another_crawl_is_refused(
    live: LiveFrontier, worker: HandWorker, changed: dict[str, str], words: str
) -> None:
    """The open run has another fingerprinter, spider or partition setting. The error names the difference."""
    before = live.dump()
    with pytest.raises(FrontierRefused, match=words):
        HandWorker(live, "other", replace(IDENTITY, **changed))
    assert live.dump() == before


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("differs", ["schema version", "kind of seen"])
def test_a_worker_of_another_release_is_refused(
    live: LiveFrontier,
    open_frontier: Callable[..., LiveFrontier],
    monkeypatch: pytest.MonkeyPatch,
    differs: str,
    finished: bool,
) -> None:
    """A worker that would misread the keys does not change them, not even a kept `seen` of a finished run."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, admission=Admission.SEEN), want=1)
    if finished:
        worker.exchange(ack(1))
    before = live.dump()
    if differs == "kind of seen":
        live = open_frontier(Order.FIFO, live.crawl, Seen.EXPIRING)
    else:
        monkeypatch.setattr(keys, "SCHEMA", "another")
    with pytest.raises(FrontierRefused, match=differs):
        HandWorker(live, "other")
    assert live.dump() == before


def test_other_settings_are_accepted_after_a_run_that_kept_nothing(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """If a finished run has kept nothing, another spider may use the crawl's name, with its own settings."""
    worker.exchange()
    worker.leave()
    other = replace(IDENTITY, spider="another", fingerprinter="another")
    assert HandWorker(live, "other", other).joined.status is Status.OK
    with pytest.raises(FrontierRefused, match=r"CLASS 'another', this worker has 'fingerprinter'"):
        HandWorker(live, "third")


def test_kept_fingerprints_require_the_same_fingerprinter(live: LiveFrontier, worker: HandWorker) -> None:
    """If `seen` is kept, the next run needs the same fingerprinter. Its spider and order may differ."""
    worker.exchange(put(1, admission=Admission.SEEN), want=1)
    worker.exchange(ack(1))
    worker.leave(keep_seen=True)
    before = live.dump()
    with pytest.raises(FrontierRefused, match="FINGERPRINTER"):
        HandWorker(live, "other", replace(IDENTITY, fingerprinter="another", keep_seen=True))
    assert live.dump() == before
    assert HandWorker(live, "other", replace(IDENTITY, spider="another", keep_seen=True)).run == 1


def test_other_arguments_are_reported_not_refused(live: LiveFrontier, worker: HandWorker) -> None:
    """The join returns the arguments of the run's first worker, so that the caller can log a warning."""
    assert worker.joined.spider_args == IDENTITY.spider_args
    other = HandWorker(live, "other", replace(IDENTITY, spider_args='{"a": 1}'))
    assert other.joined.spider_args == IDENTITY.spider_args


# Keys of another type


@pytest.mark.parametrize("name", ["meta", "members", "rotation", "seen"])
def test_a_key_of_another_type_is_refused_before_anything_is_written(
    live: LiveFrontier, worker: HandWorker, name: str
) -> None:
    """The message names the command that helps: `clear --all --force`."""
    worker.exchange(put(1))
    live.redis.delete(live.key(name))
    live.redis.set(live.key(name), "not ours")
    before = live.dump()
    for refused in (
        lambda: HandWorker(live, "other"),
        lambda: worker.exchange(want=1),
        lambda: peek(live.redis, live.crawl),
    ):
        with pytest.raises(FrontierRefused, match=r"has another type: .* clear --all --force"):
            refused()
    assert live.dump() == before
