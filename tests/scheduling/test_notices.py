"""DQ_NOTIFY_URL: a real webhook is told of a real crawl."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.given import Tree
from support.tree_spider import spider_of
from support.waiting import free_port

SPIDER = spider_of("""
    def parse(self, response):
        yield from super().parse(response)
        yield response.follow("/never?s=0", self.parse, meta={"dq_delay": "soon"})
""")


class Webhook:
    """It refuses the first notice; below /drip it never ends its answer, below /moved it redirects."""

    def __init__(self) -> None:
        self.asked = 0
        self.taken: list[dict[str, Any]] = []
        self.got = 0
        self.ended = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hook.got += 1
                self.send_response(204)
                self.end_headers()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.asked += 1
                if self.path.startswith("/drip"):
                    self.drip()
                    return
                if self.path.startswith("/moved"):
                    self.send_response(302)
                    self.send_header("Location", "/hook")
                    self.end_headers()
                    return
                refused = hook.asked == 1
                if not refused:
                    hook.taken.append(json.loads(body) | {"path": self.path})
                self.send_response(500 if refused else 204)
                self.end_headers()

            def drip(self) -> None:
                with suppress(OSError):  # until its client has gone
                    while not hook.ended.wait(0.2):
                        self.wfile.write(b"H")

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    yield hook
    hook.ended.set()
    hook.server.shutdown()
    hook.server.server_close()


def test_each_event_is_told_once_and_the_address_is_in_no_log(tree: Tree, webhook: Webhook) -> None:
    """Two workers crawl; the webhook refuses once."""
    _, project = tree(
        spider=SPIDER,
        settings={
            "DQ_NOTIFY_URL": f"http://127.0.0.1:{webhook.server.server_port}/hook/s3cret",
            "DQ_RUN_NAME": "once",  # else a worker that starts when the other is done begins another run
        },
        pages=30,
    )
    workers = project.start_workers(2)
    assert set(project.wait(60)) <= {"finished", "run_over"}
    told = {one["event"]: one for one in webhook.taken}
    assert sorted(one["event"] for one in webhook.taken) == ["dead", "finished"]
    assert told["finished"]["counts"]["done"] == 30
    assert told["finished"]["text"].startswith(f"Crawl '{project.name}' has finished: 30 done, 0 failed, ")
    assert {one["path"] for one in webhook.taken} == {"/hook/s3cret"}
    assert not any("s3cret" in worker.text or "ERROR" in worker.text for worker in workers)


@pytest.mark.parametrize(
    ("path", "why"),
    [("/drip", "no answer yet"), ("/moved", "status 302"), ("", "Connection refused")],
)
def test_a_webhook_that_does_not_take_it_delays_nothing_but_the_end(
    tree: Tree, webhook: Webhook, path: str, why: str
) -> None:
    """Not even the end of the process, if it answers for ever. It is named, without what may be a secret."""
    port = webhook.server.server_port if path else free_port()
    _, project = tree(settings={"DQ_NOTIFY_URL": f"http://127.0.0.1:{port}{path}/hook/s3cret"}, pages=5)
    worker = project.run_to_end(timeout_s=60)
    assert len(project.count()) == 5
    told = "WARNING: DQ_NOTIFY_URL: 127.0.0.1 was not told of 1 event before the end of the crawl"
    assert f"{told} ({why})" in worker.text
    assert "s3cret" not in worker.text
    assert webhook.got == 0
