"""What commands and the web page read of a crawl, and the words in which they say it."""
