"""What Redis has answered to a simulated worker, noted for the checks."""

from __future__ import annotations

from scrapy_dq.frontier.calls import Rejoin
from scrapy_dq.frontier.model import Seeding
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.protocol import WorkerProtocol
from scrapy_dq.frontier.worker.worker import Worker
from simulation.virtual import World
from simulation.visits import Visit

OTHER_RUN = 2**52
"""The last exchange of a worker, if the next run has begun (rejoin.lua)."""


class Answered(Listener):
    """A worker, and what it has heard of runs, ids and leases; also what the worker itself does not get."""

    worker: Worker

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: set[tuple[str, int]] = set()
        """The runs in which it has taken part, by epoch and number."""
        self.told_at = float("inf")
        """When Redis has last said that the run is finished: nothing was left then, and nobody seeded."""
        self.outrun = False
        """Its start() was complete when Redis said that the next run has begun, and knew no more of it."""
        self.ids: set[str] = set()
        """The ids under which Redis has registered it; a rejoin adds one."""
        self.registered_at: list[float] = []
        """When Redis has registered it."""
        self.rejoined_at: list[float] = []
        self.unnoticed = False
        """Redis has lost what its log does not hold any more, and it has not said so yet."""
        self._unconfirmed: list[Visit] = []

    @property
    def _protocols(self) -> list[WorkerProtocol]:
        return [each.protocol for each in self.worker.parts]

    def exchanged(self, worker_id: str, seq: int, status: bytes, *, of_run: bool) -> None:
        """Note the answer to an exchange, before the worker gets it; not *of_run*: the next run has begun."""
        pending = self.worker.parts[0].protocol._pending
        same = pending is not None and not isinstance(pending, Rejoin)
        same = same and (pending.call.worker_id, pending.call.seq) == (worker_id, seq)
        if not same or status != b"FINISHED":
            return  # it is a late copy, or the run goes on
        if of_run:
            self.told_at = self._world.now
        else:
            self.outrun = self.worker.parts[0].protocol.seeding == Seeding.DONE

    def gave_back(self, entry_ids: set[bytes]) -> None:
        """Note that leases were released: what was done under them is not known to Redis."""
        self._unconfirmed = [visit for visit in self._unconfirmed if visit.entry_id not in entry_ids]

    def rejoins(self, new_id: str, last_seq: int, *, finished: bool) -> None:
        """Note the answer to a rejoin, before the worker gets it."""
        protocol = next((of for of in self._protocols if _rejoins(of, new_id)), None)
        if protocol is None:
            return  # it is a late copy
        lost, parentless_lost = protocol.log.forgot(None if last_seq == -1 else last_seq)
        if not finished:
            self.unnoticed = self.unnoticed or lost
            return
        # An answer before this one may have been lost. What pages had yielded is not missing in a run that is
        # finished: their leases were not settled in what Redis had, so others have processed them again.
        self.unnoticed = parentless_lost
        if last_seq >= OTHER_RUN:
            self.outrun = protocol.seeding == Seeding.DONE
        else:
            self.told_at = self._world.now

    def forgotten(self, losses: list[tuple[float, float]]) -> bool:
        """Tell whether Redis was set back to before it has registered this worker."""
        return any(
            taken_at <= registered_at <= at for registered_at in self.registered_at for taken_at, at in losses
        )

    def redis_set_back(self) -> None:
        """Expect another answer to a rejoin that is under way: Redis may have more than before."""
        if any(of.rejoins for of in self._protocols):
            self.unnoticed = False

    def _entered(self) -> None:
        self.runs.add((self.worker.epoch, self.worker.run))


def _rejoins(protocol: WorkerProtocol, new_id: str) -> bool:
    return isinstance(protocol._pending, Rejoin) and protocol._pending.new_id == new_id
