"""What the tests stand on: real Redis servers, a lossy proxy, a site, a Scrapy project."""
