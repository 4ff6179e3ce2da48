"""Reads and changes a crawl from outside, for programs and commands that are not its workers."""
