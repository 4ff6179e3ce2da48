"""The stored form of a request: which parts are left out, and which are shortened."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.statscollectors import DummyStatsCollector

from scrapy_dq.scheduling.stored_form import MAX_LINK_TEXT, MAX_REFERER_BYTES, StoredForm

URL = "http://a.com/"
OF_PARENT = {"redirect_urls": [URL, URL + "1"], "redirect_reasons": [301, 302], "redirect_times": 2}
LONG = "x" * (MAX_LINK_TEXT + 1)


@pytest.fixture
def stored_form(monkeypatch: pytest.MonkeyPatch) -> StoredForm:
    monkeypatch.setattr(Crawler, "get_downloader_middleware", lambda *_: None)
    return StoredForm(Crawler(Spider))


def meta_of(form: StoredForm, meta: dict[str, Any], parent: Request | None = None, **more: Any) -> Any:
    """Return the stored meta. The request itself may be in progress, so it must stay unchanged."""
    request = Request(more.pop("url", URL + "link"), meta=dict(meta))
    stored = form.of(request, parent, more.get("continues", False))
    assert request.meta == meta
    return stored.meta


def test_most_requests_are_stored_as_they_are(stored_form: StoredForm) -> None:
    """A request that needs no change is not even copied."""
    request = Request(URL, meta={"depth": 1}, headers={"Referer": URL + "x" * 1000})
    assert stored_form.of(request, None, False) is request


@pytest.mark.parametrize("copied", [OF_PARENT, {**OF_PARENT, "redirect_urls": [URL, URL + "1"]}])
def test_redirects_of_the_parent_are_left_out(stored_form: StoredForm, copied: dict[str, Any]) -> None:
    parent = Request(URL, meta=dict(OF_PARENT))
    assert meta_of(stored_form, {**copied, "x": 1}, parent) == {"redirect_times": 2, "x": 1}
    assert meta_of(stored_form, OF_PARENT, parent, continues=True) == OF_PARENT


@pytest.mark.parametrize(
    ("meta", "parent"),
    [
        (OF_PARENT, None),
        (OF_PARENT, Request(URL)),
        ({"redirect_urls": [URL, URL + "1", URL + "2"]}, Request(URL, meta=dict(OF_PARENT))),
        ({"redirect_urls": []}, Request(URL, meta={"redirect_urls": []})),
    ],
)
def test_other_redirects_are_kept(
    stored_form: StoredForm, meta: dict[str, Any], parent: Request | None
) -> None:
    assert meta_of(stored_form, meta, parent) == meta


def test_the_redirects_of_a_retry_are_kept(stored_form: StoredForm) -> None:
    """A callback that rejects its page may yield the page's request again."""
    parent = Request(URL + "3", meta=dict(OF_PARENT))
    crawler = Crawler(Spider)
    crawler.stats = DummyStatsCollector(crawler)
    retry = get_retry_request(parent, spider=Spider.from_crawler(crawler, "any"), reason="empty page")
    assert retry is not None
    assert stored_form.of(retry, parent, False).meta == retry.meta


def test_a_long_link_text_is_truncated(stored_form: StoredForm) -> None:
    meta = {"rule": 0, "link_text": "ä" + LONG, "x": 1}
    assert meta_of(stored_form, meta) == meta | {"link_text": "ä" + "x" * (MAX_LINK_TEXT - 1)}


@pytest.mark.parametrize(
    "meta",
    [
        {"rule": 0, "link_text": LONG[1:]},
        {"link_text": LONG},
        {"rule": "mine", "link_text": LONG},
        {"rule": 0, "link_text": [LONG]},
        {"rule": 0, "link_text": LONG.encode()},
    ],
)
def test_other_link_texts_are_stored_unchanged(stored_form: StoredForm, meta: dict[str, Any]) -> None:
    assert meta_of(stored_form, meta) == meta


@pytest.mark.parametrize(
    ("start", "stored"),
    [("http://a.com/", b"http://a.com/"), ("HTTPS://me:s3cret@a.com?", b"HTTPS://a.com/"), ("a:b", None)],
)
@pytest.mark.parametrize("meta", [{}, {"dq_delay": 5}])
def test_a_long_referer_is_stored_as_its_origin(
    stored_form: StoredForm, start: str, stored: bytes | None, meta: dict[str, Any]
) -> None:
    """Browsers do the same. Otherwise each of a page's 20,000 links would carry a 16 kB Referer."""
    request = Request(URL, meta=meta, headers={"Referer": start + "x" * MAX_REFERER_BYTES})
    assert stored_form.of(request, None, False).headers.get("Referer") == stored
    assert len(request.headers["Referer"] or b"") > MAX_REFERER_BYTES
