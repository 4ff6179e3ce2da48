"""The leases of one worker: which one it hands out next, and when."""

from __future__ import annotations

from collections import Counter

import pytest

from scrapy_dq.frontier.model import MAX_LEASES, Lease
from scrapy_dq.frontier.moves import Ack, Release
from scrapy_dq.frontier.worker.leases import RECENT, Leases

A, B, C = b"a.com", b"b.com", b"c.com"
NOW = 1000.0


class Held(Leases):
    """Leases whose limit per partition the test sets. At first there is no limit."""

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
        """Grant a lease of A for each of *places*; each place is also the id."""
        for place in places:
            self.grant(Lease(place, 0, b"", A, place=place))
        return sorted(places)

    def stint(self, partition: bytes, *send_at: float) -> list[bytes]:
        """Grant one lease of *partition* for each time of sending."""
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
    """Leases arrive in the crawl's order; within a partition none overtakes another."""
    one, two, three = held.fill(A, A, A)
    assert held.ids(1) == [one]
    [four] = held.fill(A)
    assert held.ids(4) == [two, three, four, None]


def test_a_newer_lease_with_a_better_place_overtakes_the_buffer(held: Held) -> None:
    """The order is the same as if one process had all entries."""
    in_order = held.placed(b"3", b"5", b"1", b"4", b"2", b"6")
    assert held.ids(7) == [*in_order, None]


def test_leases_with_sending_times_keep_their_order(held: Held) -> None:
    """The time of each lease depends on the lease before it, so a better place changes nothing."""
    for place in b"2", b"1":
        held.grant(Lease(place, 0, b"", A, send_at=NOW, place=place))
    [first] = held.ids(1)
    assert first == b"2"
    held.sent(first, NOW)
    assert held.ids(1) == [b"1"]


def test_a_lease_is_unsent_from_its_hand_out_until_its_request_is_sent(held: Held) -> None:
    """An unsent lease takes room in its partition. A lease without a time of sending is never unsent."""
    [timed], [other] = held.stint(A, NOW), held.fill(B)
    assert not held.is_unsent(timed)
    assert set(held.ids(2)) == {timed, other}
    assert (held.is_unsent(timed), held.is_unsent(other)) == (True, False)
    held.sent(timed, NOW)
    assert not held.is_unsent(timed)


def test_the_partition_with_the_fewest_running_leases_comes_first(held: Held) -> None:
    """The number of buffered leases does not matter."""
    held.fill(A, A, A, A, B, B, C)
    assert Counter(held.partitions(3)) == {A: 1, B: 1, C: 1}
    assert Counter(held.partitions(2)) == {A: 1, B: 1}
    assert held.partitions(3) == [A, A, None]


def test_among_equal_partitions_the_last_served_comes_last(held: Held) -> None:
    """No partition has to wait for another partition that is refilled again and again."""
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
    """The leases of such a partition wait in the buffer and delay no other partition."""
    held.fill(A, A, B)
    held.slots = {A: 0}
    assert held.partitions(2) == [B, None]
    held.slots = {A: -1}
    assert held.take(NOW) is None
    held.slots = {A: 1}
    assert held.partitions(1) == [A]


def test_a_downloaded_page_makes_room_before_it_is_done(held: Held) -> None:
    """Callback and pipelines may take long, so the slot is free before they end. A download counts once."""
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
    """Until then, other leases are handed out."""
    early, late = held.stint(A, NOW + 1), held.stint(B, NOW + 2)
    plain = held.fill(C)
    assert held.ids(2) == [*plain, None]
    assert held.next_send_at(NOW) == NOW + 1
    assert held.ids(2, NOW + 1) == [*early, None]
    assert held.next_send_at(NOW + 1) == NOW + 2
    assert held.ids(2, NOW + 2) == [*late, None]
    assert held.next_send_at(NOW + 2) is None


def test_the_next_lease_of_a_stint_waits_until_the_previous_one_is_sent(held: Held) -> None:
    """If a middleware holds back the first request, the two requests must not be sent together."""
    one, two = held.stint(A, NOW, NOW + 1)
    assert held.ids(1) == [one]
    assert held.take(NOW + 5) is None
    assert held.sent(one, NOW + 0.001) == A
    assert held.take(NOW + 1) is None
    assert held.ids(1, NOW + 1.001) == [two]


def test_a_late_request_shifts_the_rest_of_its_stint(held: Held) -> None:
    """All later leases of the partition shift by the lateness, and keep their gaps.

    Leases of other partitions keep their times.
    """
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


def test_the_next_lease_of_a_stint_takes_the_place_of_one_that_is_never_sent(held: Held) -> None:
    """The later leases keep their distance from the lease that moves up."""
    one, two, three = held.stint(A, NOW, NOW + 1, NOW + 2)
    assert held.ids(1) == [one]
    assert held.sent(one, None) == A
    assert held.ids(1) == [two]
    held.sent(two, NOW)
    assert held.take(NOW + 0.5) is None
    assert held.ids(1, NOW + 1) == [three]


def test_a_lease_that_ends_without_being_sent_delays_no_other(held: Held) -> None:
    """A middleware answered the request from a cache, or dropped it."""
    one, two = held.stint(A, NOW, NOW + 1)
    assert held.ids(1) == [one]
    held.settle(Ack(one))
    assert held.sent(one, NOW) is None
    assert held.ids(1, NOW + 1) == [two]


def test_a_partition_is_withdrawn_only_from_the_buffer(held: Held) -> None:
    """Running leases continue; `withdraw` returns the ids to release."""
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


def test_here_counts_the_held_leases_and_the_free_slots(held: Held) -> None:
    """For each partition, `here` has the number of leases, in work or buffered, and of free slots."""
    held.fill(A, A, A, B, B)
    held.slots = {A: 10, B: 10}
    assert held.here(0) == {A: (3, 7), B: (2, 8)}
    assert held.partitions(2) == [A, B]
    held.slots = {A: 1, B: 0}
    assert held.here(0) == {A: (3, 0), B: (2, 0)}
    held.slots = {A: 5, B: 5}
    held.empty_buffer()
    assert held.here(0) == {A: (1, 4), B: (1, 4)}


def test_here_adds_the_leases_that_a_partition_needs_during_a_trip(held: Held) -> None:
    """Partition A gets four of ten leases during a trip, so it may take four more than it has room for."""
    for partition in [A, A, B, B, B] * 4:
        held.fill(partition)
    assert None not in held.partitions(20)
    held.slots = {A: 8, B: 13}
    assert held.here(10) == {A: (8, 4), B: (12, 7)}


def test_the_share_of_the_work_counts_recent_leases_only(held: Held) -> None:
    """Old leases of a partition do not count and take no memory."""
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


def test_leases_kept_by_a_rejoin_keep_their_order_and_times(held: Held) -> None:
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
    """Repeated answers may name a lease again; after a release or a confirmed end it may be granted again."""
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


def test_a_partition_that_fills_half_of_the_buffer_without_room_is_stuck(held: Held) -> None:
    """Other workers may have room for this partition, and it must not keep others out of the buffer."""
    held.slots = {A: 0, B: 1}
    held.fill(*[A] * (MAX_LEASES // 2), *[B] * 9)
    assert held.stuck == []
    held.fill(A)
    assert held.stuck == [A]
    held.withdraw(A)
    assert held.stuck == []
