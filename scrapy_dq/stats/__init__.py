"""Stats: their names, and their sums over all workers."""
