"""DQ_TRACE without a crawl: the shown form of a URL, and payloads that begin with the ids of a trace."""

from __future__ import annotations

import pytest
from scrapy import Request, Spider

from scrapy_dq.codec import CannotDecode, Codec
from scrapy_dq.codec.items import Items
from scrapy_dq.codec.shown import shown, url_of
from scrapy_dq.scheduling.tracing import MAX_URL_LENGTH, _shown

IDS = b"\7" + bytes(range(24))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a/b", "http://a/b"),
        ("http://me:pw@a:80/b", "http://a:80/b"),
        ("http://a/b?c=1&d", "http://a/b?..."),
        ("http://a/b?next=http%3A%2F%2Fme%3Apw@b%2F#token=x", "http://a/b?..."),
        ("http://a/http://me:pw@b/", "http://a/http://...@b/"),
        ("http://a/http:/me:pw@b/", "http://a/http:/...@b/"),
        ("data:,page", "data:..."),
    ],
)
def test_a_url_is_shown_without_login_query_and_fragment(url: str, expected: str) -> None:
    """Login, query and fragment may contain secrets. A URL without a host is shown as its scheme."""
    assert _shown(Request(url, meta={"verbatim_url": True})) == expected


@pytest.mark.parametrize("part", ["key", "key/", "%3F", "@:", "//", "a:b@"])
def test_long_urls_are_cut(part: str) -> None:
    """A path is cut, whatever its characters are."""
    assert len(_shown(Request("http://a/" + part * 300_000))) <= MAX_URL_LENGTH


def test_a_url_is_shown_up_to_the_maximum_length() -> None:
    """No other limit cuts a URL before MAX_URL_LENGTH."""
    url = "http://a/" + "b" * MAX_URL_LENGTH
    assert _shown(Request(url)) == url[:MAX_URL_LENGTH]


def test_ids_in_front_of_a_payload_do_not_change_the_request() -> None:
    """All readers see the same request. The ids do not count towards its size. Repeated ids are an error."""
    request = Request("http://a/b", meta={"n": 1})
    plain = Codec(Spider("s")).encode(request)
    codec = Codec(Spider("s"), max_bytes=len(plain))
    assert codec.decode(IDS + plain).to_dict() == codec.decode(plain).to_dict()
    assert shown(IDS + plain, len(plain)) == shown(plain, len(plain))
    assert url_of(IDS + plain, len(plain)) == "http://a/b"
    items = Items((), len(plain))
    assert items.decode(IDS + plain) == items.decode(plain)
    for wrong in (IDS * 2 + plain, IDS * 100_000, IDS, IDS[:5], b"\7"):
        with pytest.raises(CannotDecode):
            codec.decode(wrong)
        assert shown(wrong, len(plain))["kind"] == "unreadable"
