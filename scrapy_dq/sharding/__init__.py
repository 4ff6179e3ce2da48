"""A crawl with several shards: one worker for each shard, behind the interface of a single worker."""
