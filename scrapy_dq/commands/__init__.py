"""`scrapy dq ...`: the commands. Scrapy loads this for every command of its own: it imports little."""

from scrapy_dq.commands.interrupts import tell_in_a_line

tell_in_a_line()

from scrapy_dq.commands.group import Command  # noqa: E402

__all__ = ["Command"]
