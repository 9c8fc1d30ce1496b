"""Faults of other clients that the daemon must not have: router, leases and shards joined, on a virtual clock."""

import pytest

from tests.fakes.joined_world import NODES, JoinedWorld


def work(world: JoinedWorld) -> None:
    """Everything that can be sent and answered now."""
    world.exchange()
    for _ in range(20):
        for seat in world.shards:
            world.shard_sends(seat)
            while world.shard_answered(seat):
                world.shard_sends(seat)
        world.exchange()


def cut_off(world: JoinedWorld, arrived: int) -> None:
    """All connections end."""
    for seat in list(world.shards):
        for node in NODES:
            world.connection_ends(seat, node, arrived)


def opened() -> JoinedWorld:
    """A world in which every partition has had records acknowledged."""
    world = JoinedWorld()
    world.exchange()
    for number in range(3):
        world.frame(number, 2)
    work(world)
    assert not any(world.pieces.values())
    return world


@pytest.mark.fault("K20")
@pytest.mark.parametrize("hours", [0.1, 2, 20])
def test_records_older_than_any_time_out_are_sent_when_brokers_answer_again(hours: float) -> None:
    world = opened()
    for number in range(3):
        world.frame(number, 20)
    world.exchange()
    for seat in world.shards:
        world.shard_sends(seat)
    cut_off(world, arrived=1)
    began = world.desk.now
    while world.desk.now < began + hours * 3600:
        # What is tried meanwhile is lost.
        world.desk.now += 60.0 * hours
        world.exchange()
        for seat in world.shards:
            world.shard_sends(seat)
        cut_off(world, arrived=0)
    assert all(world.pieces.values())
    world.drain()
    world.check()
    assert not any(world.parked.values())


@pytest.mark.fault("K14", "K16")
def test_a_broker_that_forgot_all_but_the_last_batch_is_recovered_from_without_a_restart() -> None:
    world = opened()
    for turn in range(6):
        for number in range(3):
            world.frame(number, 10)
        world.exchange()
        for seat in world.shards:
            world.shard_sends(seat)
        for number in range(3):
            world.broker_restarts(number, turn % 4)
        work(world)
        world.desk.now += 1.0
    world.drain()
    world.check()
    assert not any(world.parked.values())


@pytest.mark.fault("K15")
@pytest.mark.parametrize("arrived", [0, 1, 5])
def test_after_the_end_of_every_process_what_is_sent_again_is_under_its_first_stamps(arrived: int) -> None:
    world = opened()
    before = {number: dict(log.states) for number, log in world.logs.items()}
    for number in range(3):
        world.frame(number, 20)
    world.exchange()
    for seat in world.shards:
        world.shard_sends(seat)
    world.router_dies(arrived)
    world.drain()
    world.check()
    for number, log in world.logs.items():
        assert log.states.keys() == before[number].keys(), "no other producer id"
        assert {state.epoch for state in log.states.values()} == {0}
