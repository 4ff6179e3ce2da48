"""One feed of a crawl with several worker processes: written in parts, joined at the end."""
