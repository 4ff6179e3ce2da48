"""Puts requests into a crawl. A person or a program has written them as text."""
