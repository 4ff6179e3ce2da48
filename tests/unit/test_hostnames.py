"""What Python's own codec of host names may cost."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from encodings import punycode

import pytest

from scrapy_dq.hostnames import LONGEST_LABEL, bound_punycode, host_named

LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Bound it, as a scheduler does."""
    before = punycode.punycode_encode, punycode.punycode_decode
    bound_punycode()
    bound_punycode()
    yield
    punycode.punycode_encode, punycode.punycode_decode = before


def test_no_host_is_encoded_whose_label_is_too_long_anyway() -> None:
    """In the square of its length: a minute for 20,000 letters."""
    with pytest.raises(UnicodeError, match="at most 63 characters"):
        f"www.{LETTERS}.example".encode("idna")


def test_no_page_is_decoded_as_if_it_were_a_label() -> None:
    """Whatever its charset claims."""
    for errors in ("strict", "replace", "ignore"):
        with pytest.raises(UnicodeError, match="at most 63 characters"):
            (b"a" * 1_000 + b"-" + b"b" * 1_000).decode("punycode", errors)
    with pytest.raises(UnicodeError):
        codecs.getincrementaldecoder("punycode")().decode(b"b" * 1_000)


def test_real_names_are_what_they_were() -> None:
    assert host_named("Bücher.example.") == "xn--bcher-kva.example"
    longest = "ü" * (LONGEST_LABEL - 20)
    assert longest.encode("punycode").decode("punycode") == longest
    assert f"{longest}.example".encode("idna").decode("idna") == f"{longest}.example"
