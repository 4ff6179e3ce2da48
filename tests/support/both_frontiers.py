"""Calls the frontier and its reference side by side, and compares every answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha1
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.model import Admission, Block, Identity, Parentless, Seeding, Sent, Status, Terms
from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Fail, Move, Put, Release, next_id
from scrapy_dq.frontier.wire import pack_moves, pack_terms
from support.reference_partitions import UNIT_S, units
from support.stored import State

PARTITIONS = (b"a", b"b", b"c", b"d")
NO_TERMS = Terms()
TOKENS = 8
HISTORY = 40


@dataclass
class Actor:
    """The state of one worker process."""

    worker_id: str
    epoch: str
    run: int
    crawl: Identity
    seq: int = 1
    held: list[bytes] = field(default_factory=list)
    unanswered: tuple[Any, ...] | None = None
    """An exchange whose reply was lost. The process may only send this exchange again."""
    out_of_step: bool = False
    """Whether the last answer was RESYNC, or FINISHED although the moves were not applied."""
    former_ids: tuple[str, ...] = ()


class BothFrontiers(RuleBasedStateMachine):
    """Both frontiers and the processes that call them. The rules of the model test use this class."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.made = 0
        self.puts: list[Put] = []
        self.slots: dict[bytes, bytes] = {}
        self.tokens_of: dict[bytes, bytes] = {}
        self.actors: list[Actor] = []
        self.history: list[tuple[str, tuple[Any, ...]]] = []

    def both(self, method: str, *args: Any) -> Any:
        """Call *method* of both frontiers. Assert that the answers are equal, and return the answer."""
        self.history = [*self.history, (method, args)][-HISTORY:]
        if method == "drain":
            return self.both_drain(*args)
        if method == "exchange":
            members = self.live.redis.zrange(self.live.key("delayed"), 0, -1)
            self.reference.due_first = [member[:12] for member in members]
        sent = args
        if method == "exchange":
            *who, want, seeding, held, moves, terms = args
            sent = (
                Exchange(*who, want, Seeding(seeding), held, pack_moves(moves), pack_terms(terms)),
            )  # fmt: skip
        elif method == "rejoin":
            new_id, identity, *rest, former_ids, crawl = args
            sent = (Rejoin(new_id, *rest, former_ids=former_ids), identity, crawl)
        answer = self.live.call(method, *sent)
        expected = getattr(self.reference, method)(*args)
        if isinstance(answer, Receipt):
            answer, expected = (
                replace(found, blocked=tuple(sorted(found.blocked))) for found in (answer, expected)
            )
            assert times(answer) == times(expected)
        assert answer == expected
        return answer

    def in_units(self, state: State) -> State:
        """Return the stored *state* with times in the reference's units."""

        def unit(time_ms: float) -> int | None:
            return units(time_ms / 1000 - self.wall_s)

        limited, delay_ms, concurrency, own = state["limits"]
        own = {p: (ms and ms / 1000 / UNIT_S, *more) for p, (ms, *more) in own.items()}
        members = {
            worker_id: (*m[:6], tuple((i, at and unit(at)) for i, at in m[6]), *m[7:])
            for worker_id, m in state["members"].items()
        }
        times = {
            name: {p: unit(time) for p, time in state[name].items()}
            for name in ("resting", "earliest", "blocked")
        }
        return self.not_past(
            state
            | times
            | {
                "delayed": {i: (unit(due), *rest) for i, (due, *rest) in state["delayed"].items()},
                "members": members,
                "limits": (limited, delay_ms / 1000 / UNIT_S, concurrency, own),
                "offset": units(state["offset"] / 1000),
            }
        )

    def not_past(self, state: State) -> State:
        """Return *state* without past times, because the frontier may delete these at any moment."""
        past = {
            name: {p: time for p, time in state[name].items() if time > self.reference.clock}
            for name in ("earliest", "blocked")
        }
        return state | past

    def both_drain(
        self, worker_id: str, epoch: str, run: int, limit: int, max_attempts: int
    ) -> tuple[int, int, int]:
        """Drain in both frontiers. The reference drains the leases that the real frontier has chosen."""
        answer = self.live.call("drain", worker_id, epoch, run, limit, max_attempts)
        worker = self.reference.members.get(worker_id)
        before = set(worker.leases) if worker else set()
        entries = self.live.state()["entries"]
        chosen = sorted(i for i in before if i not in entries or entries[i][0] != worker_id)
        assert len(chosen) in (0, min(limit, len(before)))
        assert answer == self.reference.drain(worker_id, epoch, run, chosen, max_attempts)
        return answer

    def reclaim(self, worker_id: str, limit: int, max_attempts: int) -> None:
        """Fence and drain a worker. A process with this id counts as dead."""
        self.actors = [actor for actor in self.actors if actor.worker_id != worker_id]
        args = (worker_id, self.reference.epoch or "", self.reference.run)
        self.both("fence", *args)
        while self.both("drain", *args, limit, max_attempts)[2]:
            pass

    def exchange_of(
        self, actor: Actor, moves: list[Move], want: int, seeding: int, terms: Terms
    ) -> tuple[Any, ...]:
        who = (actor.worker_id, actor.epoch, actor.run, actor.seq)
        return (*who, want, seeding, len(actor.held), moves, terms)

    def send(
        self, actor: Actor, moves: list[Move], want: int, seeding: int, lost: bool, terms: Terms = NO_TERMS
    ) -> None:
        if actor.out_of_step and not actor.unanswered:
            self.resync(actor)
            if actor not in self.actors:
                return
            # If Redis was rolled back to an earlier run, this rejoin has deleted the tokens. A repeated put
            # would then store its entry twice. Such puts are left out here. A real worker gives new ids to
            # requests that it puts again (WorkerProtocol._renew_ids).
            moves = [
                each for each in moves if not (isinstance(each, Put) and self.reference.would_duplicate(each))
            ]
        sent = actor.unanswered or self.exchange_of(actor, moves, want, seeding, terms)
        receipt: Receipt = self.both("exchange", *sent)
        actor.unanswered = sent if lost else None
        if lost:
            return
        if receipt.applied:
            settled = {move.entry_id for move in sent[-2] if not isinstance(move, Put)}
            actor.held = [entry_id for entry_id in actor.held if entry_id not in settled]
            actor.held += [lease.entry_id for lease in receipt.leases]
            actor.seq += 1
        elif receipt.status is Status.LOST:
            self.actors.remove(actor)
        elif receipt.status is Status.FINISHED and not sent[-2]:
            actor.seq += 1
        else:
            actor.out_of_step = True

    def resync(
        self,
        actor: Actor,
        parentless: Parentless = Parentless.NONE,
        keep_seen: bool = False,
        repeats: int = 0,
    ) -> None:
        new_id = self.new_name("worker")
        old = (actor.worker_id, actor.epoch, actor.run, actor.held)
        crawl = replace(actor.crawl, keep_seen=keep_seen)
        args = (new_id, {"host": new_id}, *old, parentless, 1, actor.former_ids, crawl)
        for _ in range(repeats + 1):
            rejoined = self.both("rejoin", *args)
        if rejoined.status is Status.OK:
            actor.former_ids, actor.worker_id = (actor.worker_id, *actor.former_ids), new_id
            actor.run, actor.seq = rejoined.run, 1
            actor.held = [entry_id for entry_id in actor.held if entry_id in rejoined.owned]
            actor.unanswered, actor.out_of_step = None, False
        elif actor in self.actors:
            self.actors.remove(actor)

    def made_from(self, recipes: list[Any], actor: Actor) -> list[Move]:
        """Turn recipes drawn by Hypothesis into moves that are possible in the present state."""
        return [move for recipe in recipes if (move := self.move_from(actor, *recipe))]

    def terms_from(self, recipe: Any, actor: Actor) -> Terms:
        ahead, most, here, notes, max_pages = recipe
        told: list[Sent | Block] = []
        for kind, which, slot, age in notes:
            some = [put.entry_id for put in self.puts] if kind.startswith("foreign") else actor.held
            if kind == "block":
                told.append(Block(PARTITIONS[slot], (age + 1) * UNIT_S))
            elif entry_id := self.pick(some, which):
                at = None if kind == "never sent" else -age * UNIT_S
                told.append(Sent(self.slots[entry_id], entry_id, at))
        return Terms(ahead * UNIT_S, most, here, told, max_pages=max_pages)

    def move_from(
        self, actor: Actor, kind: str, which: int, priority: int, start: bool, slot: int, when: str
    ) -> Move | None:
        if kind in ("seen", "seed", "id"):
            new_id = sha1(self.new_name("entry").encode()).digest()[:12]
            admission = {"seen": Admission.SEEN, "seed": Admission.SEED, "id": Admission.ID}[kind]
            token = new_id if kind == "id" else b"token %d" % (which % TOKENS)
            partition = self.slots[new_id] = self.pick(self.partitions, slot)
            put = Put(new_id, admission, token, priority, start, new_id * (which % 3), partition=partition)
            if when == "never":
                put.reason = "not to be served"
            elif when.startswith("due"):
                put.due_at = int(when[-1]) * UNIT_S
            elif when:
                put.not_before_s = self.wall_s + int(when[-1]) * UNIT_S
            self.puts.append(put)
            if kind == "seen":
                self.tokens_of[new_id] = token
            return put
        if kind == "again":
            put = self.pick(self.puts, which)
            return None if put and self.reference.would_duplicate(put) else put
        foreign = [put.entry_id for put in self.puts]
        entry_id = self.pick(foreign if kind.startswith("foreign") else actor.held, which)
        if not entry_id:
            return None
        if kind.endswith("bury"):
            return Bury(entry_id, "no reason")
        if kind.endswith("decline"):
            return Decline(entry_id, "no code", self.tokens_of.get(entry_id, b""))
        if kind.endswith("later"):
            due_at = (2 if when == "due 2" else 1) * UNIT_S
            later = next_id(entry_id)
            self.slots[later] = self.slots[entry_id]
            return Again(entry_id, later, entry_id * (which % 3), priority, start, due_at, slot == 0)
        if kind == "fail":
            return Fail(entry_id, "failed", f"label {which}", never_sent=start)
        return Ack(entry_id, never_sent=start) if kind.endswith("ack") else Release(entry_id)

    def new_name(self, of: str) -> str:
        self.made += 1
        return f"{of}-{self.made}"

    @staticmethod
    def pick(some: list[Any], which: int) -> Any:
        return some[which % len(some)] if some else None


def times(receipt: Receipt) -> tuple[Any, ...]:
    """Return the times in a receipt, in the reference's units. `==` between receipts ignores these times."""
    found = (receipt.next_due_s, *(lease.send_at for lease in receipt.leases))
    return tuple(units(seconds) for seconds in found)
