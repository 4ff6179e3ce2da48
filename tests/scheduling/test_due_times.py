"""`dq_delay`, `dq_not_before` and DQ_RETRY_BACKOFF make requests wait in Redis, or in their worker."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgpack
import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import keys
from support.given import Look, MakeProject, Reasons, StartSite, Tree
from support.tree_site import TreeSite
from support.tree_spider import spider_of
from support.waiting import Stopwatch, wait_until

Prompt = Callable[[], float]

EARLY_S = 0.02
PROMPT_S = 0.6
"""A due request is sent within this time, plus the time in which the machine stalls."""


@pytest.fixture
def prompt_s() -> Prompt:
    """Return a function that returns PROMPT_S plus the time of stalls since the test began."""
    clock = Stopwatch()
    return lambda: PROMPT_S + clock.stalled_s


# This spider fetches /root, whose callback yields the test's requests. All other pages are recorded.
SPIDER = spider_of("""
    async def start(self):
        yield scrapy.Request(self.start_urls[0] + "/root?s=0", self.root, dont_filter=True)

    def root(self, response):
        def request(target, **meta):
            return scrapy.Request(response.urljoin(target), self.leaf, meta=meta)

        yield from (
%s
        )
""")


def spider(*requests: str) -> str:
    return SPIDER % "".join(f"            {request},\n" for request in requests)


def first_hits(site: TreeSite) -> dict[str, float]:
    """Return the time of the first request for each target, in seconds since the request for /root."""
    found: dict[str, float] = {}
    for hit in site.log():
        found.setdefault(hit.target, hit.at_s)
    return {target: at - found["/root?s=0"] for target, at in found.items()}


def all_hits(site: TreeSite, target: str) -> list[float]:
    return [hit.at_s for hit in site.log() if hit.target == target]


def test_a_crawl_waits_for_a_request_until_it_is_due(begin: Tree, prompt_s: Prompt) -> None:
    """The later of dq_delay and dq_not_before is the due time. The idle worker makes few exchanges."""
    site, project = begin(
        spider(
            'request("/now?s=0")',
            'request("/past?s=0", dq_not_before=time.time() - 5)',
            'request("/later?s=0", dq_delay=1)',
            'request("/at?s=0", dq_not_before=time.time() + 1.5)',
            'request("/both?s=0", dq_delay=2.5, dq_not_before=time.time() + 0.1)',
        )
    )
    worker = project.run_to_end(timeout_s=20)
    hits = first_hits(site)
    assert max(hits["/now?s=0"], hits["/past?s=0"]) < prompt_s()
    for target, due_s in (("/later?s=0", 1), ("/at?s=0", 1.5), ("/both?s=0", 2.5)):
        assert -EARLY_S <= hits[target] - due_s < prompt_s()
    assert set(project.count().values()) == {1}
    assert len(project.count()) == 5
    # Polling for the due pages would make 50 exchanges per second.
    assert worker.stats["dq/exchanges"] <= 15 + 4 * worker.stats["elapsed_time_seconds"]


def test_a_delay_outlives_a_kill(begin: Tree, look: Look, prompt_s: Prompt) -> None:
    """The due time is stored, so a restart neither loses, shortens nor extends the delay."""
    site, project = begin(spider('request("/later?s=0", dq_delay=8)'))
    first = project.start_worker()
    wait_until(lambda: look(project).census.delayed == 1, "the delayed request is stored", 20)
    wait_until(lambda: look(project).census.done == 1, "the parent is done", 5)
    first.kill()
    second = project.start_worker()
    second.wait_for_log("0 waiting, 1 delayed, 0 in flight")
    assert second.wait(20) == 0
    assert second.close_reason == "finished"
    assert -EARLY_S <= first_hits(site)["/later?s=0"] - 8 < prompt_s()
    assert site.hits() == {"/root?s=0": 1, "/later?s=0": 1}


FOLLOWED = ("/flaky?s=0&flaky=1", "/moved?to=/there%3Fs=0")


@pytest.mark.parametrize("local", ["", ", dq_local=True"], ids=["stored", "local"])
def test_retries_and_redirects_of_a_delayed_request_are_not_delayed_again(
    begin: Tree, prompt_s: Prompt, local: str
) -> None:
    """A retry and a redirect copy the meta of the delayed request, but not the delay."""
    site, project = begin(spider(*(f'request("{target}", dq_delay=1{local})' for target in FOLLOWED)))
    project.run_to_end(timeout_s=20)
    hits = first_hits(site)
    for target in FOLLOWED:
        assert hits[target] >= 1 - EARLY_S
    tried, tried_again = all_hits(site, FOLLOWED[0])
    assert tried_again - tried < prompt_s()
    assert hits["/there?s=0"] - hits[FOLLOWED[1]] < prompt_s()


def test_a_local_request_waits_in_its_worker(begin: Tree, prompt_s: Prompt) -> None:
    """A local request waits until it is due, even if it is the last request. Then its parent is acked."""
    site, project = begin(
        spider(
            'request("/now?s=0", dq_local=True)',
            'request("/later?s=0", dq_delay=1, dq_local=True)',
            'request("/at?s=0", dq_not_before=time.time() + 1.5, dq_local=True)',
            'request("/past?s=0", dq_not_before=5, dq_local=True)',
        )
    )
    worker = project.run_to_end(timeout_s=20)
    hits = first_hits(site)
    assert max(hits["/now?s=0"], hits["/past?s=0"]) < prompt_s()
    for target, due_s in (("/later?s=0", 1), ("/at?s=0", 1.5)):
        assert -EARLY_S <= hits[target] - due_s < prompt_s()
    assert worker.stats["dq/enqueued/local"] == 4
    assert worker.stats["dq/acked"] == 1


LOCAL_START = spider_of("""
    async def start(self):
        yield scrapy.Request(self.start_urls[0] + "/later?s=0", meta={"dq_local": True, "dq_delay": 1})
""")


def test_a_crawl_with_only_a_delayed_local_request_left_does_not_end(begin: Tree) -> None:
    """The local request comes from start(). So it has no parent, and Redis knows nothing of it."""
    _, project = begin(LOCAL_START)
    project.run_to_end(timeout_s=20)
    assert project.count() == {"/later?s=0": 1}


@pytest.mark.parametrize("through", ["command line", "settings"])
def test_a_backoff_delays_retries_and_not_redirects(begin: Tree, through: str, prompt_s: Prompt) -> None:
    """The backoff doubles up to its cap, and half of it is jitter. By default, there is no backoff."""
    flaky, moved = "/flaky?s=0&flaky=2", "/moved?flaky=1&to=/there%3Fs=0"
    in_settings = {"DQ_RETRY_BACKOFF": {"base": 0.8, "cap": 1.2}} if through == "settings" else {}
    site, project = begin(
        spider(f'request("{flaky}")', f'request("{moved}")', 'request("/plain?s=0")'), settings=in_settings
    )
    option = {} if in_settings else {"DQ_RETRY_BACKOFF": '{"base": 0.8, "cap": 1.2}'}
    project.run_to_end(settings=option, timeout_s=20)
    assert first_hits(site)["/plain?s=0"] < prompt_s()
    first, second, third = all_hits(site, flaky)
    assert 0.4 - EARLY_S <= second - first < 0.8 + prompt_s()
    assert 0.6 - EARLY_S <= third - second < 1.2 + prompt_s()
    failed, redirected = all_hits(site, moved)
    assert 0.4 - EARLY_S <= redirected - failed < 0.8 + prompt_s()
    assert all_hits(site, "/there?s=0")[0] - redirected < 0.4


BAD_TIMES = {
    "dq_delay=-1": "meta['dq_delay'] = -1: expected seconds",
    "dq_delay='soon'": "meta['dq_delay'] = 'soon': expected seconds",
    "dq_delay=True": "meta['dq_delay'] = True: expected seconds",
    "dq_delay=math.nan": "meta['dq_delay'] = nan: expected seconds",
    "dq_delay=1e30": "meta['dq_delay'] = 1e+30: expected seconds",
    "dq_delay='x' * 10_000": "meta['dq_delay'] = 'xxx",
    "dq_not_before=-1": "meta['dq_not_before'] = -1: expected seconds",
    "dq_not_before=time.time() * 1000": "0 to 100,000,000,000",
    "dq_delay=1, dq_not_before='tomorrow'": "meta['dq_not_before'] = 'tomorrow'",
}


@pytest.mark.parametrize("debug", [False, True])
def test_an_invalid_time_makes_a_dead_letter_and_the_crawl_continues(
    redis_url: str,
    make_project: MakeProject,
    start_site: StartSite,
    look: Look,
    reasons: Reasons,
    debug: bool,
) -> None:
    """Each dead letter has a reason. Its page is not in `seen`, so a later request for it is crawled."""
    site = start_site(pages=1)
    requests = [f'request("/{n}?s=0", {meta})' for n, meta in enumerate([*BAD_TIMES, *BAD_TIMES])]
    project = make_project(
        [site.url("")],
        redis_url=redis_url,
        spider=spider(*requests, 'request("/0?s=0")', 'request("/good?s=0", dq_delay=0.1)'),
        settings={"SCHEDULER_DEBUG": debug},
    )
    worker = project.run_to_end(timeout_s=20)
    assert project.count() == {"/0?s=0": 1, "/good?s=0": 1}
    assert worker.stats["dq/buried"] == look(project).census.dead == len(requests)
    told = reasons(project)
    for meta, reason in BAD_TIMES.items():
        assert any(reason in one for one in told), meta
    assert max(map(len, told)) < 300
    with connect_url(redis_url) as client:
        letters = client.hvals(keys.prefix(project.name) + "dead")
    # After a retry, the request would wait in this partition.
    assert {msgpack.unpackb(letter, raw=True)[6] for letter in letters} == {b"127.0.0.1"}
    assert worker.text.count("becomes a dead letter") == len(requests if debug else BAD_TIMES)
    assert "Traceback" not in worker.text


def test_a_local_request_with_an_invalid_time_is_crawled_at_once(begin: Tree, look: Look) -> None:
    """A dead letter needs a stored request, but this request cannot be stored."""
    _, project = begin(spider('request("/0?s=0", dq_delay=-1, dq_local=True)'))
    worker = project.run_to_end(timeout_s=20)
    assert project.count() == {"/0?s=0": 1}
    assert "stays in this worker and is crawled at once: meta['dq_delay'] = -1" in worker.text
    assert look(project).census.dead == 0


@pytest.mark.parametrize("days", [1, -1])
def test_the_clock_of_a_host_does_not_matter(begin: Tree, days: int, prompt_s: Prompt) -> None:
    """Even if the host's clock is a day fast or slow, requests are sent by Redis's time."""
    at = time.time() + 4.0
    site, project = begin(
        spider(f'request("/at?s=0", dq_not_before={at})', 'request("/after?s=0", dq_delay=1)')
    )
    wrong = (
        "import time\n"
        "_right, _right_ns = time.time, time.time_ns\n"
        f"time.time = lambda: _right() + {days * 86_400}\n"
        # since Python 3.13, logging reads time_ns
        f"time.time_ns = lambda: _right_ns() + {days * 86_400 * 10**9}\n"
    )
    (project.folder / "sitecustomize.py").write_text(wrong)
    worker = project.run_to_end(timeout_s=30)
    assert worker.text[:10] != time.strftime("%Y-%m-%d")  # the worker's log uses the wrong clock
    done = project.record.stat().st_mtime  # /at is the last page
    assert at - EARLY_S <= done <= at + prompt_s()
    assert -EARLY_S <= first_hits(site)["/after?s=0"] - 1 <= prompt_s()
