"""A worker's protocol without Redis and without an event loop, so that each test run has equal results."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import get_args
from unittest.mock import Mock
from unittest.mock import call as a_call

import msgpack

import scrapy_dq
from scrapy_dq.frontier.answers import Receipt, Rejoined
from scrapy_dq.frontier.calls import Demand, Exchange, Rejoin
from scrapy_dq.frontier.model import (
    Admission,
    Commands,
    Lease,
    Parentless,
    Seeding,
    SpillLost,
    StartKeys,
    Status,
)
from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Defer, Fail, Move, Put, Release
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.protocol import WorkerProtocol

ROOT = Path(scrapy_dq.__file__).parents[1]
UNPREDICTABLE = {"asyncio", "os", "random", "secrets", "socket", "tempfile", "threading", "time", "uuid"}
HORIZON_S = 10.0
LEASE = Lease(b"%012d" % 7, 1, b"payload")


def protocol(**options: object) -> WorkerProtocol:
    ids = count(1)
    made = WorkerProtocol(
        "crawl", Mock(), Outbox(), HORIZON_S,
        new_id=lambda: f"worker {next(ids)}", random_bytes=lambda n: b"r" * n, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    made.epoch = "epoch"
    return made


def put(number: int, parent: bytes | None = None, due_at: float = 0.0) -> Put:
    token = b"%012d" % number
    return Put(token, Admission.ID, token, 0, 0, b"payload", parent, due_at=due_at)


def exchange(made: WorkerProtocol, now: float, want: int = 0) -> Exchange:
    call = made.compose(now, Demand(want))
    assert isinstance(call, Exchange)
    return call


def moves(made: WorkerProtocol) -> list[Move]:
    """Return the moves of the unanswered exchange."""
    assert made._pending is not None
    assert not isinstance(made._pending, Rejoin)
    return made._pending.prefix


def rejoin(made: WorkerProtocol, now: float = 0.0) -> Rejoin:
    call = made.compose(now, Demand())
    assert isinstance(call, Rejoin)
    return call


def test_a_call_without_an_answer_is_composed_again_byte_for_byte() -> None:
    """Neither new puts nor the time change the call: if Redis gets it twice, the second must be a repeat."""
    made = protocol(start_keys=StartKeys("list", ("start",), b"m"))
    made.outbox.append(put(1, due_at=1005.0))
    first = exchange(made, 1000.0, want=3)
    made.outbox.append(put(2))
    assert exchange(made, 1004.0, want=9) is first
    assert moves(made) == [put(1, due_at=1005.0)]
    assert (first.want, first.seq) == (3, 1)
    assert msgpack.unpackb(first.moves, raw=True)[0][8] == 5000
    assert msgpack.unpackb(first.terms, raw=True)[4] == [b"list", b"m", b"r" * 8]


def test_an_answer_grants_leases_and_confirms_moves() -> None:
    made = protocol()
    made.outbox.append(put(1))
    exchange(made, 1000.0, want=3)
    assert made.received(Receipt(Status.OK, applied=True, leases=(LEASE,)), 1000.1) == (3, 1)
    assert made.leases.take(1000.1) == LEASE
    assert not made.outbox
    second = exchange(made, 1001.0)
    assert (second.seq, second.held, moves(made)) == (2, 1, [])


def test_a_worker_out_of_step_rejoins_and_stores_its_newest_again() -> None:
    """The worker keeps its leases. If a rejoin gets no answer, the same call is composed again."""
    made = protocol()
    made.outbox.append(put(1))
    exchange(made, 1000.0, want=1)
    made.received(Receipt(Status.OK, applied=True, leases=(LEASE,)), 1000.1)
    exchange(made, 1001.0)
    assert made.received(Receipt(Status.RESYNC), 1001.1) == (0, 0)
    call = rejoin(made)
    assert rejoin(made, 5000.0) is call
    assert call == Rejoin(
        "worker 2", "worker 1", "epoch", 0, [LEASE.entry_id], Parentless.WAITING, Seeding.ACTIVE, 0
    )
    made.rejoined(Rejoined(Status.OK, 4, frozenset({LEASE.entry_id}), 1))
    assert (made.id, made.run) == ("worker 2", 4)
    again = exchange(made, 1002.0)
    assert (again.worker_id, again.seq, again.held, moves(made)) == ("worker 2", 1, 1, [put(1)])


def seen(number: int) -> Put:
    return replace(put(number), admission=Admission.SEEN)


def test_puts_that_may_have_been_forgotten_get_new_ids_after_a_rejoin() -> None:
    """`scrapy dq clear --seen` ran while the worker was declared dead, so its old puts may count as new."""
    made = protocol()
    for each in (put(1), seen(2)):
        made.outbox.append(each)
    exchange(made, 1000.0)
    made.received(Receipt(Status.OK, applied=True), 1000.1)
    made.outbox.append(seen(3))
    exchange(made, 1001.0)  # Redis may have applied it
    made.received(Receipt(Status.RESYNC), 1001.1)
    made.outbox.append(seen(4))
    rejoin(made)
    made.rejoined(Rejoined(Status.OK, commands=Commands(count=1, forgets=1)))
    exchange(made, 1002.0)
    repeated = moves(made)
    assert [(each.entry_id[:1], each.token) for each in repeated] == [  # type: ignore[union-attr]
        (b"0", put(1).token), (b"r", put(2).token), (b"r", put(3).token), (b"0", put(4).token),
    ]  # fmt: skip


def test_a_start_request_whose_token_was_dropped_gets_a_new_id() -> None:
    """After a roll-back of Redis, another worker took over an earlier run and dropped its `seeds`."""
    made = protocol()
    made.outbox.append(replace(put(1), admission=Admission.SEED))
    exchange(made, 1000.0)
    made.received(Receipt(Status.OK, applied=True), 1000.1)
    exchange(made, 1001.0)
    made.received(Receipt(Status.RESYNC), 1001.1)
    rejoin(made)
    words = Commands(count=1, forgets=1)
    made.rejoined(Rejoined(Status.OK, run=1, commands=words))
    assert made._listener.commanded.mock_calls == [a_call(Commands(), words)]  # type: ignore[attr-defined]
    exchange(made, 1002.0)
    assert [each.entry_id for each in moves(made)] == [b"r" * 12]  # type: ignore[union-attr]


def test_puts_that_were_forgotten_before_a_rejoin_get_new_ids() -> None:
    made = protocol()
    made.outbox.append(seen(1))
    exchange(made, 1000.0)
    made.received(Receipt(Status.OK, applied=True), 1000.1)
    exchange(made, 1001.0)
    words = Commands(count=1, forgets=1)
    made.received(Receipt(Status.OK, applied=True, commands=words), 1001.1)
    exchange(made, 1002.0)
    made.received(Receipt(Status.RESYNC), 1002.1)
    rejoin(made)
    made.rejoined(Rejoined(Status.OK, commands=words))
    exchange(made, 1003.0)
    assert [each.entry_id for each in moves(made)] == [b"r" * 12]  # type: ignore[union-attr]


def test_a_put_of_a_refused_call_does_not_count_as_a_duplicate() -> None:
    """If the script stopped after it had stored the put, Redis drops the repeat because of this put."""
    made = protocol()
    made.outbox.append(put(1))
    exchange(made, 1000.0)
    made.refused()
    exchange(made, 1001.0)
    made.received(Receipt(Status.OK, applied=True, dropped=(0,)), 1001.1)
    made._listener.put_dropped.assert_not_called()  # type: ignore[attr-defined]


def test_a_lost_outbox_gives_every_lease_back() -> None:
    made = protocol()
    exchange(made, 1000.0, want=1)
    made.received(Receipt(Status.OK, applied=True, leases=(LEASE,)), 1000.1)
    made.outbox.append(Ack(LEASE.entry_id))
    made.outbox.prefix = Mock(side_effect=SpillLost("gone"))  # type: ignore[method-assign]
    assert made.compose(1001.0, Demand()) is None
    assert rejoin(made).held == []


def test_every_kind_of_move_is_counted() -> None:
    """The listener gets the class of each confirmed move."""
    made = protocol()
    moves = [
        put(1), Ack(b"a" * 12), Release(b"b" * 12), Bury(b"c" * 12, ""), Fail(b"d" * 12, "", ""),
        Defer(b"e" * 12), Again(b"f" * 12, b"g" * 12, b"", 0, 0, 0.0), Decline(b"h" * 12, ""),
    ]  # fmt: skip
    assert {type(move) for move in moves} == set(get_args(Move))
    for move in moves:
        made.outbox.append(move)
    exchange(made, 1000.0)
    made.received(Receipt(Status.OK, applied=True), 1000.1)
    counted = made._listener.counted  # type: ignore[attr-defined]
    counted.assert_has_calls([a_call(type(each), 1) for each in moves], any_order=True)


def runtime_imports(path: Path) -> Iterator[str]:
    """Yield the full names of the modules that *path* imports at module level."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_protocol_imports_no_clock_no_randomness_and_no_io() -> None:
    """This also holds for the modules of scrapy_dq that the protocol imports, directly or indirectly."""
    waiting, modules = ["scrapy_dq.frontier.worker.protocol"], set[str]()
    while waiting:
        module = waiting.pop()
        for name in (module, module.rpartition(".")[0]):
            path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            if name not in modules and path.exists():
                modules.add(name)
                waiting += [each for each in runtime_imports(path) if each.startswith("scrapy_dq.")]
                imported = {each.partition(".")[0] for each in runtime_imports(path)}
                assert not imported & UNPREDICTABLE, name
    assert {f"scrapy_dq.frontier.{name}" for name in ("wire", "model", "worker.leases")} <= modules


def test_the_protocol_has_no_imports_inside_functions_except_the_outbox() -> None:
    """The previous test would miss such an import. The outbox does I/O, so tests pass in their own outbox."""
    path = ROOT / "scrapy_dq/frontier/worker/protocol.py"
    inner = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.col_offset
    }
    assert inner == {"scrapy_dq.frontier.worker.outbox"}
