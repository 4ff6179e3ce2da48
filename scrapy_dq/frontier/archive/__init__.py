"""Reads and stores whole crawls, in a form that does not depend on Redis, order or number of shards."""
