"""A process of `scrapy dq web`, and requests to it as a browser makes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

from support.waiting import patience

TOKEN = "a-token-of-more-than-16-characters"
UNPACED = (
    "import sys; from scrapy.cmdline import execute; from scrapy_dq.web import reads; reads.PAUSE = 0; "
    "execute(['scrapy', *sys.argv[1:]])"
)


def refused(folder: Path, redis_url: str, command: str, *words: str, without: str = "") -> tuple[int, str]:
    """Run a `scrapy dq COMMAND` that must refuse to begin. Return its exit status and its single error line.

    Args:
        without: the name of a package that the command cannot import.
    """
    environ = dict(os.environ)
    if without:
        (folder / f"{without}.py").write_text(f"raise ModuleNotFoundError('no', name={without!r})\n")
        environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "scrapy", "dq", command, "--crawl", "first", "-s", f"REDIS_URL={redis_url}",
         *words],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert done.stdout == ""
    return done.returncode, line


class WebPage:
    """The process of a web page for one Redis, on a free port. The file `log` has its errors."""

    COMMAND: tuple[str, ...] = ("web", "--crawl", "first")

    def __init__(
        self, folder: Path, redis_url: str, *words: str, token: str = "", unpaced: bool = False
    ) -> None:
        """
        Args:
            unpaced: whether the process reads Redis without pauses. Normally its reads take 2 % of Redis's
                time, so on a busy machine a pause of 98 s would follow a read of 2 s.
        """
        self.log = folder / "web.log"
        self.token = token
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(("-c", UNPACED) if unpaced else ("-m", "scrapy")), "dq",
                 *self.COMMAND, "--json", "--port", "0",
                 "-s", f"REDIS_URL={redis_url}", '-sREDIS_PARAMS={"socket_timeout": 1}', *words],
                cwd=folder, env={**os.environ, "DQ_WEB_TOKEN": token}, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline().decode()
        assert self.printed, self.log.read_text()
        found = json.loads(self.printed)
        self.address, self.redis = found["address"], found["redis"]
        place = urlsplit(self.address)
        self.host, self.port = place.hostname or "", place.port or 0
        self.origin = f"http://{place.netloc}"

    def __enter__(self) -> WebPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the process with a signal. Return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(patience(10))

    def ask(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text of an answer. In names of sent headers, _ stands for -."""
        with closing(self.connection()) as connection:
            connection.request(method, path, body, self._headers(headers))
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()

    def data(self, kind: str, crawl: str = "", entry_id: str = "") -> dict[str, Any]:
        """Return the page's data, read once."""
        asked = urlencode({"kind": kind, "crawl": crawl, "id": entry_id})
        status, _, text = self.ask(f"/data?{asked}")
        assert status == 200, text
        return dict(json.loads(text))

    def do(self, order: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """Send an order (a command for a crawl) as the page does."""
        own = {"Content_Type": "application/json", "Origin": self.origin, "Sec_Fetch_Site": "same-origin"}
        status, _, text = self.ask("/do", "POST", json.dumps(order), **own | headers)
        return status, json.loads(text)

    def looks(self, kind: str, crawl: str = "") -> Iterator[dict[str, Any]]:
        """Yield the page's data repeatedly, as an open page reads it."""
        while True:
            yield self.data(kind, crawl)
            time.sleep(0.05)

    def connection(self) -> HTTPConnection:
        """Return a new connection."""
        return HTTPConnection(self.host, self.port, timeout=patience(10))

    def _headers(self, named: dict[str, str]) -> dict[str, str]:
        login = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return login | {name.replace("_", "-"): value for name, value in named.items()}


async def ask_app(app: Any, path: str, query: str = "", token: str = "", root: str = "") -> tuple[int, str]:
    """Ask an app that is mounted below *root*. Return the status and text of its answer."""
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": root + path, "root_path": root, "headers": headers,
             "query_string": query.encode(), "http_version": "1.1", "asgi": {"version": "3.0"}}  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent).decode()


def texts_of(found: Any) -> Sequence[str]:
    """Return all texts in a JSON value, including names."""
    if isinstance(found, str):
        return [found]
    if isinstance(found, dict):
        return [text for pair in found.items() for part in pair for text in texts_of(part)]
    return [text for each in found for text in texts_of(each)] if isinstance(found, list) else []


def look(page: WebPage, kind: str, crawl: str = "") -> Any:
    """Return the page's data of this kind. Ask again, as the page does, until the data is there."""
    until = time.monotonic() + patience(30)
    while True:
        found = page.data(kind, crawl)
        assert found["error"] == ""
        if found["look"] is not None or time.monotonic() > until:
            return found["look"]
