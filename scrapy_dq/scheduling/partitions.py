"""Partitions from Scrapy's download slots, and the maximum of parallel downloads in each partition."""

from __future__ import annotations

from functools import lru_cache

from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.crawler import Crawler
from scrapy.utils.httpobj import urlparse_cached

from scrapy_dq.frontier.model import MAX_LEASES, MAX_PARTITION_BYTES, fits_partition
from scrapy_dq.hostnames import canonical_host, with_canonical_hosts
from scrapy_dq.scheduling.engine_hooks import UnsupportedScrapy

MAX_HOSTS = 10_000
"""Maximum number of hosts whose partition is cached."""
LONGEST_CACHED = 300
"""Maximum length of a cached scheme and host; a host has at most 253 characters."""


class BadPartition(ValueError):
    """The name of a request's download slot is not valid as the name of a partition."""


class Slots:
    """`DQ_PARTITION_BY = "slot"`: partitions are download slots, by default the hosts of URLs."""

    def __init__(self, crawler: Crawler) -> None:
        """
        Raises:
            UnsupportedScrapy: the downloader has no `get_slot_key`.
        """
        settings = crawler.settings
        # Source: scrapy/pqueues.py, which uses the same method.
        self._downloader = crawler.engine.downloader
        try:
            self._downloader.get_slot_key(Request("http://localhost"))
        except AttributeError as error:
            raise UnsupportedScrapy(
                f"the downloader has no slots like Scrapy's ({error}). Set DQ_PARTITION_BY = 'none'"
            ) from error
        # Scrapy's own key is the host of the URL, so it is computed once for all URLs with the same prefix.
        plain = getattr(self._downloader.get_slot_key, "__func__", None) is Downloader.get_slot_key
        self._by_host = plain and not getattr(self._downloader, "ip_concurrency", 0)
        self._hosts: dict[str, bytes] = {}
        per_domain = settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
        self.most = getattr(crawler.spider, "max_concurrent_requests", 0) or per_domain or MAX_LEASES
        self._own = {
            name.encode(): int(slot["concurrency"])
            for name, slot in with_canonical_hosts(settings.getdict("DOWNLOAD_SLOTS")).items()
            if "concurrency" in slot
        }

    def partition_of(self, request: Request) -> bytes:
        """Return the partition that *request* waits in.

        Raises:
            BadPartition: the name of the slot in its meta is too long, or contains control characters.
        """
        if request.meta.get(self._downloader.DOWNLOAD_SLOT) is not None:
            return _partition(self._slot_of(request))
        url = request.url
        end = url.find("/", 8)  # "https://" has 8 characters: the host stands before *end*
        if not 0 < end <= LONGEST_CACHED:  # a query may follow the host, as in http://a.com?x=1
            return self._partition_of_slot(request)
        begin = url[:end]
        partition = self._hosts.get(begin)
        if partition is None:
            partition = self._partition_of_slot(request)
            if self._by_host and url.startswith(("http://", "https://")):
                if len(self._hosts) >= MAX_HOSTS:
                    self._hosts.clear()
                self._hosts[begin] = partition
        return partition

    def _partition_of_slot(self, request: Request) -> bytes:
        slot = self._slot_of(request)
        return _partition_of_host(canonical_host(slot) if self._by_host else slot)

    def _slot_of(self, request: Request) -> str:
        return str(self._downloader.get_slot_key(request))

    def leave_inherited(self, request: Request, parent: Request | None, *, continues: bool) -> None:
        """Remove the slot from *request*'s meta if it was only copied from *parent*, as in a redirect.

        Scrapy writes the slot of a download into its meta. With a copy of the slot, a request to another host
        would wait in its parent's partition, and bypass the limits of its own host. A slot that the project
        has chosen stays, also in requests that copy it. But a redirect to another site loses the slot,
        because that site could block the slot with a `Retry-After`, or fill it with slow answers.

        Args:
            continues: *request* is a redirect or a retry of *parent*.
        """
        key = self._downloader.DOWNLOAD_SLOT
        slot = request.meta.get(key)
        # Only the same object is a copy. If the string is merely equal, the project has set it.
        if slot is None or parent is None or slot is not parent.meta.get(key):
            return
        bare = Request(parent.url, meta={name: value for name, value in parent.meta.items() if name != key})
        to_other_site = continues and _site(request) != _site(parent)
        if to_other_site or self._downloader.get_slot_key(bare) == slot:
            del request.meta[key]

    def limit(self, partition: bytes) -> int:
        """Return how many downloads of *partition* this worker may run at once."""
        return self._own.get(partition, self.most)


class OneSlot:
    """`DQ_PARTITION_BY = "none"`: one partition, without a name and without limits."""

    most = MAX_LEASES

    def partition_of(self, request: Request) -> bytes:
        """Return the only partition."""
        return b""

    def leave_inherited(self, request: Request, parent: Request | None, *, continues: bool) -> None:
        """Do nothing, because there is no other partition."""

    def limit(self, partition: bytes) -> int:
        """Return the highest possible number: there is no limit."""
        return MAX_LEASES


def _site(request: Request) -> list[str]:
    """Return the last two labels of the host. So www.a.com and a.com are one site, but also all of co.uk."""
    return (urlparse_cached(request).hostname or "").split(".")[-2:]


def partition_without_downloader(request: Request) -> bytes:
    """Return the partition that *request* has with Scrapy's own downloader, which need not be open.

    Raises:
        BadPartition: as in `Slots.partition_of`.
    """
    # Source: scrapy/core/downloader/__init__.py::Downloader.get_slot_key
    slot = request.meta.get(Downloader.DOWNLOAD_SLOT)
    if slot is not None:
        return _partition(str(slot))
    return _partition_of_host(canonical_host(urlparse_cached(request).hostname or ""))


def _partition_of_host(name: str) -> bytes:
    """Return the partition of a host, even if its name is invalid.

    A host with an invalid name has no address, so its requests fail like requests to any unknown host. As
    dead letters they would all stay in Redis, and one page can have tens of thousands of such links.
    """
    return _partition(name if fits_partition(name) else ascii(name)[1:-1][:MAX_PARTITION_BYTES])


@lru_cache(maxsize=10_000)
def _partition(name: str) -> bytes:
    if not fits_partition(name):
        raise BadPartition(
            f"the name of its download slot ({name[:100]!a}) is longer than {MAX_PARTITION_BYTES} bytes, or "
            f"contains control characters"
        )
    return name.encode()
