"""The handle of a web site in its own process, the base class of `TreeSite` and `DomainSite`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self


class SiteProcess:
    """The handle of a site in its own process, which ends with the test's process.

    Args:
        server: the module that the process runs, which calls `support.site_server.serve`.
        options: options for the module, passed as JSON on its command line.
        host: the default address for requests to the site.
    """

    def __init__(self, server: str, options: Mapping[str, Any], host: str) -> None:
        self.port = 0
        self._host = host
        self._command = [sys.executable, "-m", server, json.dumps(options)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the process does not run."""
        if self._process is None:
            raise RuntimeError("this site is not running")
        return self._process.pid

    def url(self, target: str, host: str = "") -> str:
        """Return the URL of *target* (path and query) at *host*."""
        return f"http://{host or self._host}:{self.port}{target}"

    def reset(self) -> None:
        """Forget all earlier requests."""
        self.get("/__reset")

    def get(self, target: str, host: str = "") -> bytes:
        """Fetch *target* at *host*. Return the body, without checking the status."""
        return self.fetch(target, host)[2]

    def fetch(self, target: str, host: str = "") -> tuple[int, HTTPMessage, bytes]:
        """Fetch *target* at *host*. Return status, headers and body."""
        connection = HTTPConnection(host or self._host, self.port, timeout=120)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def start(self) -> Self:
        """Start the process and wait until it listens."""
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(
            self._command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout
        os.set_blocking(self._process.stdout.fileno(), False)
        line = wait_until(self._process.stdout.readline, "the site prints its port")
        self.port = int(line)
        return self

    def stop(self) -> None:
        """End the process. No-op if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=120)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
