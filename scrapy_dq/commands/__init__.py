"""`scrapy dq ...`: the commands. Scrapy imports this for every one of its commands: it imports little."""

from scrapy_dq.commands.streams import report_in_one_line

report_in_one_line()

from scrapy_dq.commands.group import Command  # noqa: E402

__all__ = ["Command"]
