"""A crew: `scrapy dq crawl` and its worker processes. Sessions import a part of this: it imports little."""
