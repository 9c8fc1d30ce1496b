"""Rows of group I about names and their addresses: whose turn it is, and when a name is looked up again."""

import pytest
from penstock.producer.network.addresses import Address, AddressRotation
from penstock.producer.network.connection import KafkaConnection
from penstock.producer.network.connection_state import ConnectionLimits, ConnectionState
from penstock.producer.protocol.backoff import Backoff

from tests.fakes.fake_net import FakeClient, FakeNet

LIMITS = ConnectionLimits(reconnect=Backoff(0.05, 1.0))
INITIAL = ["10.200.20.100", "10.200.20.101", "10.200.20.102"]
LATER = ["10.200.20.103", "10.200.20.104", "10.200.20.105"]


def addresses(hosts: list[str]) -> list[Address]:
    return [Address(2, (host, 9092)) for host in hosts]


def taken(turns: AddressRotation) -> str | None:
    address = turns.next_address()
    return None if address is None else str(address.sockaddr[0])


def attempt(client: FakeClient, connection: KafkaConnection[str]) -> None:
    """Begin the next connection, as soon as the backoff allows."""
    connection.connect()
    client.net.now = max(client.net.now, connection.next_deadline() or 0.0)
    connection.tick(client.net.now)


@pytest.mark.row("I9")
def test_a_single_address_is_taken_again_after_the_name_was_looked_up_again() -> None:
    turns = AddressRotation()
    turns.resolved(addresses(INITIAL[:1]))
    assert [taken(turns), taken(turns)] == [INITIAL[0], None]
    turns.resolved(addresses(INITIAL[:1]))
    assert taken(turns) == INITIAL[0]


@pytest.mark.row("I9")
def test_every_attempt_takes_the_next_of_several_addresses() -> None:
    net = FakeNet()
    client = FakeClient(net)
    net.names.known["broker"] = INITIAL
    connection = client.open("broker", LIMITS)
    for _ in range(2):
        net.last.refuse()
        attempt(client, connection)
    assert net.connects == INITIAL
    assert net.names.asked == ["broker"]
    # All had their turn: the name is looked up again, and may mean others by now.
    net.names.known["broker"] = LATER
    net.last.refuse()
    attempt(client, connection)
    assert net.connects[3:] == LATER[:1]
    assert net.names.asked == ["broker", "broker"]


@pytest.mark.row("I9")
def test_a_node_that_moved_to_another_host_begins_anew() -> None:
    net = FakeNet()
    client = FakeClient(net)
    net.names.known.update({"old": INITIAL, "new": LATER})
    connection = client.open("old", LIMITS)
    for _ in range(3):
        net.last.refuse()
        attempt(client, connection)
    connection.move_to("new", 9092)
    connection.connect()
    # No backoff, and the addresses of the new name from the first one on.
    connection.tick(net.now)
    assert net.connects[-1] == LATER[0]
    assert net.names.asked[-1] == "new"


@pytest.mark.row("I9")
def test_the_address_tried_last_is_left_out_when_it_would_be_the_next_again() -> None:
    turns = AddressRotation()
    turns.resolved(addresses(INITIAL))
    assert taken(turns) == INITIAL[0]
    turns.connected()
    assert taken(turns) is None
    turns.resolved(addresses(INITIAL))
    assert taken(turns) == INITIAL[1]
    turns.connected()
    # Now another one is first: nothing is left out.
    turns.resolved(addresses(INITIAL))
    assert taken(turns) == INITIAL[0]


@pytest.mark.row("I11")
def test_a_name_that_cannot_be_resolved_ends_the_attempt_like_any_other_failure() -> None:
    net = FakeNet()
    client = FakeClient(net)
    connection = client.open("no-such-host.invalid", LIMITS)
    assert not connection.ready
    assert connection.state is ConnectionState.DISCONNECTED
    assert client.lost == [([], "cannot resolve no-such-host.invalid: unknown name")]
    assert net.connects == []
    connection.connect()
    assert connection.next_deadline() == pytest.approx(net.now + 0.05)


@pytest.mark.row("I24")
def test_a_connection_that_ended_finds_the_addresses_that_the_name_has_by_now() -> None:
    net = FakeNet()
    client = FakeClient(net)
    net.names.known["broker"] = INITIAL
    connection = client.open("broker", LIMITS)
    net.last.accept()
    _ = net.last.greet()
    net.names.known["broker"] = LATER
    net.last.hang_up()
    attempt(client, connection)
    net.last.accept()
    _ = net.last.greet()
    assert connection.ready
    assert sum(host in INITIAL for host in net.connects) == 1
    assert sum(host in LATER for host in net.connects) == 1
    assert len(net.names.asked) == 2


@pytest.mark.row("I24")
def test_a_first_address_that_fails_costs_an_attempt_and_no_second_look_up() -> None:
    net = FakeNet()
    client = FakeClient(net)
    net.names.known["broker"] = INITIAL
    connection = client.open("broker", LIMITS)
    net.last.refuse()
    net.names.known["broker"] = LATER
    attempt(client, connection)
    net.last.accept()
    _ = net.last.greet()
    assert connection.ready
    assert net.connects == INITIAL[:2]
    assert len(net.names.asked) == 1


@pytest.mark.row("I24")
def test_after_a_connection_the_first_of_the_new_addresses_may_fail_too() -> None:
    net = FakeNet()
    client = FakeClient(net)
    net.names.known["broker"] = INITIAL
    connection = client.open("broker", LIMITS)
    net.last.accept()
    _ = net.last.greet()
    net.names.known["broker"] = LATER
    net.last.hang_up()
    attempt(client, connection)
    net.last.refuse()
    attempt(client, connection)
    net.last.accept()
    _ = net.last.greet()
    assert connection.ready
    assert net.connects == [INITIAL[0], *LATER[:2]]
    assert len(net.names.asked) == 2
