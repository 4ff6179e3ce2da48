"""`scrapy dq ...`: the commands. Every command of Scrapy imports this module, so it imports little."""

from scrapy_dq.commands.group import Command

__all__ = ["Command"]
