"""`scrapy crawl`, as a worker of a crew: `python __main__.py <folder> crawl ...`.

With `dq crawl` it is a process that exports a feed: `feeds/export.py`.

The folder stands first in `sys.path`, as in the command that starts the worker.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.argv.pop(1)  # before all imports: Python has put the folder of this file there

from scrapy.cmdline import execute
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor

if __name__ == "__main__":
    if sys.argv[1] == "dq":
        install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")  # before a spider does
    settings = get_project_settings()
    # Not EXTENSIONS: a spider's own EXTENSIONS replace the project's.
    settings["EXTENSIONS_BASE"].set("scrapy_dq.crew.worker_agent.WorkerAgent", 0, "default")
    execute(settings=settings)
