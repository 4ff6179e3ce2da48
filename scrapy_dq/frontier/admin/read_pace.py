"""How many records to read at once if their sizes are unknown."""

from __future__ import annotations

from collections.abc import Collection

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES

MOST_RECORDS = 200


class ReadPace:
    """Computes how many records to read next: about MAX_EXCHANGE_BYTES, judging by the last ones.

    A record may have megabytes: a fixed number of them would not fit into a time-out, or into memory. The
    first read is a small one.

    Args:
        most: most records at once.
    """

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._most = most
        self.count = min(4, most)

    def saw(self, records: Collection[bytes]) -> None:
        """Adapt to the largest of *records*, which were read last."""
        largest = max(map(len, records), default=0)
        self.count = max(1, min(self._most, 4 * self.count, MAX_EXCHANGE_BYTES // max(1, largest)))
