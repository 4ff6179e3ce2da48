"""Runs `scrapy crawl` as a worker of a crew: `python __main__.py <folder> crawl ...`.

With `dq crawl` instead of `crawl`, the process exports a feed (`feeds/export.py`).

The folder becomes the first entry of `sys.path`, as in the process that starts the worker.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.argv.pop(1)  # before the imports below: Python has put this file's folder there

from scrapy.cmdline import execute
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor

if __name__ == "__main__":
    if sys.argv[1] == "dq":
        # Before the import of a spider, which may install another reactor.
        install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    settings = get_project_settings()
    # Not EXTENSIONS: a spider's own EXTENSIONS replace the project's.
    settings["EXTENSIONS_BASE"].set("scrapy_dq.crew.worker_agent.WorkerAgent", 0, "default")
    execute(settings=settings)
