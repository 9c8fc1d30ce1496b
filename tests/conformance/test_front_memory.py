"""The direct producer's memory by node: a broker that takes nothing holds up its own partitions only (BUF-14)."""

import pytest
from penstock.api.errors import BufferExhaustedError, ClosedError
from penstock.producer.delivery.outcomes import Delivered

from tests.fakes.front_world import TOPIC, FrontWorld

STOPPED, HEALTHY = 0, 1
VALUE = bytes(300)
MEMORY = 16 << 10
SHARE = MEMORY // 4
"""Of each of two nodes: half of the memory is common."""


def world_of(partitions: int = 2, **settings: object) -> FrontWorld:
    chosen: dict[str, object] = {
        "buffer_memory": MEMORY,
        "batch_size": 1024,
        "max_request_size": 2048,
        "linger_ms": 1000,
        "max_block_ms": 0,
    }
    return FrontWorld(partitions, nodes=2, **{**chosen, **settings})


def fill(world: FrontWorld, partition: int) -> None:
    """Send until there is no memory for more."""
    while not world.send(TOPIC, VALUE, partition=partition).done():
        pass


def test_a_node_that_takes_nothing_fills_its_share_and_the_reserve_and_the_other_goes_on() -> None:
    world = world_of()
    pool = world.front.pool
    fill(world, STOPPED)
    assert MEMORY - SHARE - 400 < pool.reserved_for(STOPPED) <= MEMORY - SHARE
    refused = world.send(TOPIC, VALUE, partition=STOPPED)
    assert isinstance(refused.exception(0), BufferExhaustedError)
    for _ in range(50):
        future = world.send(TOPIC, VALUE, partition=HEALTHY)
        assert not future.done()
        for one in world.take():
            if one.index == HEALTHY:
                world.settle(Delivered(one.index, one.first, one.count, one.first, -1))
    assert pool.reserved_for(HEALTHY) == 0
    assert pool.reserved_bytes <= MEMORY


def test_without_a_second_node_one_has_all_the_memory() -> None:
    world = FrontWorld(2, buffer_memory=MEMORY, batch_size=1024, max_request_size=2048, linger_ms=1000, max_block_ms=0)
    fill(world, 0)
    assert world.front.pool.reserved_bytes > MEMORY - 400


def test_want_of_memory_at_one_node_makes_only_its_chunks_due() -> None:
    world = world_of(4, max_block_ms=10_000)
    front = world.front
    _ = world.send(TOPIC, VALUE, partition=HEALTHY)
    due: list[int] = []

    def look() -> None:
        assert front.nodes_under_pressure == {STOPPED}
        assert not front.flushing
        assert front.next_deadline(world.now) == world.now
        due.extend(one.index for one in front.drain(world.now, all_chunks=False))
        assert front.next_deadline(world.now) == 1001.0
        world.end()

    _ = world.send(TOPIC, VALUE, partition=2)
    world.at(0.5, look)
    with pytest.raises(ClosedError):
        fill(world, STOPPED)
    assert set(due) == {STOPPED, 2}, "partitions 0 and 2 have the same leader"


def test_keyless_records_leave_a_node_without_memory() -> None:
    world = world_of()
    _ = world.send(TOPIC, VALUE)
    sticky = world.front.topics.by_name[TOPIC].sticky
    fill(world, sticky)
    futures = [world.send(TOPIC, VALUE) for _ in range(5)]
    assert not any(future.done() for future in futures)
    world.deliver()
    assert [future.result(0).partition for future in futures] == [1 - sticky] * 5


def test_keyless_records_that_wait_go_where_memory_comes_back() -> None:
    world = world_of(max_block_ms=10_000)
    pool = world.front.pool
    _ = world.send(TOPIC, VALUE)
    world.deliver()
    for node in (STOPPED, HEALTHY):
        assert pool.try_reserve(pool.reservable_for(node), node)
    sticky = world.front.topics.by_name[TOPIC].sticky
    world.at(0.25, lambda: pool.release(1000, 1 - sticky))
    future = world.send(TOPIC, VALUE)
    assert 1000.25 <= world.now < 1000.5
    assert pool.queued == 0
    world.deliver()
    assert future.result(0).partition == 1 - sticky


def test_a_chunk_gives_back_to_the_node_it_was_taken_for_wherever_the_leader_is() -> None:
    world = world_of()
    pool = world.front.pool
    _ = world.send(TOPIC, VALUE, partition=HEALTHY)
    held = pool.reserved_for(HEALTHY)
    assert held > 0
    world.nodes = 1
    world.tell(2)
    assert pool.reserved_for(HEALTHY) == held
    assert not pool.has_budget(HEALTHY)
    assert not pool.has_budget(STOPPED), "a single node has everything in common"
    world.nodes = 2
    world.tell(2)
    assert pool.has_budget(HEALTHY)
    world.deliver()
    assert pool.reserved_bytes == 0
