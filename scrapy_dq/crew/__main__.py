"""`python -m scrapy_dq.crew crawl ...`: `scrapy crawl`, as a worker of a crew."""

from __future__ import annotations

from scrapy.cmdline import execute
from scrapy.utils.project import get_project_settings

if __name__ == "__main__":
    settings = get_project_settings()
    # Not EXTENSIONS: a spider that has its own replaces the project's.
    settings["EXTENSIONS_BASE"].set("scrapy_dq.crew.worker_agent.WorkerAgent", 0, "default")
    execute(settings=settings)
