"""Memory of records by node: a budget for each, a common reserve, and tickets that wait only behind those that want the same."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.api.errors import BufferExhaustedError
from penstock.producer.accumulator.budgets import budgets_by_node, node_budget
from penstock.producer.accumulator.buffer_pool import ANY_NODE, BufferPool, MemoryWaiter

from tests.harness.counts import model_examples

TOTAL = 1200
LARGEST = 300
STOPPED, HEALTHY, OTHER = 1, 2, 3


def shared_pool() -> BufferPool:
    """Three nodes have 200 bytes each, the reserve is 600."""
    pool = BufferPool(TOTAL, 100)
    pool.share_out(budgets_by_node(TOTAL, LARGEST, [STOPPED, HEALTHY, OTHER]))
    return pool


def ticket(pool: BufferPool, size: int, node: int, max_wait_s: float = 60.0) -> MemoryWaiter:
    return pool.reserve(size, node, now=0.0, max_wait_s=max_wait_s)


def test_half_is_shared_out_evenly_and_half_is_common() -> None:
    assert budgets_by_node(1200, 300, [1, 2, 3]) == {1: 200, 2: 200, 3: 200}


@pytest.mark.parametrize("nodes", [[], [7]])
def test_one_node_or_none_has_everything_in_common(nodes: list[int]) -> None:
    assert budgets_by_node(1200, 300, nodes) == {}


def test_budgets_leave_room_for_the_largest_record_in_the_reserve() -> None:
    assert budgets_by_node(1200, 1000, [1, 2]) == {1: 100, 2: 100}
    assert budgets_by_node(1200, 1200, [1, 2]) == {}


def test_a_node_that_gives_nothing_back_takes_its_budget_and_the_reserve_and_no_more() -> None:
    pool = shared_pool()
    held = 0
    while pool.try_reserve(50, STOPPED):
        held += 50
    assert held == pool.reserved_for(STOPPED) == 800
    waiting = ticket(pool, 50, STOPPED)
    assert not waiting.granted
    assert pool.waiting_nodes == {STOPPED}
    assert pool.try_reserve(200, HEALTHY)
    assert ticket(pool, 200, OTHER).granted
    assert not pool.try_reserve(1, HEALTHY)
    assert pool.reserved_bytes == TOTAL
    pool.release(50, HEALTHY)
    assert not waiting.granted, "it came back to another node's budget"
    assert ticket(pool, 50, HEALTHY).granted


def test_within_a_node_nobody_is_overtaken_and_a_large_one_gathers() -> None:
    pool = shared_pool()
    assert pool.try_reserve(800, STOPPED)
    large, small = ticket(pool, 300, STOPPED), ticket(pool, 10, STOPPED)
    pool.release(100, STOPPED)
    assert (large.gathered, small.gathered) == (100, 0)
    assert not pool.try_reserve(1, STOPPED)
    pool.release(250, STOPPED)
    assert large.granted
    assert small.granted


def test_the_reserve_goes_to_the_first_who_waits_whichever_its_node() -> None:
    pool = shared_pool()
    assert pool.try_reserve(200, HEALTHY)
    assert pool.try_reserve(800, STOPPED)
    first, second = ticket(pool, 150, HEALTHY), ticket(pool, 50, STOPPED)
    third = ticket(pool, 50, ANY_NODE)
    pool.release(100, STOPPED)
    assert (first.gathered, second.gathered, third.gathered) == (100, 0, 0)
    pool.release(80, STOPPED)
    assert first.granted
    assert (second.gathered, third.gathered) == (30, 0)
    first.cancel()
    assert second.granted
    assert third.granted


def test_what_a_node_held_when_budgets_moved_is_given_back_to_it_and_the_total_holds() -> None:
    pool = shared_pool()
    assert pool.try_reserve(800, STOPPED)
    pool.share_out(budgets_by_node(TOTAL, LARGEST, [HEALTHY, OTHER]))
    assert pool.reserve_bytes() == -200
    waiting = [ticket(pool, 300, node) for node in (HEALTHY, OTHER)]
    assert [one.gathered for one in waiting] == [300, 100]
    assert pool.reserved_bytes == TOTAL
    pool.release(800, STOPPED)
    assert all(one.granted for one in waiting)
    assert pool.reserve_bytes() == 600


class RecordMachine(RuleBasedStateMachine):
    """Whatever nodes do, the bytes add up, nobody has what is another's, and every ticket gets its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = shared_pool()
        self.tickets: list[MemoryWaiter] = []
        self.now = 0.0
        self.overdrawn = 0

    def _waiting(self) -> list[MemoryWaiter]:
        return [one for one in self.tickets if not one.granted]

    @rule(nodes=st.sets(st.integers(1, 4)))
    def leaders_move(self, nodes: set[int]) -> None:
        self.pool.share_out(budgets_by_node(TOTAL, LARGEST, nodes))
        self.overdrawn = max(0, -self.pool.reserve_bytes())

    @rule(node=st.integers(ANY_NODE, 4), size=st.integers(1, LARGEST), wait_s=st.integers(0, 3))
    def reserve(self, node: int, size: int, wait_s: int) -> None:
        waiting, spare, reserve = self._waiting(), self.pool.reservable_for(node), self.pool.reserve_bytes()
        asked = self.pool.reserve(size, node, now=self.now, max_wait_s=wait_s)
        self.tickets.append(asked)
        assert asked.granted == (size <= spare)
        assert asked.gathered == min(size, spare)
        if asked.gathered and waiting:
            assert reserve <= 0, "the reserve is for those who came before"
            assert all(other.node != node for other in waiting)

    @rule(node=st.integers(ANY_NODE, 4), size=st.integers(1, LARGEST))
    def try_reserve(self, node: int, size: int) -> None:
        fits = size <= self.pool.reservable_for(node)
        assert self.pool.try_reserve(size, node) == fits
        if fits:
            self.pool.release(size, node)

    @rule(seconds=st.integers(0, 2))
    def poll(self, seconds: int) -> None:
        self.now += seconds
        for one in list(self.tickets):
            try:
                assert one.poll(self.now) == one.granted
            except BufferExhaustedError:
                assert one.deadline <= self.now
                self.tickets.remove(one)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), cancels=st.booleans())
    def end(self, data: st.DataObject, cancels: bool) -> None:
        one = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(one)
        if cancels or not one.granted:
            one.cancel()
        else:
            self.pool.release(one.size, one.node)

    @invariant()
    def everything_adds_up_and_stays_inside_the_total(self) -> None:
        held = {node: sum(one.gathered for one in self.tickets if one.node == node) for node in range(ANY_NODE, 5)}
        assert held == {node: self.pool.reserved_for(node) for node in held}
        assert self.pool.reserved_bytes == sum(held.values()) <= TOTAL

    @invariant()
    def nobody_overdraws(self) -> None:
        overdrawn = max(0, -self.pool.reserve_bytes())
        assert overdrawn <= self.overdrawn, "what budgets that moved left is paid back only"
        self.overdrawn = overdrawn

    @invariant()
    def who_waits_has_taken_what_there_is_in_order(self) -> None:
        waiting = self._waiting()
        assert self.pool.queued == len(waiting)
        assert self.pool.waiting_nodes == {one.node for one in waiting}
        for one in waiting:
            assert self.pool.reservable_for(one.node) == 0

    def teardown(self) -> None:
        """Whoever has memory gives it back: then all that wait are served, each once."""
        while self.tickets:
            granted = [one for one in self.tickets if one.granted]
            assert granted, "tickets wait for memory that nobody holds"
            self.tickets = self._waiting()
            for one in granted:
                self.pool.release(one.size, one.node)
        assert (self.pool.queued, self.pool.reserved_bytes) == (0, 0)


TestRecords = RecordMachine.TestCase
TestRecords.settings = settings(max_examples=model_examples(80), stateful_step_count=40, deadline=None)


def test_batches_of_several_nodes_leave_half_to_the_common_reserve() -> None:
    assert node_budget(1_000, 1) == 1_000
    assert [node_budget(1_000, nodes) for nodes in (2, 5)] == [250, 100]
