"""Scrapy's download slots: which partition a request is of, and how many of each may download at once."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.utils.httpobj import urlparse_cached

from scrapy_dq.frontier.model import MAX_LEASES, MAX_PARTITION_BYTES, fits_a_partition
from scrapy_dq.scheduling.engine_hooks import UnsupportedScrapy

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_dq.settings import Config

MOST_HOSTS = 10_000
"""Hosts whose partition is remembered."""


def delay_of_each(crawler: Crawler, config: Config) -> str:
    """Return what to say if the delay that the project names holds for each worker by itself; else ""."""
    delay_s = getattr(crawler.spider, "download_delay", None) or crawler.settings.getfloat("DOWNLOAD_DELAY")
    if not delay_s or config.domain_delay_s or config.domain_limits or config.partition_by == "none":
        return ""
    return (
        f"DOWNLOAD_DELAY = {delay_s:g} holds for each worker by itself: several together ask more often. "
        f"DQ_DOMAIN_DELAY = {delay_s:g} holds for all workers together"
    )


class BadPartition(ValueError):
    """The download slot of a request has a name that no partition can have."""


class Slots:
    """`DQ_PARTITION_BY = "slot"`: partitions are download slots, by default the hosts of URLs."""

    def __init__(self, crawler: Crawler) -> None:
        """
        Raises:
            UnsupportedScrapy: the downloader is not like Scrapy's.
        """
        settings = crawler.settings
        # Source: scrapy/pqueues.py, which asks it the same.
        self._downloader = crawler.engine.downloader
        try:
            self._downloader.get_slot_key(Request("http://localhost"))
        except AttributeError as error:
            raise UnsupportedScrapy(
                f"the downloader has no slots as Scrapy's has ({error}). Set DQ_PARTITION_BY = 'none'"
            ) from error
        # Scrapy's own key is the host of the URL: that is read once for all URLs that begin alike.
        plain = getattr(self._downloader.get_slot_key, "__func__", None) is Downloader.get_slot_key
        self._by_host = plain and not getattr(self._downloader, "ip_concurrency", 0)
        self._hosts: dict[str, bytes] = {}
        per_domain = settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
        self.most = getattr(crawler.spider, "max_concurrent_requests", 0) or per_domain or MAX_LEASES
        self._own = {
            name.encode(): int(slot["concurrency"])
            for name, slot in settings.getdict("DOWNLOAD_SLOTS").items()
            if "concurrency" in slot
        }

    def partition_of(self, request: Request) -> bytes:
        """Return the partition that *request* waits in.

        Raises:
            BadPartition: its slot's name is too long, or holds control characters.
        """
        url = request.url
        end = url.find("/", 8)  # "https://" has 8: whatever names the host stands before
        if (
            not self._by_host
            or end < 0  # as of http://a.com, where nothing tells the host's end
            or not url.startswith(("http://", "https://"))
            or self._downloader.DOWNLOAD_SLOT in request.meta
        ):
            return _partition(str(self._downloader.get_slot_key(request)))
        begin = url[:end]
        partition = self._hosts.get(begin)
        if partition is None:
            partition = _partition(str(self._downloader.get_slot_key(request)))
            if len(self._hosts) >= MOST_HOSTS:
                self._hosts.clear()
            self._hosts[begin] = partition
        return partition

    def leave_inherited(self, request: Request, parent: Request | None) -> None:
        """Take the slot out of *request*'s meta that it has only as a copy of *parent*'s, as a redirect has.

        Scrapy notes in the meta of each download which slot it used. Copied, it would have a request to
        another host wait in the partition of the one that named it, past the limits of its own. A slot that
        the project has chosen stays, for what copies it as well.
        """
        key = self._downloader.DOWNLOAD_SLOT
        slot = request.meta.get(key)
        # The same object: an equal text is one that somebody has written.
        if slot is None or parent is None or slot is not parent.meta.get(key):
            return
        bare = Request(parent.url, meta={name: value for name, value in parent.meta.items() if name != key})
        if self._downloader.get_slot_key(bare) == slot:
            del request.meta[key]

    def limit(self, partition: bytes) -> int:
        """Return how many downloads of *partition* may be at work in this worker at once."""
        return self._own.get(partition, self.most)


class OneSlot:
    """`DQ_PARTITION_BY = "none"`: one partition, without a name and without bounds."""

    most = MAX_LEASES

    def partition_of(self, request: Request) -> bytes:
        """Return the one partition that there is."""
        return b""

    def leave_inherited(self, request: Request, parent: Request | None) -> None:
        """Leave *request* as it is: there is no other partition."""

    def limit(self, partition: bytes) -> int:
        """Return that there is no limit."""
        return MAX_LEASES


def partition_without_downloader(request: Request) -> bytes:
    """Return the partition that *request* would wait in under Scrapy's own downloader; it is not there yet.

    Raises:
        BadPartition: as `Slots.partition_of`.
    """
    # Source: scrapy/core/downloader/__init__.py::Downloader.get_slot_key
    slot = request.meta.get(Downloader.DOWNLOAD_SLOT)
    return _partition(str(urlparse_cached(request).hostname or "" if slot is None else slot))


@lru_cache(maxsize=10_000)
def _partition(name: str) -> bytes:
    if not fits_a_partition(name):
        raise BadPartition(
            f"the name of its download slot ({name[:100]!a}) is longer than {MAX_PARTITION_BYTES} bytes, or "
            f"holds control characters"
        )
    return name.encode()
