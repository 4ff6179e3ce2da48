"""How much to read at once of records whose size nobody knows beforehand."""

from __future__ import annotations

from collections.abc import Collection

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES

MOST_RECORDS = 200


class ReadPace:
    """How many records to read next: about MAX_EXCHANGE_BYTES of such as the last ones.

    A record may have megabytes: a fixed number of them would not fit into a time-out, or into memory. The
    first read is a small one.

    Args:
        most: records at once.
    """

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._most = most
        self.count = min(4, most)

    def saw(self, records: Collection[bytes]) -> None:
        """Go by the largest of these *records*, which were read last."""
        largest = max(map(len, records), default=0)
        self.count = max(1, min(self._most, 4 * self.count, MAX_EXCHANGE_BYTES // max(1, largest)))
