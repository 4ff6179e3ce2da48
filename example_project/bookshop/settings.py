"""Settings of the bookshop crawl: Scrapy's, and one line for scrapy_dq."""

import os

BOT_NAME = "bookshop"
SPIDER_MODULES = ["bookshop.spiders"]
NEWSPIDER_MODULE = "bookshop.spiders"

# This one line makes any number of `scrapy crawl books` share one crawl.
ADDONS = {"scrapy_dq.Addon": 500}
# Without the add-on, two lines do the same (but Scrapy then buffers the feed: a SIGKILL takes some items):
# SCHEDULER = "scrapy_dq.Scheduler"
# DUPEFILTER_CLASS = "scrapy_dq.DupeFilter"

# Where the workers meet. Without it they share an embedded Redis, under `.scrapy/dq` of this project.
# REDIS_URL = "redis://localhost:6379/0"

# A worker that has not been heard of for this many seconds is dead; the others take over what it held.
# Short, so that the demonstration is short. The default suits real crawls better.
DQ_WORKER_TTL = 5

# One file per worker; the add-on writes each item at once, so that a SIGKILL takes no finished item with it.
# (`scrapy dq crawl books -o books.jsonl` makes one file of what all its workers find.)
FEEDS = {"items/%(name)s-%(dq_worker)s.jsonl": {"format": "jsonlines"}}

# The site is our own and on this machine. For any other, ask for its robots.txt and take your time:
#   scrapy crawl books -a start=https://example.com/ -s DQ_CRAWL=example -s ROBOTSTXT_OBEY=True \
#     -s DQ_DOMAIN_DELAY=1
BOOKSHOP_URL = os.environ.get("BOOKSHOP_URL", "http://127.0.0.1:8000/")
ROBOTSTXT_OBEY = False
CONCURRENT_REQUESTS = 16
CONCURRENT_REQUESTS_PER_DOMAIN = 16

LOG_LEVEL = "INFO"
TELNETCONSOLE_ENABLED = False
