"""Each kind of notice about a run is given once, to the first worker that asks."""

from __future__ import annotations

from scrapy_dq.frontier.answers import Figures
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, put


def kinds(live: LiveFrontier) -> list[str]:
    """Return the kinds of the new notices."""
    found = live.call("notices")
    return list(found.kinds) if found else []


def test_a_missing_crawl_and_a_running_crawl_have_no_notices(live: LiveFrontier) -> None:
    assert live.call("notices") is None
    worker = HandWorker(live, "worker")
    worker.exchange(put(1), want=1)
    assert kinds(live) == []


def test_dead_letters_and_the_end_are_notified_once(live: LiveFrontier) -> None:
    """A notice has the current counts. The next run has its own notices."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1), put(2), put(3), want=2)
    worker.exchange(bury(1))
    found = live.call("notices")
    assert (found.run, found.kinds, found.census.dead, found.census.waiting) == (0, ["dead"], 1, 1)
    assert kinds(live) == []
    worker.exchange(ack(2), want=1)
    worker.exchange(ack(3), seeding=0)
    assert kinds(live) == ["finished"]
    assert kinds(live) == []
    live.call("leave", "worker", worker.epoch, worker.run, False)
    again = HandWorker(live, "again")
    again.exchange(put(4), want=1)
    assert (again.run, kinds(live)) == (1, [])
    again.exchange(bury(4), seeding=0)
    assert kinds(live) == ["finished", "dead"]


def test_the_third_death_is_notified(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    for n in range(3):
        assert kinds(live) == []
        HandWorker(live, f"dead {n}")
        worker.fence(f"dead {n}")
    assert kinds(live) == ["deaths"]
    HandWorker(live, "dead 4")
    worker.fence("dead 4")
    assert kinds(live) == []


def test_an_outage_of_a_minute_is_notified(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    for seconds, told in ((59.9, []), (60.0, ["outage"]), (90.0, [])):
        live.redis.hdel(live.key("meta"), "sampled")  # so that each report counts as a separate outage
        live.call("report", worker.worker_id, worker.epoch, True, Figures(), seconds)
        assert kinds(live) == told


def test_dead_letters_and_outages_of_other_shards_are_notified(live: LiveFrontier) -> None:
    """The caller passes the dead letters and the longest outage of other shards. Home itself had none."""
    HandWorker(live, "worker")
    assert live.call("notices", 0, 59.9).kinds == []
    assert live.call("notices", 1, 60.0).kinds == ["dead", "outage"]
    assert live.call("notices", 2, 90.0).kinds == []
