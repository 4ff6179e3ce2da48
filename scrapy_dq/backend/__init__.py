"""Redis as a crawl uses it: connections, checks of its health, and the embedded server."""
