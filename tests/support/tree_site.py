"""A site that is a tree: every page is linked exactly once, and every request is counted.

Page k (`/p/<k>`, root 0) links to its children k·fan_out+1 … k·fan_out+fan_out. Any path takes a query:
`?s=5` answers after 5 s, `?status=404` with that status, `?flaky=2` with 503 twice and then as usual,
`?to=/p/3` with a redirect. `/__hits` and `/__log` tell what was asked for, `/__reset` forgets it;
`/__latency/5` makes each tree page that is asked for from now on take 5 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from support.waiting import wait_until


@dataclass(frozen=True)
class Tree:
    """What the site serves.

    Args:
        pages: how many tree pages there are.
        fan_out: links per page, at most.
        latency_s: how long each tree page takes.
        flaky_every: pages whose number is a multiple of it answer 503 once, then 200; 0: none.
        redirect_every: pages whose number is a multiple of it redirect to `/r/<k>`; 0: none.
        hosts: the loopback addresses to listen on; page k is linked at the k-th of them, modulo their
            number. Linux has all of 127.0.0.0/8.
    """

    pages: int = 100
    fan_out: int = 4
    latency_s: float = 0.0
    flaky_every: int = 0
    redirect_every: int = 0
    hosts: Sequence[str] = ("127.0.0.1",)


class Hit(NamedTuple):
    """One request as it came in; *at_s* is since the site started."""

    at_s: float
    host: str
    target: str


class TreeSite:
    """The handle of a site in a process of its own, which ends with this one."""

    def __init__(self, **tree: Any) -> None:
        self.tree = Tree(**tree)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; a RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError("this site is not running")
        return self._process.pid

    @property
    def start_url(self) -> str:
        """The root of the tree."""
        return self.url("/p/0")

    @property
    def paths(self) -> set[str]:
        """The paths of all pages, as a spider sees them after redirects."""
        every = self.tree.redirect_every
        return {f"/r/{k}" if every and k % every == 0 else f"/p/{k}" for k in range(self.tree.pages)}

    def url(self, target: str) -> str:
        """Return the URL of *target* (path and query) at the first host."""
        return f"http://{self.tree.hosts[0]}:{self.port}{target}"

    def hits(self) -> Counter[str]:
        """Return how often each target (path and query) was requested."""
        return Counter(json.loads(self.get("/__hits")))

    def log(self) -> list[Hit]:
        """Return every request in the order of arrival."""
        return [Hit(*row) for row in json.loads(self.get("/__log"))]

    def reset(self) -> None:
        """Forget all hits; flaky pages are flaky again."""
        self.get("/__reset")

    def set_latency(self, seconds: float) -> None:
        """Let each tree page that is asked for from now on take so long."""
        self.get(f"/__latency/{seconds}")

    def get(self, target: str) -> bytes:
        """Fetch *target* and return the body, whatever its status."""
        connection = HTTPConnection(self.tree.hosts[0], self.port, timeout=10)
        try:
            connection.request("GET", target)
            return connection.getresponse().read()
        finally:
            connection.close()

    def start(self) -> TreeSite:
        """Start the process and wait until it listens."""
        command = [sys.executable, "-m", "support.tree_server", json.dumps(asdict(self.tree))]
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout
        os.set_blocking(self._process.stdout.fileno(), False)
        line = wait_until(self._process.stdout.readline, "the site says its port")
        self.port = int(line)
        return self

    def stop(self) -> None:
        """End the process. No-op if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=10)

    def __enter__(self) -> TreeSite:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
