"""`scrapy dq ...`: the commands. Scrapy imports this for every one of its commands: it imports little."""

from scrapy_dq.commands.group import Command

__all__ = ["Command"]
