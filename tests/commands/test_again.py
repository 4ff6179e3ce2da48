"""Options that are printed to be typed again: as they were, but for passwords and keys."""

from __future__ import annotations

import pytest

from scrapy_dq.commands.input.again import repeated


@pytest.mark.parametrize(
    ("flag", "value", "shown"),
    [
        ("-a", "q=two words", "-a 'q=two words'"),
        ("-s", "DQ_ORDER=fifo", "-s DQ_ORDER=fifo"),
        ("-s", "REDIS_URL=redis://host:6379/0", "-s REDIS_URL=redis://host:6379/0"),
        ("-s", "REDIS_URL=redis://:s3cr3t@host/0", "-s REDIS_URL=..."),
        ("-s", "REDIS_URL=redis://host/0?password=s3cr3t", "-s REDIS_URL=..."),
        ("-s", 'REDIS_PARAMS={"password":\n"s3cr3t"}', "-s REDIS_PARAMS=..."),
        ("-s", "DQ_SIGNING_KEYS=s3cr3t-0123456789abcdef,\ns3cr3t", "-s DQ_SIGNING_KEYS=..."),
    ],
)
def test_a_password_is_not_repeated(flag: str, value: str, shown: str) -> None:
    assert list(repeated(flag, [value])) == [shown]


def test_an_option_that_was_not_given_is_not_repeated() -> None:
    assert list(repeated("-s", None)) == []
