"""Takes over the queue and the dupefilter of a crawl of scrapy-redis, or of Scrapy's JOBDIR."""
