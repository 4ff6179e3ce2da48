"""Our quick fingerprints equal Scrapy's, and skip canonicalization for ordinary URLs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_dq.scheduling.fingerprints import quick_fingerprint

METHODS = ["GET", "POST", "HEAD", "PUT", "BREW", "get"]
hosts = st.one_of(
    st.sampled_from([
        "example.com", "EXAMPLE.com", "a", "a.", "a..b", "-a.b", "a-.b", "xn--bcher-kva.example",
        "bücher.example", "127.0.0.1", "127.0.0.01", "127.1", "1.2.3.4.5", "0x7f.1", "[::1]", "user:word@a.b",
        "a_b.example", "9.example", f"{'a' * 63}.example", f"{'a' * 64}.example", "999.0.0.1",
        "1.com1", "a.1",
    ]),
    st.text("ab1-.", min_size=1, max_size=12),
)  # fmt: skip
texts = st.text("ab1_.~-/%2 +;=&?#é:@!$'()*,|\"\\\t", max_size=14)
urls = st.builds(
    "{}://{}{}{}{}{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    hosts,
    st.sampled_from(["", ":80", ":443", ":8080", ":", ":080", ":99999"]),
    st.sampled_from(["", "/", "/a/", "/a/b.html", "//", "/./a", "/a/../b", "/..", "/a//b"]),
    texts,
    st.one_of(st.sampled_from(["", "?b=1&a=2", "?a=1&a=1", "?a=&a"]), texts.map("?{}".format)),
)


class CustomFingerprinter(RequestFingerprinter):
    """A project's own fingerprinter."""


@given(url=urls, method=st.sampled_from(METHODS), body=st.sampled_from([b"", b"x"]), verbatim=st.booleans())
@example(url="http://a.b/a?a-=1&a=1", method="GET", body=b"", verbatim=False)
@example(url="http://a.b/a\n", method="GET", body=b"", verbatim=True)
def test_the_quick_fingerprint_equals_that_of_scrapy(
    url: str, method: str, body: bytes, verbatim: bool
) -> None:
    """With a different fingerprint, a page would be crawled twice or never."""
    scrapys = RequestFingerprinter()
    try:
        request = Request(url, method=method, body=body, meta={"verbatim_url": True} if verbatim else {})
        expected = scrapys.fingerprint(request)
    except ValueError:
        return
    assert quick_fingerprint(scrapys)(request) == expected


@pytest.mark.parametrize("path", ["", "shop/item-1.html", "a/b/?page=2", "a?x=1&y=2", "a?x="])
def test_ordinary_urls_are_fingerprinted_without_canonicalization(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most URLs in a crawl look like these."""
    scrapys = RequestFingerprinter()
    quick = quick_fingerprint(scrapys)
    urls = [f"http://{host}/{path}" for host in ("a.example", "127.0.0.1:80")]
    expected = [scrapys.fingerprint(Request(url)) for url in urls]
    monkeypatch.setattr("w3lib.url.canonicalize_url", None)
    monkeypatch.setattr("scrapy.utils.request.canonicalize_url", None)
    assert [quick(Request(url)) for url in urls] == expected


def test_a_custom_fingerprinter_is_called_for_every_request() -> None:
    """A subclass of Scrapy's fingerprinter is also called, because it may treat the same URL differently."""
    own = CustomFingerprinter()
    assert quick_fingerprint(own) == own.fingerprint


def test_scrapys_fingerprints_are_used_if_they_differ_from_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a few sample URLs have other fingerprints in Scrapy, Scrapy's function is used for all requests."""
    scrapys = RequestFingerprinter()
    newer: Callable[[Request], bytes] = lambda request: b"new" + request.url.encode()  # noqa: E731
    newer.__module__ = "scrapy.utils.request"
    monkeypatch.setattr(scrapys, "_fingerprint", newer)
    assert quick_fingerprint(scrapys)(Request("http://a.example/")) == b"newhttp://a.example/"
