"""Puts requests that a person or a program has written as text into a crawl."""
