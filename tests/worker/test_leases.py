"""What a worker holds, by itself: which lease is handed out next, and when."""

from __future__ import annotations

from collections import Counter

import pytest

from scrapy_dq.frontier.model import MAX_LEASES, Lease
from scrapy_dq.frontier.moves import Ack, Release
from scrapy_dq.frontier.worker.leases import RECENT, Leases

A, B, C = b"a.com", b"b.com", b"c.com"
NOW = 1000.0


class Held(Leases):
    """A book of leases whose limit, by partition, a test sets; without bounds at first."""

    def __init__(self) -> None:
        self.slots: dict[bytes, int] = {}
        super().__init__(lambda partition: self.slots.get(partition, MAX_LEASES))
        self._number = 0

    def fill(self, *partitions: bytes, send_at: float | None = None) -> list[bytes]:
        """Grant one lease of each of *partitions*; return their ids."""
        leases = []
        for partition in partitions:
            self._number += 1
            leases.append(Lease(b"%012d" % self._number, 0, b"", partition, send_at))
            self.grant(leases[-1])
        return [lease.entry_id for lease in leases]

    def placed(self, *places: bytes) -> list[bytes]:
        """Grant a lease of A for each of these places, which are the ids, too."""
        for place in places:
            self.grant(Lease(place, 0, b"", A, place=place))
        return sorted(places)

    def stint(self, partition: bytes, *send_at: float) -> list[bytes]:
        """Grant one lease of *partition* for each of these times."""
        return [self.fill(partition, send_at=at)[0] for at in send_at]

    def ids(self, count: int, now: float = NOW) -> list[bytes | None]:
        """Take *count* leases and return their ids."""
        taken = [self.take(now) for _ in range(count)]
        return [lease.entry_id if lease else None for lease in taken]

    def partitions(self, count: int, now: float = NOW) -> list[bytes | None]:
        """Take *count* leases and return their partitions."""
        taken = [self.take(now) for _ in range(count)]
        return [lease.partition if lease else None for lease in taken]


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_partition_is_first_in_first_out(held: Held) -> None:
    """The order of leasing is the crawl's order; here nothing of a partition overtakes another."""
    one, two, three = held.fill(A, A, A)
    assert held.ids(1) == [one]
    [four] = held.fill(A)
    assert held.ids(4) == [two, three, four, None]


def test_a_newer_lease_that_the_order_serves_first_overtakes_those_in_the_buffer(held: Held) -> None:
    """As it would if all waited in one process."""
    in_order = held.placed(b"3", b"5", b"1", b"4", b"2", b"6")
    assert held.ids(7) == [*in_order, None]


def test_leases_that_have_times_of_sending_keep_to_these(held: Held) -> None:
    """Each is timed to follow the one before it."""
    for place in b"2", b"1":
        held.grant(Lease(place, 0, b"", A, send_at=NOW, place=place))
    [first] = held.ids(1)
    assert first == b"2"
    held.sent(first, NOW)
    assert held.ids(1) == [b"1"]


def test_a_lease_is_unsent_from_its_handing_out_until_it_has_gone_out(held: Held) -> None:
    """Meanwhile it keeps its room, whatever it waits for; one without a time of sending never is."""
    [timed], [other] = held.stint(A, NOW), held.fill(B)
    assert not held.is_unsent(timed)
    assert set(held.ids(2)) == {timed, other}
    assert (held.is_unsent(timed), held.is_unsent(other)) == (True, False)
    held.sent(timed, NOW)
    assert not held.is_unsent(timed)


def test_the_partition_that_is_least_at_work_comes_first(held: Held) -> None:
    """However many of another are in the buffer."""
    held.fill(A, A, A, A, B, B, C)
    assert Counter(held.partitions(3)) == {A: 1, B: 1, C: 1}
    assert Counter(held.partitions(2)) == {A: 1, B: 1}
    assert held.partitions(3) == [A, A, None]


def test_among_equals_the_partition_that_was_served_last_comes_last(held: Held) -> None:
    """No partition waits for another that is always refilled."""
    served = []
    held.fill(A, B, C)
    for _ in range(9):
        lease = held.take(NOW)
        assert lease
        served.append(lease.partition)
        held.settle(Ack(lease.entry_id))
        held.fill(lease.partition)
    assert served == [A, B, C] * 3


def test_a_partition_without_room_is_skipped(held: Held) -> None:
    """It waits in its buffer, and delays nobody."""
    held.fill(A, A, B)
    held.slots = {A: 0}
    assert held.partitions(2) == [B, None]
    held.slots = {A: -1}
    assert held.take(NOW) is None
    held.slots = {A: 1}
    assert held.partitions(1) == [A]


def test_what_is_downloaded_makes_room_before_it_is_done(held: Held) -> None:
    """Its callback and pipelines may take long; no slot is idle for them. It counts once."""
    held.fill(A, A, A)
    held.slots = {A: 1}
    [one] = held.ids(1)
    assert one
    assert held.take(NOW) is None
    held.downloaded(one)
    [two] = held.ids(1)
    assert two
    held.downloaded(one)
    held.settle(Ack(one))
    assert held.take(NOW) is None
    assert held.here(0) == {A: (2, 0)}
    assert held.running == 1


def test_a_lease_is_not_handed_out_before_its_time(held: Held) -> None:
    """Others are, meanwhile."""
    early, late = held.stint(A, NOW + 1), held.stint(B, NOW + 2)
    plain = held.fill(C)
    assert held.ids(2) == [*plain, None]
    assert held.next_send_at(NOW) == NOW + 1
    assert held.ids(2, NOW + 1) == [*early, None]
    assert held.next_send_at(NOW + 1) == NOW + 2
    assert held.ids(2, NOW + 2) == [*late, None]
    assert held.next_send_at(NOW + 2) is None


def test_the_next_of_a_stint_waits_until_the_one_before_it_was_sent(held: Held) -> None:
    """A middleware may hold it back on its way out: two would go out together."""
    one, two = held.stint(A, NOW, NOW + 1)
    assert held.ids(1) == [one]
    assert held.take(NOW + 5) is None
    assert held.sent(one, NOW + 0.001) == A
    assert held.take(NOW + 1) is None
    assert held.ids(1, NOW + 1.001) == [two]


def test_one_that_goes_late_shifts_the_others_of_its_stint(held: Held) -> None:
    """All of them, and by as much: the gaps stay; other partitions do not care."""
    one, two, three = held.stint(A, NOW, NOW + 1, NOW + 2)
    [other] = held.stint(B, NOW + 1)
    assert held.ids(1, NOW + 0.25) == [one]
    held.sent(one, NOW + 0.75)
    assert held.ids(2, NOW + 1) == [other, None]
    assert held.next_send_at(NOW + 1) == NOW + 1.75
    assert held.ids(2, NOW + 1.75) == [two, None]
    held.sent(two, NOW + 1.75)
    assert held.take(NOW + 2.5) is None
    assert held.ids(1, NOW + 2.75) == [three]


def test_the_next_of_a_stint_goes_in_place_of_one_that_is_never_sent(held: Held) -> None:
    """The others keep their distance from it."""
    one, two, three = held.stint(A, NOW, NOW + 1, NOW + 2)
    assert held.ids(1) == [one]
    assert held.sent(one, None) == A
    assert held.ids(1) == [two]
    held.sent(two, NOW)
    assert held.take(NOW + 0.5) is None
    assert held.ids(1, NOW + 1) == [three]


def test_one_that_ends_without_being_sent_delays_nobody(held: Held) -> None:
    """A middleware answered it from a cache, or dropped it."""
    one, two = held.stint(A, NOW, NOW + 1)
    assert held.ids(1) == [one]
    held.settle(Ack(one))
    assert held.sent(one, NOW) is None
    assert held.ids(1, NOW + 1) == [two]


def test_a_partition_is_withdrawn_from_the_buffer_alone(held: Held) -> None:
    """Running leases continue; the ids are those to release."""
    one, two, three, other = held.fill(A, A, A, B)
    assert held.ids(1) == [one]
    assert held.withdraw(A) == [two, three]
    assert held.withdraw(A) == []
    assert held.withdraw(C) == []
    assert (held.running, held.buffered) == (1, 1)
    assert held.ids(2) == [other, None]
    assert len(held) == 4
    for entry_id in (two, three):
        assert held.settle(Release(entry_id))
        held.confirmed(entry_id)
    assert len(held) == 2


def test_here_tells_what_is_held_and_what_could_be_taken_more(held: Held) -> None:
    """At work and in the buffer, by partition; what fits into no slot is not asked for."""
    held.fill(A, A, A, B, B)
    held.slots = {A: 10, B: 10}
    assert held.here(0) == {A: (3, 7), B: (2, 8)}
    assert held.partitions(2) == [A, B]
    held.slots = {A: 1, B: 0}
    assert held.here(0) == {A: (3, 0), B: (2, 0)}
    held.slots = {A: 5, B: 5}
    held.empty_buffer()
    assert held.here(0) == {A: (1, 4), B: (1, 4)}


def test_here_looks_ahead_by_each_partitions_share_of_the_work(held: Held) -> None:
    """While a trip takes, four of ten leases go on A's account: so many more it may take, beyond its room."""
    for partition in [A, A, B, B, B] * 4:
        held.fill(partition)
    assert None not in held.partitions(20)
    held.slots = {A: 8, B: 13}
    assert held.here(10) == {A: (8, 4), B: (12, 7)}


def test_the_share_of_the_work_is_that_of_late(held: Held) -> None:
    """What a partition got long ago does not count, and takes no memory."""
    names = [b"%d.com" % n for n in range(RECENT)]
    for partition in [*names, *[A] * (4 * RECENT)]:
        [entry_id] = held.fill(partition)
        assert held.take(NOW)
        held.settle(Ack(entry_id))
        held.here(1)
    assert len(held._recent) < 10
    held.fill(A)
    assert held.take(NOW)
    held.slots = {A: 1}
    assert held.here(10)[A] == (1, 10)


def test_what_is_kept_after_a_rejoin_keeps_order_and_times(held: Held) -> None:
    one, two, three = held.stint(A, NOW, NOW + 1, NOW + 2)
    gone, plain = held.fill(B, B)
    held.keep({one, three, plain})
    assert held.ids(3, NOW) == [one, plain, None]
    held.sent(one, NOW)
    assert held.take(NOW + 1) is None
    assert held.ids(2, NOW + 2) == [three, None]
    assert gone not in held.held()
    assert two not in held.held()


def test_a_lease_that_waits_already_is_not_added_again(held: Held) -> None:
    """A stored answer may name it more than once; given back, or taken and confirmed, it may come again."""
    lease = Lease(b"%012d" % 1, 0, b"", A)
    for _ in range(3):
        held.grant(lease)
    assert (held.buffered, len(held)) == (1, 1)
    assert held.ids(2) == [lease.entry_id, None]
    held.settle(Ack(lease.entry_id))
    held.confirmed(lease.entry_id)
    held.grant(lease)
    assert held.withdraw(A) == [lease.entry_id]
    assert held.buffered == 0
    held.grant(lease)
    held.keep(())
    assert held.buffered == 0
    held.grant(lease)
    held.keep({lease.entry_id})
    held.grant(lease)
    assert held.ids(2) == [lease.entry_id, None]


def test_what_is_stuck_is_named_once_it_fills_half_of_the_buffer(held: Held) -> None:
    """Others may have room for it, and it must not keep all else out."""
    held.slots = {A: 0, B: 1}
    held.fill(*[A] * (MAX_LEASES // 2), *[B] * 9)
    assert held.stuck == []
    held.fill(A)
    assert held.stuck == [A]
    held.withdraw(A)
    assert held.stuck == []
