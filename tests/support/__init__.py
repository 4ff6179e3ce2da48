"""Helpers for all tests: real Redis servers, a lossy proxy, a site, a Scrapy project."""
