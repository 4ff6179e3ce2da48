"""Reads a crawl for commands and the web page, and puts the results into words."""
