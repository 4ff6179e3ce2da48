"""The feeds of a crew: each worker writes its items to a journal. Feeds are exported from all journals."""
