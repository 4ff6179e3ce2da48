"""A crawl over several shards: one worker for each, behind the interface of one."""
