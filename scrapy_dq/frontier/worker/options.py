"""The options of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy_dq.frontier.model import MAX_LEASES
from scrapy_dq.frontier.worker.outage import OUTAGE_NOTE


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a `Worker`. Times are in seconds; docs/settings.md describes most options."""

    ttl_s: float = 30.0
    rollback_horizon_s: float = 10.0
    max_attempts: int = 3
    max_per_partition: int = MAX_LEASES
    """How many leases of one partition can run in this worker at the same time."""
    max_pages: int | None = None
    """Maximum number of requests of the run, over all workers with the same limit; None: no limit."""
    spill_dir: str = ""
    """Folder for moves that exceed the memory limit; "": the system's folder for temporary files."""
    outage_note: str = OUTAGE_NOTE
    """The sentence in the warning about an outage that tells what happens until Redis answers."""
