"""The feeds of a crew: every worker writes a journal of its items, from which each feed is exported."""
