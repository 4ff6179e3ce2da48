"""Takes over a crawl of scrapy-redis: its queue and its dupefilter, in the same Redis."""
