"""With DQ_NOTIFY_URL, a real webhook receives the notices of a real crawl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from support.given import Tree
from support.post_server import PostServer
from support.tree_spider import spider_of
from support.waiting import free_port

SPIDER = spider_of("""
    def parse(self, response):
        yield from super().parse(response)
        yield response.follow("/never?s=0", self.parse, meta={"dq_delay": "soon"})
""")


@pytest.fixture
def webhook() -> Iterator[PostServer]:
    with closing(PostServer(refused=1)) as hook:
        yield hook


def test_each_event_is_sent_once_and_no_log_contains_the_address(tree: Tree, webhook: PostServer) -> None:
    """Two workers crawl, and the webhook refuses the first try of one event."""
    _, project = tree(
        spider=SPIDER,
        settings={
            "DQ_NOTIFY_URL": f"{webhook.url}/hook/s3cret",
            "DQ_RUN_NAME": "once",  # otherwise a worker that starts late would begin another run
        },
        pages=30,
    )
    workers = project.start_workers(2)
    assert set(project.wait(60)) <= {"finished", "run_over"}
    events = [json.loads(body) for _, body in webhook.posted]
    told = {one["event"]: one for one in events}
    assert sorted(one["event"] for one in events) == ["dead", "finished"]
    assert told["finished"]["counts"]["done"] == 30
    assert told["finished"]["text"].startswith(f"Crawl '{project.name}' has finished: 30 done, 0 failed, ")
    assert {path for path, _ in webhook.posted} == {"/hook/s3cret"}
    assert not any("s3cret" in worker.text or "ERROR" in worker.text for worker in workers)


@pytest.mark.parametrize(
    ("path", "why"),
    [("/drip", "no answer yet"), ("/moved", "status 302"), ("", "Connection refused")],
)
def test_a_webhook_that_fails_delays_only_the_end(
    tree: Tree, webhook: PostServer, path: str, why: str
) -> None:
    """The process waits for the webhook for at most 5 s. The log names the host without the secret."""
    url = webhook.url + path if path else f"http://127.0.0.1:{free_port()}"
    _, project = tree(settings={"DQ_NOTIFY_URL": f"{url}/hook/s3cret"}, pages=5)
    worker = project.run_to_end(timeout_s=60)
    assert len(project.count()) == 5
    told = "WARNING: DQ_NOTIFY_URL: 127.0.0.1 was not notified of 1 event before the end of the crawl"
    assert f"{told} ({why})" in worker.text
    assert "s3cret" not in worker.text
    assert webhook.got == 0
