"""Requests that a person or a program writes down -> a crawl."""
