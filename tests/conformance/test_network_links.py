"""Rows about the connections that carry Produce: the order of journal and bytes, and for how long a node is waited for."""

import struct

import pytest
from penstock.wire.messages import NewLeaderHint

from tests.fakes.link_world import link_world
from tests.fakes.scripted_broker import RANGES, versions_body


@pytest.mark.row("I26")
@pytest.mark.parametrize("pieces", [None, 10], ids=["one write", "split writes"])
def test_every_cut_of_a_request_is_in_the_journal_before_its_first_byte_is_written(pieces: int | None) -> None:
    with link_world() as world:
        parts = (0, 1, 2)
        for part in parts:
            world.bench.grant(part)
        world.warm(parts)
        world.net.events.clear()
        for part in parts:
            world.bench.put(part, 2)
        if pieces is not None:
            world.socket().room = pieces
        world.send()
        while world.link().connection.pending_bytes:
            assert pieces is not None
            world.socket().drain(pieces)
        cuts = [event for event in world.net.events if event != "bytes"]
        assert sorted(cuts) == ["cut of 0", "cut of 1", "cut of 2"]
        assert world.net.events[:3] == cuts
        writes = world.net.events[3:]
        assert len(writes) == 1 if pieces is None else len(writes) > 10
        assert world.answer(parts).api_key == 0


@pytest.mark.row("F9")
def test_a_node_is_waited_for_from_when_something_could_not_be_sent_until_it_can() -> None:
    with link_world() as world:
        world.bench.grant(0)
        world.warm([0])
        times = world.link().latency_stats
        start = world.net.now
        world.bench.put(0, 1)
        world.send(start + 1.0)
        assert (times.ready_at, times.drained_at) == (start + 1.0, start + 1.0)
        world.link().connection.throttle(0, 12, 100, world.net.now)
        # Nothing to send: nothing moves.
        world.send(start + 1.010)
        assert (times.ready_at, times.drained_at) == (start + 1.0, start + 1.0)
        # Something to send, and the node takes nothing.
        world.bench.put(0, 1)
        world.send(start + 1.020)
        assert (times.ready_at, times.drained_at) == (start + 1.020, start + 1.0)
        (load,) = world.links.loads(world.net.now)
        assert load.send_blocked_ms == 20
        # It takes again.
        world.send(start + 1.120)
        assert (times.ready_at, times.drained_at) == (start + 1.120, start + 1.120)
        assert world.link().connection.in_flight == 2
        (load,) = world.links.loads(world.net.now)
        assert load.send_blocked_ms == 0


@pytest.mark.row("F9")
def test_a_node_that_nobody_can_reach_is_waited_for_and_forgotten_with_the_last_of_what_waits() -> None:
    with link_world(nodes=2) as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        start = world.net.now
        world.send()
        world.socket().refuse()
        for seconds in (1.0, 2.0, 3.0):
            world.send(start + seconds)
        waits = {load.node: load.send_blocked_ms for load in world.links.loads(world.net.now)}
        assert waits == {1: 3000, 2: 0}
        world.bench.move(2, 5)
        waits = {load.node: load.send_blocked_ms for load in world.links.loads(world.net.now)}
        assert waits == {1: 0, 2: 0}


@pytest.mark.row("I15")
@pytest.mark.parametrize(("greatest", "throttled"), [(5, False), (6, True)])
def test_a_throttle_in_a_produce_answer_is_kept_from_the_version_on_that_asks_for_it(
    greatest: int, throttled: bool
) -> None:
    with link_world() as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        world.send()
        world.connect(ranges={0: (3, greatest)})
        assert world.answer([0], throttle_ms=100).version == greatest
        assert world.link().connection.can_send(world.net.now) is not throttled


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_produce_asks_for_the_acknowledgements_of_the_rules(acks: int) -> None:
    with link_world(acks=acks, request_timeout_ms=12_345) as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        world.send()
        world.connect()
        asked = world.socket().read()
        # Header with an empty set of tags, no transactional id, then acks and the time-out.
        assert struct.pack(">hi", acks, 12_345) in asked.body[:40]


def test_without_acknowledgements_what_is_written_is_done_and_an_unwritten_request_is_not() -> None:
    with link_world(acks=0) as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        world.send()
        world.socket().accept()
        greeting = world.socket().read()
        world.socket().room = 10
        world.socket().answer(greeting, versions_body(greeting.version, {**RANGES, 0: (3, 12)}))
        world.send()
        assert world.link().connection.in_flight == 1
        assert world.bench.done == []
        world.socket().drain()
        world.send()
        assert world.link().connection.in_flight == 0
        assert [item.partition for item in world.bench.done] == [0]


def test_a_batch_keeps_its_memory_until_the_transport_has_let_go_of_it() -> None:
    with link_world() as world:
        world.bench.grant(0)
        world.warm([0])
        before = world.bench.pool.lent_bytes
        world.bench.put(0, 3)
        world.socket().room = 10
        world.send()
        assert world.link().connection.pending_bytes > 0
        world.bench.revoke(0)
        assert world.bench.pool.lent_bytes > before
        world.link().connection.disconnect("the test says so")
        assert world.bench.pool.lent_bytes == before


@pytest.mark.row("I13")
def test_a_broker_that_does_not_answer_in_time_makes_who_serves_it_ask_for_new_leaders() -> None:
    with link_world(request_timeout_ms=1000) as world:
        world.bench.grant(0)
        world.warm([0])
        world.bench.put(0, 1)
        world.send()
        world.send(world.net.now + 1.0)
        assert world.bench.said == []
        world.send(world.net.now + 0.001)
        assert world.bench.said == [NewLeaderHint(0, world.bench.generation[0], -1, -1)]
        assert "did not answer within 1 s" in world.bench.table.partitions[0].last_error


@pytest.mark.row("I4")
def test_a_node_that_was_removed_comes_back_without_its_past() -> None:
    with link_world(nodes=2) as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        for seconds in (0.0, 5.0, 10.0):
            world.send(world.net.now + seconds)
            world.socket().refuse()
        world.send()
        assert not world.link().connection.readiness(world.net.now).may_connect
        assert world.net.connects == ["10.0.0.1"] * 3
        world.place(2)
        world.place(1, 2)
        assert world.link().connection.last_error == ""
        world.send()
        assert world.net.connects == ["10.0.0.1"] * 4
