"""Signals, by way of Scrapy's dispatcher, between parts of this package that do not know each other."""

items_given_up = object()
"""Items are about to fail, because Redis was away until the end: their requests are not done."""
