"""Download slots are partitions with fair turns, shared limits and Retry-After. `seen` may expire."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.inspection.history import read_events
from support.given import Errors, Look, MakeProject, Reasons, StartSite, Tree
from support.project import Project
from support.tree_site import TreeSite
from support.tree_spider import spider_of
from support.waiting import Stopwatch, wait_until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

# This spider starts with the test's requests and follows no links.
SPIDER = spider_of("""
    async def start(self):
        def request(host, target, **meta):
            url = self.start_urls[0].replace("127.0.0.1", host) + target
            return scrapy.Request(url, meta=meta, dont_filter=True)

%s

    def parse(self, response):
        self.record("done", page_path(response))
""")


def spider(*lines: str) -> str:
    return SPIDER % "\n".join(f"        {line}" for line in lines)


def times(site: TreeSite, host: str, part: str = "") -> list[float]:
    """Return the times of requests to *host* whose target contains *part*."""
    return [hit.at_s for hit in site.log() if hit.host == host and part in hit.target]


def gaps(sent: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(sent)]


SLOW_FIRST = (
    'for n in range(10): yield request("127.0.0.1", f"/slow/{n}?s=0.5")',
    'for n in range(40): yield request("127.0.0.2", f"/quick/{n}?s=0")',
)


@pytest.mark.parametrize("partition_by", ["slot", "none"])
def test_a_slow_domain_does_not_slow_down_the_others(
    redis_url: str, make_project: MakeProject, start_site: StartSite, partition_by: str
) -> None:
    """The slow domain's requests come first. The quick domain has to wait for them only with `none`."""
    site, clock = start_site(pages=1, hosts=HOSTS), Stopwatch()
    project = make_project(
        [site.url("")],
        redis_url=redis_url,
        spider=spider(*SLOW_FIRST),
        settings={
            "DQ_PARTITION_BY": partition_by,
            "CONCURRENT_REQUESTS": 4,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
        },
    )
    project.run_to_end(timeout_s=30)
    assert len(project.count()) == 50
    slow, quick = times(site, "127.0.0.1"), times(site, "127.0.0.2")
    done_s = max(quick) - min(slow)
    assert done_s < 1.0 + clock.stalled_s if partition_by == "slot" else done_s > 1.3


def test_the_limits_of_the_latest_worker_apply_to_all(begin: Tree, redis_url: str) -> None:
    """A worker with other limits warns of the change, and records an event. Equal limits log nothing."""
    lines = ('for n in range(400): yield request("127.0.0.1", f"/{n}?s=0.1")',)
    site, project = begin(spider(*lines), settings={"DQ_DOMAIN_DELAY": 0.05, "CONCURRENT_REQUESTS": 4})
    first = project.start_worker()
    wait_until(lambda: len(site.log()) > 5, "the first worker crawls", 20)
    same = project.start_worker()
    same.wait_for_log("joined run 0")
    other = project.start_worker(settings={"DQ_DOMAIN_DELAY": 0.4})
    other.wait_for_log("from now on: DQ_DOMAIN_DELAY = 0.4 (was 0.05). Give all workers")
    so_far = len(site.log())
    wait_until(lambda: len(site.log()) > so_far + 5, "more pages are crawled", 20)
    assert min(gaps(times(site, "127.0.0.1")[so_far + 2 :])) >= 0.36
    for worker in (first, same):
        assert "limits of this worker" not in worker.text
        assert worker.running
    with connect_url(redis_url) as client:
        changes = [each.about for each in read_events(client, project.name) if each.kind == "limits"]
    assert changes == ["delay 0.05 -> 0.4"]


def test_the_download_slot_of_the_meta_is_the_partition(begin: Tree) -> None:
    """One host has three slots. Only one of them has a delay."""
    site, project = begin(
        spider(
            'for n in range(4): yield request("127.0.0.1", f"/seldom/{n}?s=0", download_slot="seldom: äöü")',
            'for n in range(20): yield request("127.0.0.1", f"/often/{n}?s=0", download_slot="often")',
            'for n in range(20): yield request("127.0.0.1", f"/host/{n}?s=0")',
        ),
        settings={"DQ_DOMAIN_LIMITS": {"seldom: äöü": {"delay": 0.4}}},
    )
    project.run_to_end(timeout_s=20)
    assert len(project.count()) == 44
    seldom = times(site, "127.0.0.1", "/seldom/")
    assert min(gaps(seldom)) >= 0.36
    for part in ("/often/", "/host/"):
        assert min(gaps(times(site, "127.0.0.1", part))) < 0.36, "the other slot must not have the delay"


# Each page of 127.0.0.1 redirects to 127.0.0.2. The callback requests 127.0.0.3 with the same meta.
REDIRECTED = (
    'there = self.start_urls[0].replace("127.0.0.1", "127.0.0.2").rstrip("/")',
    'for n in range(5): yield request("127.0.0.1", f"/away/{n}?s=0&to={there}/there/{n}%3Fs=0")',
)
COPYING = """
        if "/there/" in response.url:
            url = response.url.replace("127.0.0.2", "127.0.0.3").replace("/there/", "/copy/")
            yield scrapy.Request(url, meta=response.meta)
"""


def test_a_redirect_waits_in_the_partition_of_its_target(begin: Tree) -> None:
    """A request that copies its page's meta also waits in its own host's partition. All limits are kept."""
    limits = {"127.0.0.2": {"delay": 0.3}, "127.0.0.3": {"delay": 0.4}}
    site, project = begin(
        (SPIDER + COPYING) % "\n".join(f"        {line}" for line in REDIRECTED),
        settings={"DQ_DOMAIN_LIMITS": limits},
        hosts=HOSTS,
    )
    project.run_to_end(timeout_s=30)
    for host, limit in limits.items():
        between = gaps(times(site, host))
        assert len(between) == 4
        assert min(between) >= 0.9 * limit["delay"]


LED_AWAY = (
    'there = self.start_urls[0].replace("127.0.0.1", "127.0.0.2").rstrip("/")',
    'yield request("127.0.0.1", f"/away?s=0&to={there}/there%3Fs=0", download_slot="mine")',
    'yield request("127.0.0.1", "/stays?s=0&to=/here%3Fs=0", download_slot="mine")',
)
SAYS_ITS_SLOT = """
        self.record("slot", page_path(response) + "/" + response.meta["download_slot"])
"""


def test_a_redirect_to_another_host_leaves_the_slot_of_the_project(begin: Tree) -> None:
    """Otherwise any site could delay the project's slot with a redirect, or stop it with a Retry-After."""
    lines = "\n".join(f"        {line}" for line in LED_AWAY)
    _, project = begin((SPIDER + SAYS_ITS_SLOT) % lines, hosts=HOSTS)
    project.run_to_end(timeout_s=30)
    assert project.count("slot") == {"/there?s=0/127.0.0.2": 1, "/here?s=0/mine": 1}


def test_a_slot_whose_name_fits_no_partition_makes_a_dead_letter(
    begin: Tree,
    look: Look,
    reasons: Reasons,
    errors: Errors,
) -> None:
    """A slot of 10 kB or with control characters is no partition. A slot that is not text is converted."""
    _, project = begin(
        spider(
            'yield request("127.0.0.1", "/long?s=0", download_slot="x" * 10_000)',
            "for n in range(3):  # one dead letter for a page that is filtered",
            '    more = {"download_slot": "y" * (10_000 + n)}',
            '    yield scrapy.Request(self.start_urls[0] + "/filtered?s=0", meta=more)',
            'yield request("127.0.0.1", "/control?s=0", download_slot="a\\n\\x1b[31mb")',
            'yield request("127.0.0.1", "/zero?s=0", download_slot="a\\0b")',
            'yield request("127.0.0.1", "/half?s=0", download_slot="a\\ud800b")',
            'yield request("127.0.0.1", "/long-local?s=0", download_slot="x" * 10_000, dq_local=True)',
            'yield request("127.0.0.1", "/number?s=0", download_slot=5)',
            'yield request("127.0.0.1", "/good?s=0")',
        )
    )
    worker = project.run_to_end(timeout_s=20)
    assert project.count() == dict.fromkeys(["/long-local?s=0", "/number?s=0", "/good?s=0"], 1)
    told = sorted(reasons(project))
    assert len(told) == look(project).census.dead == worker.stats["dq/buried"] == 5
    for reason in told:
        assert "download slot" in reason
        assert "longer than 512 bytes, or contains control characters" in reason
        assert len(reason) < 800
        assert reason.isprintable()
    assert errors(worker) == []


def retry_after_project(
    redis_url: str, make_project: MakeProject, site: TreeSite, **settings: Any
) -> Project:
    return make_project(
        [site.url("")],
        redis_url=redis_url,
        spider=spider(
            'for n in range(20): yield request("127.0.0.1", f"/first/{n}?s=0.02")',
            'yield request("127.0.0.1", "/busy?s=0&flaky=1&after=2")',
            'for n in range(40): yield request("127.0.0.1", f"/then/{n}?s=0.02")',
            'for n in range(60): yield request("127.0.0.2", f"/other/{n}?s=0.02")',
        ),
        settings={"CONCURRENT_REQUESTS": 4, "CONCURRENT_REQUESTS_PER_DOMAIN": 2} | settings,
    )


def test_retry_after_keeps_all_workers_away(
    redis_url: str, make_project: MakeProject, start_site: StartSite
) -> None:
    """Workers avoid only this domain, for the requested time. One log line and one stat report it."""
    site, clock = start_site(pages=1, hosts=HOSTS), Stopwatch()
    project = retry_after_project(redis_url, make_project, site)
    workers = project.start_workers(2)
    assert project.wait(30) == ["finished", "finished"]
    assert len(project.count()) == 121
    busy, retried = times(site, "127.0.0.1", "/busy")
    asked = times(site, "127.0.0.1")
    # The other worker may still send requests until it is notified.
    assert not [at for at in asked if busy + 0.6 + clock.stalled_s < at < busy + 2 - 0.02]
    assert retried >= busy + 2 - 0.02
    assert max(asked) < busy + 4 + clock.stalled_s
    assert sum(worker.stats.get("dq/retry_after", 0) for worker in workers) == 1
    text = "".join(worker.text for worker in workers)
    assert text.count("127.0.0.1 answers 503 with Retry-After: no worker sends it requests for 2 s") == 1
    assert max(times(site, "127.0.0.2")) < busy + 2 + clock.stalled_s


@pytest.mark.parametrize(("most", "stat"), [(0.5, 1), (0, None)])
def test_retry_after_is_capped(
    redis_url: str, make_project: MakeProject, start_site: StartSite, most: float, stat: int | None
) -> None:
    """DQ_RETRY_BACKOFF sets the cap. With 0, the header is ignored."""
    site, clock = start_site(pages=1, hosts=HOSTS), Stopwatch()
    project = retry_after_project(redis_url, make_project, site, DQ_RETRY_BACKOFF={"retry_after": most})
    worker = project.run_to_end(timeout_s=30)
    busy, retried = times(site, "127.0.0.1", "/busy")
    assert most - 0.02 <= retried - busy < 1.9 + clock.stalled_s
    assert worker.stats.get("dq/retry_after") == stat
    assert ("for 0.5 s (asked for 2 s; DQ_RETRY_BACKOFF)" in worker.text) is bool(stat)


FILES = """
        busy = self.start_urls[0] + "/busy?s=0%%26flaky=1%%26after=1"
        victim = self.start_urls[0].replace("127.0.0.1", "127.0.0.2")
        yield {"path": "/", "file_urls": [f"{victim}/go?to={busy}"]}
"""


def test_retry_after_of_a_redirected_file_blocks_the_host_that_sent_it(begin: Tree) -> None:
    """A media pipeline follows redirects without the scheduler. The first host's slot stays in the meta."""
    _, project = begin(
        (SPIDER + FILES) % '        yield request("127.0.0.1", "/page?s=0")',
        settings={
            "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
            "FILES_STORE": "files",
            "MEDIA_ALLOW_REDIRECTS": True,
            "RETRY_ENABLED": False,
        },
        hosts=HOSTS,
    )
    worker = project.run_to_end(timeout_s=20)
    assert worker.text.count("127.0.0.1 answers 503 with Retry-After") == 1
    assert "127.0.0.2 answers 503" not in worker.text


TWICE = spider_of("""
    def parse(self, response):
        yield from super().parse(response)
        if page_path(response) == "/p/0":
            # The page requests the same links again, long after they would have expired.
            yield response.follow("/again?s=0", self.again, meta={"dq_delay": 1})

    def again(self, response):
        self.record("again", "-")
        for number in range(1, 5):
            yield response.follow(f"/p/{number}")
""")


def test_an_expired_page_is_crawled_again_only_in_a_later_run(tree: Tree) -> None:
    """With SCHEDULER_PERSIST, a run ignores fingerprints that had expired when it began."""
    site, project = tree(
        spider=TWICE,
        # With another LOCAL_SEEN, the worker's own memory would drop the repeated requests.
        settings={
            "SCHEDULER_PERSIST": True,
            "DQ_SEEN_TTL": 3600,
            "CONSTANTS": {"scrapy_dq.scheduling.admission.LOCAL_SEEN": 0},
        },
        pages=5,
    )

    def crawled(**settings: Any) -> dict[str, int]:
        before = site.hits()
        project.run_to_end(settings=settings, timeout_s=20)
        return dict(site.hits() - before)

    again = {"/again?s=0": 1}
    once = dict.fromkeys(site.paths, 1)
    assert crawled() == once | again
    assert crawled() == {"/p/0": 1}
    # /again?s=0 was requested a second later than the others.
    assert crawled(DQ_SEEN_TTL=0.5) == once | again
    assert crawled() == {"/p/0": 1}
    assert project.count("again") == {"-": 2}
