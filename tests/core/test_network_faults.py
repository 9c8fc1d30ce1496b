"""Faults of other clients' networks that ours must not have."""

import logging

import pytest
from penstock.producer.network.connection_state import ConnectionState

from tests.fakes.link_world import link_world


@pytest.mark.fault("K3")
def test_a_leader_that_is_not_among_the_brokers_neither_raises_nor_spins() -> None:
    # kafka-python raises inside its loop before it polls, 57,000 times a second, and never asks for metadata again.
    with link_world(nodes=2) as world:
        world.bench.grant(0, node=1)
        world.bench.grant(1, node=2)
        world.warm([1], node=2)
        world.place(2)
        for part in (0, 1):
            world.bench.put(part, 1)
        world.send()
        deadline = world.links.next_deadline(world.net.now)
        assert deadline is not None
        assert deadline > world.net.now
        # The others are served.
        _ = world.answer([1], node=2, offset=2)
        # And the partition is, as soon as its leader is known.
        world.place(1, 2)
        world.send()
        world.connect(1)
        _ = world.answer([0], node=1)
        assert {item.partition for item in world.bench.done} == {0, 1}


@pytest.mark.fault("K9")
def test_one_late_answer_ends_the_connection_and_everything_on_it_is_sent_again_under_the_same_stamps() -> None:
    # It fails the records of all partitions on the connection in kafka-python.
    with link_world(request_timeout_ms=1000) as world:
        for part in (0, 1):
            world.bench.grant(part)
        world.warm([0, 1])
        for part in (0, 1):
            world.bench.put(part, 1)
            world.send()
        first = [world.socket().read() for _ in range(2)]
        stamps = {part: lease.unresolved[0].first for part, lease in world.bench.table.partitions.items()}
        world.send(world.net.now + 1.001)
        assert world.link().connection.state is ConnectionState.DISCONNECTED
        assert [lease.unresolved[0].first for lease in world.bench.table.partitions.values()] == list(stamps.values())
        world.send(world.net.now + 10.0)
        world.connect()
        again = world.socket().read()
        # The records' bytes, behind topic names and sizes, are those of the first time.
        for asked in first:
            batch = asked.body[asked.body.index(b"\x02t\x02") + 8 : -3]
            assert len(batch) > 60
            assert batch in again.body


@pytest.mark.fault("K17")
def test_a_broker_that_cannot_be_reached_does_not_keep_the_others_waiting() -> None:
    # In librdkafka one slow broker fills the queue that all share.
    with link_world(nodes=2) as world:
        for part in (0, 1):
            world.bench.grant(part, node=part + 1)
        for part in (0, 1):
            world.bench.put(part, 5)
        world.send()
        world.socket(2).accept()
        _ = world.socket(2).greet({0: (3, 12), 3: (0, 12), 18: (0, 4)})
        world.send()
        _ = world.answer([1], node=2)
        assert world.link(1).connection.state is ConnectionState.CONNECTING
        assert [item.partition for item in world.bench.done] == [1]


@pytest.mark.parametrize("name", ["kafka", "kafka.protocol", "kafka.net"])
def test_records_never_reach_the_log_of_the_protocol_library(name: str) -> None:
    # At DEBUG it formats whole requests, records included.
    assert logging.getLogger(name).getEffectiveLevel() >= logging.INFO


def test_a_leader_that_stays_away_is_told_once_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with link_world() as world, caplog.at_level(logging.WARNING):
        world.bench.grant(0)
        world.warm([0])
        world.bench.put(0, 1)
        world.send()
        world.socket().hang_up()
        assert caplog.text.count("node_disconnected") == 1

        def refuse_often() -> None:
            for _ in range(5):
                world.send(world.net.now + 10.0)
                world.socket().refuse()

        refuse_often()
        assert caplog.text.count("node_disconnected") == 2
        world.send(world.net.now + 10.0)
        world.connect()
        _ = world.answer([0], offset=2)
        world.socket().hang_up()
        world.bench.put(0, 1)
        refuse_often()
        assert caplog.text.count("node_disconnected") == 4
