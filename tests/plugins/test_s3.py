"""A feed in S3, through botocore. A server that is down when the crawl ends gets all items later."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from csv import DictReader
from io import StringIO
from os import kill
from signal import SIGKILL
from typing import Any
from urllib.request import Request, urlopen

import pytest

from crew.conftest import SetScene, scene
from crew.outcome import journals
from support.scrapy_redis_crawl import run_dq
from support.waiting import free_port, wait_until

pytestmark = pytest.mark.plugins
__all__ = ["scene"]
BUCKET, SECRET = "books", "s3krit-s3krit"


@contextmanager
def server(port: int) -> Iterator[Any]:
    """Run an S3 server with an empty bucket, and yield a client."""
    session = pytest.importorskip("botocore.session").get_session()
    pytest.importorskip("moto.server")
    client = session.create_client(
        "s3", region_name="us-east-1", endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="me", aws_secret_access_key=SECRET,
    )  # fmt: skip
    with ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.kill)

        def answers() -> bool:
            try:
                client.create_bucket(Bucket=BUCKET)
            except Exception:
                return False
            return True

        wait_until(answers, "the S3 server is up", 30)
        yield client


def accept_anybody(port: int, count: int) -> None:
    """Make the server accept any credentials in the next *count* requests, and check them in later ones."""
    url, kind = f"http://127.0.0.1:{port}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urlopen(Request(url, str(count).encode(), kind)).close()


def test_a_feed_is_stored_when_the_server_is_up_again(scene: SetScene) -> None:
    """Three workers crawl 300 pages, and one is killed. The object and the batches have each item once.

    If the server does not accept the credentials, nothing is stored, and nothing is lost.
    """
    port = free_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION_NAME": "us-east-1",
        "FEEDS": {
            f"s3://{BUCKET}/all.csv": {"format": "csv"},
            f"s3://{BUCKET}/%(batch_id)d.csv": {"format": "csv", "batch_item_count": 100},
        },
    }
    here = scene(settings, pages=300, latency_s=0.05)
    crew = here.crew("-w", "3")
    wait_until(lambda: here.done() >= 100, "a third of the pages are done", 60)
    kill(crew.pids[0], SIGKILL)
    assert crew.wait(120) == 1
    assert f"s3://{BUCKET}/all.csv is not written: " in crew.out
    assert "Its items and export.log stay in " in crew.out
    assert journals(here)
    with server(port) as client:

        def paths(name: str) -> list[str]:
            body = client.get_object(Bucket=BUCKET, Key=name)["Body"].read().decode()
            return [row["path"] for row in DictReader(StringIO(body))]

        accept_anybody(port, 0)
        refused = run_dq(here.project, "items", here.project.name, "--export")
        assert refused.returncode == 1
        assert f"s3://{BUCKET}/all.csv is not written: " in refused.stdout
        assert "InvalidAccessKeyId" in refused.stdout
        assert ".." not in refused.stdout
        accept_anybody(port, 10**6)
        done = run_dq(here.project, "items", here.project.name, "--export")
        assert done.returncode == 0, done.stderr
        assert f"s3://{BUCKET}/all.csv: 300 items\n" in done.stdout
        assert Counter(paths("all.csv")) == dict.fromkeys(here.site.paths, 1)
        batches = [paths(f"{number}.csv") for number in (1, 2, 3)]
    assert [len(batch) for batch in batches] == [100] * 3
    assert Counter(path for batch in batches for path in batch) == dict.fromkeys(here.site.paths, 1)
    assert not journals(here)
    assert SECRET not in crew.out + crew.err + refused.stdout + done.stdout
