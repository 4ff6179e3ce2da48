"""Signals, by way of Scrapy's dispatcher, between parts of this package that do not know each other."""

crawl_opening = object()
"""A session is about to connect to its crawl. `grace_s`: DQ_SHUTDOWN_GRACE; `tune_gc`: DQ_TUNE_GC."""
crawl_joined = object()
"""A session has joined its crawl, before the spider is opened.

`crawl`: its name; `epoch` and `run`: which run of it; `new`: nothing was crawled in this run yet; `over`: it
was finished before this worker came; `outage`: a function that returns why Redis gives no usable answer now,
or "" if it does; `entry_of`: a function that returns the entry id of a response whose items are processed,
empty if it has none.
"""
leases_ended = object()
"""Redis has confirmed how these leases have ended. `done`: the entry ids of acked leases; `others`: the
entry ids of leases that failed or were given back.
"""
items_given_up = object()
"""Items are about to fail, because Redis was away until the end: their requests are not done."""
