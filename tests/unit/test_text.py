"""Logins are hidden in URLs, errors and log lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from scrapy import Request

from scrapy_dq.codec.shown import without_logins
from scrapy_dq.crew.worker_agent import LONGEST_ERROR, _first_line
from scrapy_dq.text import prose_without_logins, url_error

SECRET = "S3kr"
# Lines with Scrapy's own words, and the same lines without logins.
LINES = [
    (f"download: ValueError: invalid hostname: user:{SECRET}@127.0.0.1",
     "download: ValueError: invalid hostname: ...@127.0.0.1"),
    (f"Error storing jl feed (1 items) in: ftp://user:{SECRET}@127.0.0.1:1/a.jl: ConnectionRefusedError",
     "Error storing jl feed (1 items) in: ftp://...@127.0.0.1:1/a.jl: ConnectionRefusedError"),
    (f"Error downloading <GET http://user:{SECRET}@127.0.0.1:1/a> (referer: None)",
     "Error downloading <GET http://...@127.0.0.1:1/a> (referer: None)"),
    (f"from http://{SECRET}@a.example/ to http://u:{SECRET}@b.example/",
     "from http://...@a.example/ to http://...@b.example/"),
    (f"redis://:{SECRET}@there/0", "redis://...@there/0"),
    (f"it is :{SECRET}@there/0", "it is ...@there/0"),
    (f"ftp://user:p/{SECRET}@there/a", "ftp://...@there/a"),
    (f"ftp://user:p#a@{SECRET}@there/a", "ftp://...@there/a"),
    (f"no such file: unix:///r.sock?db=0&password=a;{SECRET}),b{SECRET}&c=1 sorry",
     "no such file: unix:///r.sock?db=0&password=...&c=1 sorry"),
    (f"ValueError: http:/{SECRET}@there/a", "ValueError: http:/...@there/a"),
    (f"ValueError: http:///{SECRET}@there/a", "ValueError: http:///...@there/a"),
]  # fmt: skip
HARMLESS = [
    "Error downloading <GET http://127.0.0.1:8000/@joe> (referer: None)",
    "callback: KeyError: 'joe@a.example' in http://a.example/x",
    "XPath error: Invalid expression in //a[@href",
    "12:30:45 http://a.example:80/?q=a@b",
    "http://a.example:80, then joe@a.example",
    "http://a.example/?q=password&page=2#password",
]


@pytest.mark.parametrize(("line", "left"), LINES)
def test_a_login_in_a_line_is_hidden_and_the_rest_is_not(line: str, left: str) -> None:
    """Stored errors and a crew's screen use these functions."""
    assert prose_without_logins(line) == left
    assert _first_line(f"\n{line}\nmore") == left


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_without_a_login_stays_as_it_is(line: str) -> None:
    """Not every @ ends a login."""
    assert prose_without_logins(line) == line


@pytest.mark.parametrize("slashes", ["/", "//", "///", "/////"])
def test_a_login_is_hidden_after_any_number_of_slashes(slashes: str) -> None:
    """Scrapy reads http:/user:password@host/ as a URL without a host. The failed request is stored."""
    url = f"http:{slashes}us%20er:{SECRET}@a.example/@joe?u=http:/{SECRET}@b.example"
    assert without_logins(url) == f"http:{slashes}...@a.example/@joe?u=http:/...@b.example"
    assert SECRET not in prose_without_logins(f"invalid: 'us er:{SECRET}'", url)


def test_the_login_of_a_known_url_is_hidden_in_every_form() -> None:
    """The login may be escaped or not, contain a blank, or stand without its host."""
    url = "http://us%20er:S3%20kr@a.example/"
    for quoted in ("us%20er:S3%20kr@a.example", "us er:S3 kr@a.example", "'us er:S3 kr'", "us er:S3 kr"):
        assert "S3" not in prose_without_logins(f"invalid: {quoted}", url)
    assert prose_without_logins("my key@a.example", "my%20key@a.example:80") == "...@a.example"


def test_a_login_at_the_end_of_a_long_line_is_not_cut_in_two() -> None:
    """Not even the beginning of a password is shown. A long word must not take quadratic time."""
    for length in range(LONGEST_ERROR - 40, LONGEST_ERROR):
        assert SECRET[:2] not in _first_line(f"{'x' * length} http://user:{SECRET}@a.example/")
    began = time.process_time()
    _first_line("a:" * 1_000_000)
    slow = time.process_time() - began
    assert slow < 10


def test_an_error_that_is_cut_ends_with_dots() -> None:
    """The worker's log has the whole error."""
    assert _first_line("x" * LONGEST_ERROR) == "x" * LONGEST_ERROR
    assert _first_line("x" * (LONGEST_ERROR + 1)) == "x" * LONGEST_ERROR + "..."


def _error_of(parse: Callable[[str], object], url: str) -> ValueError:
    try:
        parse(url)
    except ValueError as error:
        return error
    raise AssertionError(url)


@pytest.mark.parametrize(
    ("parse", "url"),
    [
        (lambda url: urlsplit(url).port, "http://user:SEK/RET@host/"),
        (urlsplit, "http://user:SEKRET@h\u2100st/"),
        (Request, "http://user:SEK/RET@host/"),
    ],
    ids=["port", "netloc", "request"],
)
def test_url_error_hides_the_login_that_pythons_error_quotes(
    parse: Callable[[str], object], url: str
) -> None:
    """The password has an unescaped slash, so Python takes the part before it for a port."""
    error = _error_of(parse, url)
    assert "SEK" in str(error)
    assert url_error(error) == "its URL cannot be parsed"


def test_an_error_of_a_url_gives_its_reason_if_that_quotes_nothing() -> None:
    """For an error that is not about a URL, url_error() returns an empty text."""
    assert url_error(_error_of(urlsplit, "http://[")) == "its URL cannot be parsed (Invalid IPv6 URL)"
    assert url_error(_error_of(int, "SEKRET")) == ""
