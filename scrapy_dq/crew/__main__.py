"""Runs `scrapy crawl` as a worker of a crew: `python __main__.py <folder> crawl ...`.

With `dq crawl` instead of `crawl`, the process exports a feed (`feeds/export.py`).

The folder becomes the first entry of `sys.path`, as in the process that starts the worker.
"""

import sys

if __name__ == "__main__":
    # Python has put this file's folder into sys.path[0]. The imports below must not search that folder.
    sys.path[0] = sys.argv.pop(1)

from scrapy.cmdline import execute
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor

if __name__ == "__main__":
    if sys.argv[1] == "dq":
        # This comes first, because a spider's module may install another reactor when it is imported.
        install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    settings = get_project_settings()
    # EXTENSIONS_BASE is used, because a spider's own EXTENSIONS replace the project's EXTENSIONS.
    settings["EXTENSIONS_BASE"].set("scrapy_dq.crew.worker_agent.WorkerAgent", 0, "default")
    execute(settings=settings)
