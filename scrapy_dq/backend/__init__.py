"""Redis as a crawl uses it: clients, connections, and checks of its health."""
