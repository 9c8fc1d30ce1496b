"""The bounded pool of batch memory."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.api.errors import BufferExhaustedError
from penstock.producer.accumulator.buffer_pool import Buffer, BufferOwner, BufferPool, MemoryWaiter

from tests.harness.counts import model_examples

TAG = BufferOwner(1, 1, 0)


def test_a_buffer_comes_back_and_is_lent_again_under_another_tag() -> None:
    pool = BufferPool(1000, 100)
    buffer = pool.allocate(1, 50, TAG)
    assert buffer is not None
    assert len(buffer.data) == 100
    assert buffer.belongs_to(TAG, 1)
    pool.deallocate(buffer)
    assert not buffer.belongs_to(TAG, 1)
    again = pool.allocate(1, 100, TAG)
    assert again is buffer
    assert not buffer.belongs_to(TAG, 1)
    assert buffer.belongs_to(TAG, 2)


def test_a_second_return_is_an_error_of_ours() -> None:
    pool = BufferPool(1000, 100)
    buffer = pool.allocate(1, 50, TAG)
    assert buffer is not None
    pool.deallocate(buffer)
    with pytest.raises(AssertionError, match="twice"):
        pool.deallocate(buffer)


@pytest.mark.fault("K17")
def test_a_node_gets_its_budget_and_then_what_the_reserve_has() -> None:
    pool = BufferPool(1000, 100)
    pool.set_budget(1, 300)
    pool.set_budget(2, 500)
    taken = [pool.allocate(1, 100, TAG) for _ in range(6)]
    assert [buffer is not None for buffer in taken] == [True] * 5 + [False]
    assert pool.starved(1)
    assert not pool.starved(2)
    assert all(pool.allocate(2, 100, TAG) for _ in range(5))
    assert pool.allocate(2, 100, TAG) is None
    assert pool.lent_bytes == 1000
    assert pool.exhausted_count == 2
    assert taken[0] is not None
    pool.deallocate(taken[0])
    assert pool.allocate(1, 100, TAG) is not None
    assert not pool.starved(1)


@pytest.mark.fault("K17")
def test_a_node_that_holds_nothing_gets_one_buffer_whatever_its_budget() -> None:
    pool = BufferPool(1000, 100)
    pool.set_budget(1, 990)
    pool.set_budget(2, 10)
    assert pool.allocate(2, 400, TAG) is not None
    assert pool.allocate(2, 100, TAG) is None


def test_more_than_the_whole_pool_is_refused_at_once() -> None:
    pool = BufferPool(1000, 100)
    with pytest.raises(ValueError, match="1001"):
        pool.allocate(1, 1001, TAG)
    with pytest.raises(ValueError, match="cannot hold"):
        BufferPool(99, 100)


def test_a_large_buffer_makes_free_ones_go_and_is_not_kept() -> None:
    pool = BufferPool(1000, 100)
    pool.set_budget(1, 1000)
    small = [pool.allocate(1, 100, TAG) for _ in range(10)]
    for buffer in small:
        assert buffer is not None
        pool.deallocate(buffer)
    assert pool.free_bytes == 1000
    large = pool.allocate(1, 750, TAG)
    assert large is not None
    assert (pool.lent_bytes, pool.free_bytes) == (750, 200)
    pool.deallocate(large)
    assert (pool.lent_bytes, pool.free_bytes) == (0, 200)


def test_sizes_above_32_bits_add_up() -> None:
    pool = BufferPool(20_000_000_000, 1 << 20)
    pool.set_budget(1, 20_000_000_000)
    assert pool.reserve_bytes() == 0
    assert pool.allocate(1, 1 << 20, TAG) is not None


class PoolMachine(RuleBasedStateMachine):
    """Lent bytes are those of the buffers out there, and the limits hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(2000, 100)
        self.budgets = {1: 500, 2: 600, 3: 0}
        for node, budget in self.budgets.items():
            self.pool.set_budget(node, budget)
        self.out: list[Buffer] = []
        self.tickets: list[MemoryWaiter] = []
        """Granted ones and those that wait, in the order in which they were asked for."""
        self.woken = 0
        self.now = 0.0

    @rule(node=st.sampled_from([1, 2, 3]), size=st.integers(1, 400))
    def take(self, node: int, size: int) -> None:
        first = self.pool.lent_to(node) == 0
        buffer = self.pool.allocate(node, size, BufferOwner(node, 1, len(self.out)))
        if buffer is None:
            assert not first
            assert self.pool.lent_to(node) + max(size, 100) > self.budgets[node]
        else:
            assert all(buffer is not other for other in self.out)
            self.out.append(buffer)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        self.pool.deallocate(self.out.pop(data.draw(st.integers(0, len(self.out) - 1))))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), more=st.integers(1, 300))
    def grow_and_shrink(self, data: st.DataObject, more: int) -> None:
        buffer = data.draw(st.sampled_from(self.out))
        if more <= self.pool.available_for(buffer.node):
            self.pool.grow(buffer, more)
        else:
            del buffer.data[max(100, len(buffer.data) - more) :]
            assert self.pool.shrunk(buffer) <= more

    def wake(self) -> None:
        self.woken += 1

    @rule(size=st.integers(1, 700), wait_s=st.integers(0, 3))
    def reserve(self, size: int, wait_s: int) -> None:
        overtakes = self.pool.queued > 0
        ticket = self.pool.reserve(size, now=self.now, max_wait_s=wait_s, wake=self.wake)
        assert not (overtakes and ticket.granted)
        self.tickets.append(ticket)

    @rule(seconds=st.integers(0, 2))
    def poll(self, seconds: int) -> None:
        self.now += seconds
        for ticket in list(self.tickets):
            try:
                assert ticket.poll(self.now) == ticket.granted
            except BufferExhaustedError:
                assert ticket.deadline <= self.now
                self.tickets.remove(ticket)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), cancels=st.booleans())
    def end(self, data: st.DataObject, cancels: bool) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        waiting, woken = [other for other in self.tickets if not other.granted], self.woken
        if cancels or not ticket.granted:
            ticket.cancel()
        else:
            self.pool.release(ticket.size)
        assert self.woken - woken == sum(other.granted for other in waiting)

    @invariant()
    def tickets_are_served_in_order_and_get_all_there_is(self) -> None:
        waiting = [ticket for ticket in self.tickets if not ticket.granted]
        assert self.pool.queued == len(waiting)
        assert self.pool.reserved_bytes == sum(ticket.gathered for ticket in self.tickets)
        if waiting:
            assert self.pool.reserve_bytes() <= 0
            assert all(ticket.gathered == 0 for ticket in waiting[1:])

    @invariant()
    def everything_adds_up(self) -> None:
        assert self.pool.lent_bytes == sum(len(buffer.data) for buffer in self.out)
        for node in self.budgets:
            assert self.pool.lent_to(node) == sum(len(buffer.data) for buffer in self.out if buffer.node == node)
        assert self.pool.lent_bytes <= self.pool.total_bytes + 3 * 400
        assert self.pool.free_bytes + self.pool.lent_bytes <= max(self.pool.total_bytes, self.pool.lent_bytes)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=model_examples(60), stateful_step_count=40, deadline=None)
