"""A request's way through one worker: from Scrapy's scheduler contract to the frontier and back."""
