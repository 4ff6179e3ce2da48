"""With any characters in their names, two crawls share no key, and each crawl is in one slot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dq.frontier.keys import PREFIX, prefix
from scrapy_dq.frontier.model import Order
from support.live_frontier import HandWorker, LiveFrontier, numbers, put

NASTY = "}{*:% é[a]?\\\n"
NAMES = st.text(st.sampled_from(NASTY + "ab%7B") | st.characters(exclude_categories=["Cs"]), min_size=1)


@given(NAMES, NAMES)
@example("a", "a:")
@example("a", "a}:meta")
@example("}", "%7D")
@example("a" * 300, "a" * 299)
def test_two_crawls_share_no_key(one: str, other: str) -> None:
    """No key of a crawl has the prefix of another crawl."""
    if one != other:
        assert not prefix(one).startswith(prefix(other))
        assert not prefix(other).startswith(prefix(one))


@given(NAMES)
@example(NASTY * 30)
def test_the_hash_tag_is_the_whole_name(name: str) -> None:
    """Redis hashes the text between the first { and the next }, which is the same in all keys of a crawl."""
    head, _, rest = prefix(name).partition("{")
    tag, closing, tail = rest.partition("}")
    assert (head, closing, tail) == (PREFIX, "}", ":")
    assert tag
    assert not set(tag) & set("{}*:?[]\\ \n")
    assert tag.isascii()


@pytest.mark.parametrize("suffix", ["", ":", "*", "}:meta", "%7D", " ", "é"])
def test_a_crawl_can_have_an_unusual_name(
    open_frontier: Callable[..., LiveFrontier], crawl_name: str, suffix: str
) -> None:
    """A name of 300 characters, many of them special in Redis, globs or URLs, works like any other."""
    name = (crawl_name + NASTY * 30)[:300] + suffix
    plain = open_frontier(Order.FIFO, name + "?")
    HandWorker(plain, "worker").exchange(put(1))
    before = plain.dump()
    live = open_frontier(Order.FIFO, name)
    worker = HandWorker(live, "worker")
    assert numbers(worker.exchange(put(2), want=2)) == [2]
    assert live.call("flush", ["worker"])[0] == ""
    assert live.dump() == {}
    assert plain.dump() == before
