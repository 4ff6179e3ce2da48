"""`scrapy dq ...`: the commands. Scrapy loads this for every command of its own: it imports little."""

from scrapy_dq.commands.group import Command

__all__ = ["Command"]
