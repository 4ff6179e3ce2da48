"""Changes the number of shards of a crawl at rest."""
