"""The frontier seen from outside: reading and changing a crawl without working on it."""
