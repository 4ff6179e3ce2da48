"""The path of a request through a worker: from Scrapy's scheduler interface to the frontier and back."""
