"""Settings of the bookshop crawl: Scrapy's settings, the line that adds scrapy_dq, and DQ_WORKER_TTL."""

import os

BOT_NAME = "bookshop"
SPIDER_MODULES = ["bookshop.spiders"]
NEWSPIDER_MODULE = "bookshop.spiders"

# This one line makes any number of `scrapy crawl books` share one crawl.
ADDONS = {"scrapy_dq.Addon": 500}
# Without the add-on, two lines do the same (but then Scrapy buffers the feed, and a SIGKILL loses items):
# SCHEDULER = "scrapy_dq.Scheduler"
# DUPEFILTER_CLASS = "scrapy_dq.DupeFilter"

# The Redis that the workers share. By default it is an embedded Redis, under `.scrapy/dq` of this project.
# REDIS_URL = "redis://localhost:6379/0"

# A worker without a heartbeat for this many seconds is dead, and other workers take over its requests. The
# value is small, so that the demonstration is short. The default suits real crawls better.
DQ_WORKER_TTL = 5

# One file per worker. The add-on writes each item at once, so that a SIGKILL loses no finished item.
# (`scrapy dq crawl books -o books.jsonl` writes the items of all its workers into one file.)
FEEDS = {"items/%(name)s-%(dq_worker)s.jsonl": {"format": "jsonlines"}}

# The site is our own and on this machine. For any other site, obey its robots.txt and send requests slowly:
#   scrapy crawl books -a start=https://example.com/ -s DQ_CRAWL=example -s ROBOTSTXT_OBEY=True \
#     -s DQ_DOMAIN_DELAY=1
BOOKSHOP_URL = os.environ.get("BOOKSHOP_URL", "http://127.0.0.1:8000/")
ROBOTSTXT_OBEY = False
CONCURRENT_REQUESTS = 16
CONCURRENT_REQUESTS_PER_DOMAIN = 16

LOG_LEVEL = "INFO"
TELNETCONSOLE_ENABLED = False
