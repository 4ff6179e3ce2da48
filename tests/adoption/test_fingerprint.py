"""Our computation of scrapy-redis's fingerprint."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy_redis import defaults
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_dq import scrapy_redis

THEIRS = RFPDupeFilter(Mock(), "key")


@pytest.mark.parametrize(
    "request_",
    [
        Request("http://example.com"),
        Request("http://example.com/?b=2&a=1#fragment"),
        Request("http://example.com/?a=1&b=2&a=%20+"),
        Request("http://EXAMPLE.com:80/Ä/é?ü=ß"),
        Request("http://example.com", method="POST", body="é"),
        Request("http://example.com", method="PUT", body=b"\xff\0"),
        FormRequest("http://example.com", formdata={"a": "b", "ä": ["1", "2"]}),
        Request("data:text/plain,x"),
    ],
)
def test_the_fingerprint_equals_that_of_scrapy_redis(request_: Request) -> None:
    """The bytes are equal, so that pages in scrapy-redis's dupefilter are recognized."""
    assert scrapy_redis.fingerprint(request_).hex() == THEIRS.request_fingerprint(request_)
    assert len(scrapy_redis.fingerprint(request_)) == scrapy_redis.FINGERPRINT_BYTES


@given(st.text(max_size=30), st.binary(max_size=30), st.sampled_from(["GET", "post", "Ä"]))
def test_the_fingerprint_of_any_request_equals_that_of_scrapy_redis(
    path: str, body: bytes, method: str
) -> None:
    try:
        request = Request("http://example.com/" + path, method=method, body=body)
        theirs = THEIRS.request_fingerprint(request)
    except ValueError:  # this text cannot be in a URL
        return
    assert scrapy_redis.fingerprint(request).hex() == theirs


def test_the_keys_are_scrapy_rediss_defaults() -> None:
    assert scrapy_redis.DEFAULTS["SCHEDULER_QUEUE_KEY"] == defaults.SCHEDULER_QUEUE_KEY
    assert scrapy_redis.DEFAULTS["SCHEDULER_DUPEFILTER_KEY"] == defaults.SCHEDULER_DUPEFILTER_KEY
