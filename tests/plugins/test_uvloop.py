"""A crew's workers run on uvloop if it is installed, and if the project names no other event loop."""

from __future__ import annotations

import json

import pytest

from crew.conftest import SetScene, scene
from support.tree_spider import spider_of

pytestmark = pytest.mark.plugins
LOOPS = spider_of(
    """
    def parse(self, response):
        yield {"path": "/", "loop": type(asyncio.get_running_loop()).__module__}
""",
    before="import asyncio\n",
)
__all__ = ["scene"]


@pytest.mark.parametrize(
    ("named", "runs_on"),
    [({}, "uvloop"), ({"ASYNCIO_EVENT_LOOP": "asyncio.SelectorEventLoop"}, "asyncio.unix_events")],
    ids=["none", "another one"],
)
def test_workers_use_uvloop_unless_the_project_names_another_loop(
    scene: SetScene, named: dict[str, str], runs_on: str
) -> None:
    pytest.importorskip("uvloop")
    here = scene(named, LOOPS, pages=1)
    assert here.crew("-w", "1", "-o", "items.jsonl").wait() == 0
    assert {json.loads(line)["loop"] for line in here.feed.read_text().splitlines()} == {runs_on}
