"""Signals between parts of this package that do not import each other. Scrapy's dispatcher sends them."""

crawl_opening = object()
"""A session is about to connect to its crawl. `grace_s`: DQ_SHUTDOWN_GRACE; `tune_gc`: DQ_TUNE_GC."""
crawl_joined = object()
"""A session has joined its crawl, before the spider is opened.

`crawl`: the crawl's name; `epoch` and `run`: its run; `new`: nothing was crawled in this run before; `over`:
the run was finished before this worker joined; `outage`: a function that returns why Redis gives no usable
answer now, or "" if Redis answers; `entry_of`: a function that returns the entry id of a response whose items
are processed, or empty bytes if the response has no entry.
"""
leases_ended = object()
"""Redis has confirmed the ends of these leases.

`done`: the entry ids of leases whose work is done (ack, again); `others`: the entry ids of leases that
failed, became dead letters or were given back.
"""
items_given_up = object()
"""Items are about to fail, because Redis was unavailable until DQ_SHUTDOWN_GRACE was over. The scheduler
then releases the leases of their requests."""
