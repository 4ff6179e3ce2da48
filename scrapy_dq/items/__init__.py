"""Sends Scrapy's items to Redis."""
