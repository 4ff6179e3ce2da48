"""Scrapy's items -> Redis."""
