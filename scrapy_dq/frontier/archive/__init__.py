"""Reads a whole crawl, and stores one: in terms that do not depend on Redis, order or number of shards."""
