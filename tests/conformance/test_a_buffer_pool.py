"""Rows of the buffer pool: what is lent, what is waited for, and what comes back in every case."""

import random
from collections.abc import Iterator

import pytest
from penstock.api.errors import BufferExhaustedError, ClosedError
from penstock.producer.accumulator.buffer_pool import Buffer, BufferOwner, BufferPool, MemoryWaiter
from penstock.producer.sender.ready_nodes import SendPermit

from tests.conformance.rig import Rig

TAG = BufferOwner(1, 1, 0)
NODE = 1
MAX_WAIT_S = 0.010


def taken(pool: BufferPool, size: int) -> Buffer:
    buffer = pool.allocate(NODE, size, TAG)
    assert buffer is not None
    return buffer


def wanted(pool: BufferPool, size: int, *, now: float = 0.0, max_wait_s: float = MAX_WAIT_S) -> MemoryWaiter:
    """A ticket that has to wait."""
    ticket = pool.reserve(size, now=now, max_wait_s=max_wait_s)
    assert not ticket.poll(now)
    return ticket


@pytest.mark.row("A1")
def test_a_buffer_of_the_poolable_size_is_kept_for_the_next_batch_and_one_of_another_size_is_not() -> None:
    total, size = 64 << 10, 1024
    pool = BufferPool(total, size)
    first = taken(pool, size)
    assert (pool.unallocated_bytes, pool.available_bytes) == (total - size, total - size)
    first.data[:4] = b"\x00\x00\x00\x01"
    pool.deallocate(first)
    assert pool.available_bytes == total
    assert pool.unallocated_bytes == total - size, "one is on the free list"
    again = taken(pool, size)
    assert again is first
    assert not again.belongs_to(TAG, 1), "what was written under the first use belongs to nobody"
    assert again.belongs_to(TAG, 2)
    pool.deallocate(again)
    odd = taken(pool, 2 * size)
    assert len(odd.data) == 2 * size
    pool.deallocate(odd)
    assert pool.available_bytes == total
    assert pool.unallocated_bytes == total - size, "an odd size is not pooled"


@pytest.mark.row("A2")
def test_more_than_there_is_in_all_is_an_error_at_once() -> None:
    pool = BufferPool(1024, 512)
    pool.deallocate(taken(pool, 1024))
    with pytest.raises(ValueError, match="1025"):
        _ = pool.allocate(NODE, 1025, TAG)
    with pytest.raises(ValueError, match=r"1025 bytes .* 1024"):
        _ = pool.reserve(1025, now=0.0, max_wait_s=MAX_WAIT_S)
    assert pool.reserve(1024, now=0.0, max_wait_s=MAX_WAIT_S).poll(0.0)


@pytest.mark.row("A3")
def test_who_waits_gets_the_memory_when_it_comes_back() -> None:
    pool = BufferPool(5 * 1024, 1024)
    assert pool.try_reserve(1024)
    woken: list[bool] = []
    ticket = pool.reserve(5 * 1024, now=0.0, max_wait_s=1.0, wake=lambda: woken.append(True))
    assert not ticket.poll(0.999)
    assert woken == []
    pool.release(1024)
    assert woken == [True]
    assert ticket.poll(0.999)
    assert pool.waited_s == pytest.approx(0.999)


@pytest.mark.row("A4")
def test_memory_that_stays_out_is_a_time_out_that_tells_what_was_wanted_and_what_there_is() -> None:
    pool = BufferPool(2, 1)
    assert pool.try_reserve(1)
    ticket = wanted(pool, 2)
    with pytest.raises(BufferExhaustedError) as caught:
        _ = ticket.poll(MAX_WAIT_S)
    assert isinstance(caught.value, TimeoutError)
    assert str(caught.value) == (
        "Failed to allocate 2 bytes within the configured max blocking time 10 ms. Total memory: 2 bytes. "
        "Available memory: 1 bytes. Poolable size: 1 bytes"
    )
    assert pool.exhausted_count == 1


@pytest.mark.row("A5")
def test_a_ticket_fails_at_its_deadline_and_not_before() -> None:
    pool = BufferPool(2, 1)
    assert pool.try_reserve(1)
    ticket = wanted(pool, 2, now=100.0)
    assert ticket.deadline == pytest.approx(100.010)
    assert not ticket.poll(100.0099)
    with pytest.raises(BufferExhaustedError):
        _ = ticket.poll(ticket.deadline)


@pytest.mark.row("A6")
def test_a_time_out_gives_back_what_was_gathered() -> None:
    pool = BufferPool(2, 1)
    assert pool.try_reserve(1)
    ticket = wanted(pool, 2)
    assert (pool.queued, pool.available_bytes) == (1, 0), "the one byte there was is gathered"
    with pytest.raises(BufferExhaustedError):
        _ = ticket.poll(MAX_WAIT_S)
    assert (pool.queued, pool.available_bytes) == (0, 1)


@pytest.mark.row("A7")
def test_cancelled_tickets_leave_nothing_behind() -> None:
    pool = BufferPool(2, 1)
    assert pool.try_reserve(1)
    first, second = (wanted(pool, 2, max_wait_s=5.0) for _ in range(2))
    assert pool.queued == 2
    first.cancel()
    assert (pool.queued, second.gathered) == (1, 1), "what the first had gathered goes to the second"
    second.cancel()
    second.cancel()
    assert (pool.queued, pool.available_bytes) == (0, 1)


@pytest.mark.row("A8")
def test_whatever_goes_wrong_while_one_waits_the_memory_comes_back() -> None:
    pool = BufferPool(2, 1)
    assert pool.try_reserve(1)

    def count_waits() -> None:
        with wanted(pool, 2) as ticket:
            assert ticket.gathered == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        count_waits()
    assert (pool.available_bytes, pool.unallocated_bytes, pool.queued) == (1, 1, 0)
    assert pool.reserve(1, now=0.0, max_wait_s=0.0).poll(0.0)


@pytest.mark.row("A9")
def test_ten_callers_who_want_more_than_there_is_all_get_it_in_the_end() -> None:
    chance = random.Random(9)
    total = 5 * 1024
    pool = BufferPool(total, 1024)
    steps = 0

    def caller() -> Iterator[None]:
        for turn in range(50_000):
            size = 1024 if turn % 2 else chance.randrange(1, total)
            if not pool.try_reserve(size):
                ticket = pool.reserve(size, now=steps / 1e6, max_wait_s=20.0)
                while not ticket.poll(steps / 1e6):
                    yield
            yield
            pool.release(size)

    callers = [caller() for _ in range(10)]
    while callers:
        steps += 1
        place = chance.randrange(len(callers))
        if next(callers[place], 0) == 0:
            del callers[place]
    assert pool.available_bytes == total
    assert pool.queued == 0
    assert pool.exhausted_count == 0


@pytest.mark.row("A10")
def test_more_memory_than_32_bits_can_count_is_counted() -> None:
    pool = BufferPool(20_000_000_000, 2_000_000_000)
    assert pool.try_reserve(2_000_000_000)
    assert pool.available_bytes == 18_000_000_000
    assert pool.try_reserve(2_000_000_000)
    assert pool.available_bytes == 16_000_000_000
    pool.release(2_000_000_000)
    assert pool.available_bytes == 18_000_000_000
    pool.release(2_000_000_000)
    assert pool.available_bytes == 20_000_000_000


@pytest.mark.row("A11")
def test_a_machine_without_memory_costs_the_pool_nothing() -> None:
    pool = BufferPool(1 << 62, 1 << 62)
    with pytest.raises(MemoryError):
        _ = pool.allocate(NODE, 1 << 62, TAG)
    assert pool.available_bytes == 1 << 62
    assert pool.lent_to(NODE) == 0


@pytest.mark.row("A12")
def test_a_closed_pool_reserves_nothing_and_takes_back_what_is_out() -> None:
    pool = BufferPool(10, 1)
    assert pool.try_reserve(1)
    buffer = taken(pool, 1)
    pool.close()
    with pytest.raises(ClosedError):
        _ = pool.reserve(1, now=0.0, max_wait_s=MAX_WAIT_S)
    assert not pool.try_reserve(1)
    pool.release(1)
    pool.deallocate(buffer)
    assert pool.available_bytes == 10


@pytest.mark.row("A13")
def test_closing_wakes_all_who_wait() -> None:
    pool = BufferPool(1, 1)
    assert pool.try_reserve(1)
    woken: list[int] = []
    tickets = [
        pool.reserve(1, now=0.0, max_wait_s=float("inf"), wake=lambda n=number: woken.append(n)) for number in range(2)
    ]
    pool.close()
    assert woken == [0, 1]
    for ticket in tickets:
        with pytest.raises(ClosedError):
            _ = ticket.poll(0.0)
    assert pool.queued == 0
    pool.release(1)
    assert pool.available_bytes == 1


@pytest.mark.row("A14")
def test_want_of_memory_at_one_node_makes_only_its_batches_sendable() -> None:
    size = 1024
    leaders = {**dict.fromkeys(range(5), 1), **dict.fromkeys(range(5, 7), 2)}
    rig = Rig(batch_bytes=size - 61, pool_bytes=8 * size, linger_ms=60_000, leaders=leaders)
    rig.budget = 4 * size
    rig.nodes(1, 2)
    for partition in range(5, 7):
        rig.append(partition)
    for partition in range(4):
        rig.append(partition)
    assert rig.ready().nodes == set()
    assert rig.pool.lent_to(1) == 4 * size, "all that node 1 may hold is out"
    rig.append(4)
    for partition in range(5, 7):
        rig.append(partition)
    assert rig.ready().nodes == {1}, "who has memory lingers on"
    assert {len(entries) for entries in rig.drain().values()} == {4}


@pytest.mark.row("A15")
def test_a_batch_whose_buffer_was_given_to_another_is_not_sent() -> None:
    rig = Rig()
    rig.append(0)
    rig.fill()
    entries = rig.table.drain(1, SendPermit(1, 10, 5), bytes_max=1 << 20, now=rig.now)
    ((lease, batch),) = entries
    assert batch.buffer is not None
    rig.pool.deallocate(batch.buffer)
    assert rig.pool.allocate(2, rig.pool.poolable_bytes, TAG) is not None
    batch.slot = 1
    flight = rig.table.ready_partitions.begin_request(1, 1, 9, entries)
    with pytest.raises(AssertionError, match="foreign buffer"):
        rig.table.request_sent(flight, now=rig.now)
    assert lease.partition == 0


@pytest.mark.row("A16")
def test_a_newcomer_does_not_overtake_who_waits() -> None:
    """In the Java client it may, if it comes between the return of the memory and the waking of the first waiter. Here what
    comes back is the first waiter's in the same step."""
    pool = BufferPool(2 * 1024, 1024)
    assert pool.try_reserve(1024)
    assert pool.try_reserve(1024)
    waiter = wanted(pool, 2048)
    pool.release(1024)
    assert waiter.gathered == 1024
    newcomer = wanted(pool, 1024)
    assert not pool.try_reserve(1)
    pool.release(1024)
    assert waiter.poll(0.0)
    assert not newcomer.poll(0.0)
    pool.release(waiter.size)
    assert newcomer.poll(0.0)
