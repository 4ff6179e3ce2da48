"""A long host name or an odd charset must take little time, although Python's punycode is quadratic."""

from __future__ import annotations

import codecs
import urllib.parse
from collections.abc import Callable
from encodings import punycode

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

from scrapy_dq.hostnames import LONGEST_LABEL, bound_punycode, host_named

LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))


@pytest.fixture(autouse=True)
def converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limit punycode as a scheduler does, and return the lengths of texts that Python converts afterwards."""
    lengths: list[int] = []

    def noted(convert: Callable[..., object]) -> Callable[..., object]:
        def convert_noted(text: str | bytes, *args: str) -> object:
            lengths.append(len(text))
            return convert(text, *args)

        return convert_noted

    for name in ("punycode_encode", "punycode_decode"):
        original = getattr(punycode, name)
        monkeypatch.setattr(punycode, name, noted(getattr(original, "__wrapped__", original)))
    bound_punycode()
    bound_punycode()
    return lengths


def test_a_link_to_a_very_long_host_name_takes_little_time(converted: list[int]) -> None:
    """Without the limit, following a link with a 60 kB host name took a minute each time."""
    url = f"http://www.{LETTERS}.example/"
    page = HtmlResponse("http://a.example/", body=f'<a href="{url}">x</a>'.encode(), encoding="utf-8")
    assert Request(url).url
    assert page.follow(url).url
    LinkExtractor().extract_links(page)
    with pytest.raises(UnicodeError, match="20,000 characters are too many"):
        url.encode("idna")
    assert not converted


@pytest.mark.parametrize("errors", ["strict", "replace", "ignore"])
def test_no_page_is_decoded_as_punycode(errors: str, converted: list[int]) -> None:
    """A page may name "punycode" as its charset. Decoding 1 MB of it would take hours."""
    with pytest.raises(UnicodeError, match="2,001 characters are too many"):
        (b"a" * 1_000 + b"-" + b"b" * 1_000).decode("punycode", errors)
    with pytest.raises(UnicodeError):
        codecs.getincrementaldecoder("punycode")(errors).decode(b"b" * 1_000)
    assert not converted


def test_real_names_are_encoded_as_before(converted: list[int]) -> None:
    """The limit changes no real name. Python still refuses a character that becomes a slash in a name."""
    assert host_named("Bücher.example.") == "xn--bcher-kva.example"
    longest = "ü" * (LONGEST_LABEL - 20)
    assert longest.encode("punycode").decode("punycode") == longest
    assert f"{longest}.example".encode("idna").decode("idna") == f"{longest}.example"
    with pytest.raises(ValueError, match="under NFKC normalization"):
        urllib.parse.urlsplit("http://good.example\u2100.example/")
    assert Request("http://bücher.example/ü").url == "http://xn--bcher-kva.example/%C3%BC"
    assert converted
