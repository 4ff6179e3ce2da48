"""Redis's answers to a simulated worker, recorded for the checks."""

from __future__ import annotations

from scrapy_dq.frontier.calls import Rejoin
from scrapy_dq.frontier.model import Seeding
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.protocol import WorkerProtocol
from scrapy_dq.frontier.worker.worker import Worker
from simulation.virtual import World
from simulation.visits import Visit

OTHER_RUN = 2**52
"""The number that rejoin.lua returns as a worker's last exchange if the next run has begun."""


class Answered(Listener):
    """A worker that records Redis's answers about its runs, ids and leases, even lost answers."""

    worker: Worker

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: set[tuple[str, int]] = set()
        """The worker's runs, by epoch and number."""
        self.finished_at = float("inf")
        """The last time Redis reported the run as finished: no request was left, and no worker seeded."""
        self.overtaken = False
        """Whether Redis reported only that the next run has begun, and this worker's start() was complete."""
        self.ids: set[str] = set()
        """The worker's ids in Redis; a rejoin adds one."""
        self.registered_at: list[float] = []
        """The times at which Redis has registered the worker."""
        self.rejoined_at: list[float] = []
        self.unnoticed = False
        """Redis has lost puts that the log no longer has, and the worker has not reported this yet."""
        self._unconfirmed: list[Visit] = []

    @property
    def _protocols(self) -> list[WorkerProtocol]:
        return [each.protocol for each in self.worker.parts]

    def exchanged(self, worker_id: str, seq: int, status: bytes, *, of_run: bool) -> None:
        """Record an exchange's answer before the worker gets it. Without *of_run*, the next run has begun."""
        pending = self.worker.parts[0].protocol._pending
        same = pending is not None and not isinstance(pending, Rejoin)
        same = same and (pending.call.worker_id, pending.call.seq) == (worker_id, seq)
        if not same or status != b"FINISHED":
            return  # a late copy, or the run continues
        if of_run:
            self.finished_at = self._world.now
        else:
            self.overtaken = self.worker.parts[0].protocol.seeding == Seeding.DONE

    def gave_back(self, entry_ids: set[bytes]) -> None:
        """Record that leases were released, so that Redis does not know the work on them."""
        self._unconfirmed = [visit for visit in self._unconfirmed if visit.entry_id not in entry_ids]

    def rejoins(self, new_id: str, last_seq: int, *, finished: bool) -> None:
        """Record the answer to a rejoin before the worker gets it."""
        protocol = next((of for of in self._protocols if _rejoins(of, new_id)), None)
        if protocol is None:
            return  # a late copy
        lost, parentless_lost = protocol.log.forgot(None if last_seq == -1 else last_seq)
        if not finished:
            self.unnoticed = self.unnoticed or lost
            return
        # This answer replaces an earlier one, which may have been lost. In a finished run, no request that a
        # page yielded is missing: when Redis lost it, Redis also had no end of the page's lease, so another
        # worker has processed the page again.
        self.unnoticed = parentless_lost
        if last_seq >= OTHER_RUN:
            self.overtaken = protocol.seeding == Seeding.DONE
        else:
            self.finished_at = self._world.now

    def forgotten(self, losses: list[tuple[float, float]]) -> bool:
        """Tell whether Redis was set back to a time before it registered this worker."""
        return any(
            taken_at <= registered_at <= at for registered_at in self.registered_at for taken_at, at in losses
        )

    def redis_set_back(self) -> None:
        """Expect a new answer to the repeat of a rejoin under way: Redis may now have data that it lacked."""
        if any(of.is_rejoining for of in self._protocols):
            self.unnoticed = False

    def _entered(self) -> None:
        self.runs.add((self.worker.epoch, self.worker.run))


def _rejoins(protocol: WorkerProtocol, new_id: str) -> bool:
    return isinstance(protocol._pending, Rejoin) and protocol._pending.new_id == new_id
