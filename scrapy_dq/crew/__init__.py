"""A crew: `scrapy dq crawl` and its worker processes."""
