"""What the hosts in others' URLs may cost: Python takes the square of their length."""

from __future__ import annotations

import codecs
import sys
import unicodedata
import urllib.parse
from encodings import idna, punycode
from typing import Any

import pytest
import w3lib.url
from scrapy import Request

from scrapy_dq.hostnames import LONGEST_HOST, LONGEST_LABEL, bound_host_names, host_named

LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
ACCENTS = "a" + "\u0301\u0323" * 200


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Bound it, as a scheduler does; return what is normalized meanwhile."""
    normalized: list[str] = []

    class Noted:
        def __getattr__(self, name: str) -> Any:
            return getattr(unicodedata, name)

        @staticmethod
        def normalize(form: str, text: str) -> str:
            normalized.append(text)
            return unicodedata.normalize(form, text)

    of_w3lib = sys.modules.get("w3lib._url")
    for module, name in (
        (punycode, "punycode_encode"), (punycode, "punycode_decode"), (idna, "nameprep"),
        (urllib.parse, "_checknetloc"), (of_w3lib, "_nfkc_netloc"),
    ):  # fmt: skip
        if hasattr(module, name):
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(idna, "unicodedata", Noted())
    monkeypatch.setitem(sys.modules, "unicodedata", Noted())  # urllib.parse imports it when it needs it
    if of_w3lib is not None:
        monkeypatch.setattr(of_w3lib, "unicodedata", Noted())
    bound_host_names()
    bound_host_names()
    urllib.parse.clear_cache()  # type: ignore[attr-defined]
    return normalized


def test_no_host_is_encoded_whose_label_is_too_long_anyway() -> None:
    """A minute for 20,000 letters."""
    with pytest.raises(UnicodeError, match="300 characters are too many for a host name"):
        f"www.{LETTERS}.example".encode("idna")


def test_no_page_is_decoded_as_if_it_were_a_label() -> None:
    """Whatever its charset claims."""
    for errors in ("strict", "replace", "ignore"):
        with pytest.raises(UnicodeError, match="2,001 characters are too many"):
            (b"a" * 1_000 + b"-" + b"b" * 1_000).decode("punycode", errors)
    with pytest.raises(UnicodeError):
        codecs.getincrementaldecoder("punycode")().decode(b"b" * 1_000)


@pytest.mark.parametrize("host", [ACCENTS, f"{ACCENTS}.example", f"me:{ACCENTS}@example.com:80"])
def test_no_host_is_normalized_that_is_longer_than_any(bounded: list[str], host: str) -> None:
    """Ten minutes for 1 MB of accents: neither by Python, nor by w3lib, nor for a request."""
    url = f"http://{host}/path"
    assert urllib.parse.urlsplit(url).netloc == host
    w3lib.url.safe_url_string(url)
    assert Request(url).url
    with pytest.raises(UnicodeError):
        ACCENTS.encode("idna")
    assert max(map(len, bounded), default=0) <= LONGEST_HOST


def test_real_names_are_what_they_were(bounded: list[str]) -> None:
    """Also refused as they were: a sign that becomes a slash would hide where a host ends."""
    assert host_named("Bücher.example.") == "xn--bcher-kva.example"
    longest = "ü" * (LONGEST_LABEL - 20)
    assert longest.encode("punycode").decode("punycode") == longest
    assert f"{longest}.example".encode("idna").decode("idna") == f"{longest}.example"
    with pytest.raises(ValueError, match="under NFKC normalization"):
        urllib.parse.urlsplit("http://good.example\u2100.example/")
    assert Request("http://bücher.example/ü").url == "http://xn--bcher-kva.example/%C3%BC"
    assert bounded
