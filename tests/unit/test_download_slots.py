"""Scrapy's download slots as partitions, with real slots of the installed Scrapy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.core.downloader import Downloader
from scrapy.settings import Settings

from scrapy_dq.frontier.model import MAX_LEASES, MAX_PARTITION_BYTES
from scrapy_dq.hostnames import canonical_host
from scrapy_dq.scheduling.engine_hooks import UnsupportedScrapy
from scrapy_dq.scheduling.partitions import (
    BadPartition,
    OneSlot,
    Slots,
    partition_without_downloader,
)
from scrapy_dq.settings import Config

LONGEST = "x" * MAX_PARTITION_BYTES


class Resting(Downloader):
    """Scrapy's Downloader with only its slots: it downloads nothing, and needs no reactor."""

    def __init__(self) -> None:
        self.slots = {}
        self.ip_concurrency = 0


def crawler(downloader: Any, **settings: Any) -> Any:
    spider = Spider("spider")
    return SimpleNamespace(
        engine=SimpleNamespace(downloader=downloader), settings=Settings(settings), spider=spider
    )


def slots(**settings: Any) -> Slots:
    return Slots(crawler(Resting(), **settings))


@pytest.mark.parametrize(
    ("url", "meta", "partition"),
    [
        ("http://a.com/1", {}, b"a.com"),
        ("https://user:pass@A.com:8080/1?x#y", {}, b"a.com"),
        # w3lib before 2.5 loses the brackets.
        *([("http://[::1]:80/", {}, b"::1")] if "[" in Request("http://[::1]:80/").url else []),
        ("http://bücher.example/", {}, b"xn--bcher-kva.example"),
        ("data:,", {}, b""),
        # Hosts that no resolver knows.
        (f"http://{LONGEST}/", {}, LONGEST.encode()),
        (f"http://{LONGEST}more/", {}, LONGEST.encode()),
        ("http://a\x1bb/", {"verbatim_url": True}, rb"a\x1bb"),
        ("http://a.com/1", {"download_slot": "mine"}, b"mine"),
        ("http://a.com/1", {"download_slot": "straße 1"}, "straße 1".encode()),
        ("http://a.com/1", {"download_slot": LONGEST}, LONGEST.encode()),
        ("http://a.com/1", {"download_slot": 5}, b"5"),
        ("http://a.com/1", {"download_slot": [1]}, b"[1]"),
    ],
)
def test_a_requests_partition_is_its_download_slot(url: str, meta: dict[str, Any], partition: bytes) -> None:
    """The partition is the host of the URL, as Scrapy reads it, or the slot that the meta names."""
    assert slots().partition_of(Request(url, meta=meta)) == partition
    assert partition_without_downloader(Request(url, meta=meta)) == partition


@pytest.mark.parametrize(
    ("host", "partition"),
    [
        *((host, "127.0.0.2") for host in (
            "127.0.0.2", "127.0.0.2.", "127.2", "127.0.2", "0177.2", "0x7f.2", "0X7F.0.0.0x2", "0x7f000002",
            "2130706434", "017700000002",
        )),
        ("a.com.", "a.com"),
        ("a.com..", "a.com."),
        *((host, host) for host in (
            ".", "a.1", "1.a", "1a.2", "0x", "1.2.3.4.5", "256.1.1.1", "08.1.1.1", "4294967296", "9" * 300,
            "127.0.0.2%20x", "1..2", "a.com", "١.٢",
        )),
        *((host, "::2") for host in ("[::2]", "[0::2]", "[0:0:0:0:0:0:0:2]", "[::0002]")),
        *((host, "127.0.0.2") for host in ("[::ffff:127.0.0.2]", "[0::FFFF:7f00:2]")),
        ("[fe80::1%25eth0]", "fe80::1%25eth0"),
    ],
)  # fmt: skip
def test_one_host_under_several_names_is_one_partition(host: str, partition: str) -> None:
    """A resolver reads these numbers as one address, and ignores a final dot. Other names stay unchanged."""
    request = Request(f"http://{host}/1", meta={"verbatim_url": True})
    if request.url != f"http://{host}/1":
        pytest.skip("this Scrapy changes the URL")
    for made in (slots().partition_of(request), partition_without_downloader(request)):
        assert made == partition.encode()


@pytest.mark.parametrize(
    "urls",
    [
        ["http://example.com", "http://example.co/", "http://example.cm", "http://example.com/"],
        ["http://a", "http://b", "http://a:1", "http://a?x=/", "http://b#/"],
        ["http://u:p@a.com/", "http://u:p@b.com/", "http://u:p@b.com:80/", "https://[::1]/", "http://[::2]/"],
        ["gopher://a.com/x", "gopher://b.com/x", "chrome-extension://a/x", "chrome-extension://b/x"],
        ["s3://one/x", "s3://two/x", "ftp://a/b/c", "ftp://a.b/c/", "data:,a/b", "file:///tmp/x/y"],
    ],
)
def test_a_remembered_host_is_not_used_for_another_host(urls: list[str]) -> None:
    """The cache maps the beginning of a URL to its host; a URL with another beginning must not match."""
    made = slots()
    for url in urls:
        request = Request(url, meta={"verbatim_url": True})
        expected = Resting().get_slot_key(Request(url)).encode()
        assert (url, made.partition_of(request)) == (url, expected)


def test_a_downloader_with_its_own_slot_key_is_asked() -> None:
    """The downloader may be a subclass or a changed instance, or it may use another key of the meta."""

    class Named(Resting):
        DOWNLOAD_SLOT = "lane"

    changed: Any = Resting()
    changed.get_slot_key = lambda request: request.url[-1]
    assert Slots(crawler(changed)).partition_of(Request("http://a.com/7")) == b"7"
    named = Slots(crawler(Named()))
    assert named.partition_of(Request("http://a.com/", meta={"lane": "slow"})) == b"slow"
    assert named.partition_of(Request("http://a.com/", meta={"download_slot": "slow"})) == b"a.com"


@pytest.mark.parametrize(
    "name",
    ["x" * 10_000, LONGEST + "x", "ä" * 257, "a\nb", "a\0b", "\x1b[31m", "a\u2028b", "a\ud800b"],
    ids=ascii,
)
def test_a_slot_whose_name_fits_no_partition_is_reported(name: str) -> None:
    """The error is short, and contains no forbidden character."""
    with pytest.raises(BadPartition, match="the name of its download slot") as refusal:
        slots().partition_of(Request("http://a.com/", meta={"download_slot": name}))
    assert len(str(refusal.value)) < 800
    assert str(refusal.value).isprintable()


def test_a_slot_that_scrapy_set_on_the_parent_is_not_copied() -> None:
    """A slot that the project chose is kept, even if it is equal to the slot that Scrapy set."""
    made = slots()
    page = Request("http://a.com/1", meta={"x": 1})
    page.meta["download_slot"] = "".join(["a", ".com"])  # as Scrapy does when it downloads
    mine = Request("http://a.com/2", meta={"download_slot": "".join(["m", "ine"])})
    for request, parent, partition in (
        (page.replace(url="http://b.com/1"), page, b"b.com"),
        (page.copy(), page, b"a.com"),
        (Request("http://b.com/1", meta={"download_slot": "a.com"}), page, b"a.com"),
        (mine.replace(url="http://b.com/2"), mine, b"mine"),
        (page.replace(url="http://b.com/1"), None, b"a.com"),
    ):
        before = dict(request.meta)
        made.leave_inherited(request, parent, continues=False)
        assert made.partition_of(request) == partition
        assert request.meta == before or request.meta == {"x": 1}


def test_a_redirect_takes_no_slot_of_the_project_to_another_site() -> None:
    """Otherwise an open redirect could block the slot for all workers. A retry keeps its slot."""
    made = slots()
    mine = Request("http://a.com/1", meta={"download_slot": "".join(["m", "ine"])})
    for url, partition in (
        ("http://a.com/1", b"mine"),
        ("https://www.a.com/2", b"mine"),
        ("http://a.com.evil.com/", b"a.com.evil.com"),
        ("http://b.com/", b"b.com"),
        ("http://localhost/", b"localhost"),
    ):
        redirect = mine.replace(url=url)
        made.leave_inherited(redirect, mine, continues=True)
        assert made.partition_of(redirect) == partition


def test_a_partition_has_the_limit_of_its_slot() -> None:
    """The limit is CONCURRENT_REQUESTS_PER_DOMAIN, unless DOWNLOAD_SLOTS sets another one for the slot."""
    found = slots(
        CONCURRENT_REQUESTS_PER_DOMAIN=8,
        DOWNLOAD_SLOTS={"slow.com": {"concurrency": 1, "delay": 5}, "late.com": {"delay": 5}},
    )
    assert found.most == 8
    assert [found.limit(p) for p in (b"a.com", b"slow.com", b"late.com")] == [8, 1, 8]


def test_a_spiders_own_concurrency_counts() -> None:
    """Scrapy prefers the spider's attribute to its setting."""
    made = crawler(Resting(), CONCURRENT_REQUESTS_PER_DOMAIN=8)
    made.spider.max_concurrent_requests = 2
    assert (Slots(made).most, Slots(made).limit(b"a.com")) == (2, 2)


def test_a_concurrency_of_0_means_no_limit() -> None:
    assert slots(CONCURRENT_REQUESTS_PER_DOMAIN=0).most == MAX_LEASES


@pytest.mark.parametrize("downloader", [object(), SimpleNamespace(slots={})])
def test_a_downloader_without_slots_is_refused(downloader: Any) -> None:
    """The error about another DOWNLOADER names the setting that helps."""
    with pytest.raises(UnsupportedScrapy, match="DQ_PARTITION_BY = 'none'"):
        Slots(crawler(downloader))


def test_without_partitions_all_requests_share_one() -> None:
    request = Request("http://a.com/", meta={"download_slot": "x" * 10_000})
    assert OneSlot().partition_of(request) == b""
    assert OneSlot().limit(b"") == OneSlot().most == MAX_LEASES


def test_the_memory_of_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that was forgotten leads to the same partition again."""
    monkeypatch.setattr("scrapy_dq.scheduling.partitions.MAX_HOSTS", 3)
    mine = slots()
    for number in (*range(10), *range(10)):
        assert mine.partition_of(Request(f"http://{number}.example/x")) == b"%d.example" % number
        assert len(mine._hosts) <= 3


@pytest.mark.parametrize("before", ["?", "#", ".", "@"])
def test_no_long_prefix_of_a_url_is_remembered(before: str) -> None:
    """A page may have 10,000 links with beginnings of 16 kB, which would take much memory."""
    mine = slots()
    url = f"http://a{before}{'x' * 16_000}/"
    assert mine.partition_of(Request("http://b.com/")) == b"b.com"
    mine.partition_of(Request(url, meta={"verbatim_url": True}))
    assert max(map(len, mine._hosts)) < 20


def test_limits_of_a_host_apply_to_any_spelling_of_its_name() -> None:
    """The settings may spell a host in another way. A limit for the exact spelling has precedence."""
    delays = {"127.2": 1, "A.com.": 2, "b.com": 3, "B.COM": 4, "[::ffff:7f00:5]": 5}
    setting = {name: {"delay": delay} for name, delay in delays.items()}
    limits = Config.read({"DQ_DOMAIN_LIMITS": setting}, {"spider": "any"}).limits.own
    assert {name: delay for name, (delay, _) in limits.items()} == delays | {
        "127.0.0.2": 1,
        "a.com": 2,
        "127.0.0.5": 5,
    }
    own = slots(DOWNLOAD_SLOTS={"127.2": {"concurrency": 3}})
    assert own.limit(own.partition_of(Request("http://127.0.0.2/"))) == 3


@pytest.mark.parametrize(
    "name",
    [
        "bücher.example", "BÜCHER.Example.", "bu\u0308cher.example", "bücher\u3002example",
        "xn--bcher-kva.example", "XN--BCHER-KVA.EXAMPLE.", "straße.example", f"{'ü' * 64}.example",
    ],
    ids=ascii,
)  # fmt: skip
def test_an_internationalised_name_in_the_settings_matches_its_host(name: str) -> None:
    """Scrapy's Request encodes the name if it can; otherwise the name is compared unchanged."""
    limits = Config.read({"DQ_DOMAIN_LIMITS": {name: {"delay": 1}}}, {"spider": "any"}).limits.own
    own = slots(DOWNLOAD_SLOTS={name: {"concurrency": 3}})
    for url in (f"http://{name}/", f"https://{name}:8080/x"):
        partition = own.partition_of(Request(url))
        assert limits[partition.decode()] == (1, None)
        assert own.limit(partition) == 3


@pytest.mark.parametrize("zone", ["%1", "%30", "%25"])
def test_the_zone_of_an_address_makes_no_separate_partition(zone: str) -> None:
    """With any zone, an address leads to the same host, unless the address is link-local."""
    assert canonical_host(f"2001:db8::1{zone}") == "2001:db8::1"
    assert canonical_host(f"fe80::1{zone}") == f"fe80::1{zone}"
