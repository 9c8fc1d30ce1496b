"""Rows of group I about the bytes of a connection: greetings, requests without answer, throttles, and ends."""

import struct
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from penstock.producer.network.connection_state import ConnectionLimits, ConnectionState
from penstock.producer.protocol.backoff import Backoff

from tests.fakes.fake_net import FakeClient, FakeNet
from tests.fakes.scripted_broker import RANGES, Asked, versions_body

LIMITS = ConnectionLimits(
    request_timeout_s=1.0,
    setup_timeout_s=5.0,
    setup_timeout_max_s=127.0,
    reconnect=Backoff(10.0, 100.0),
    idle_s=1e9,
)
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42


@pytest.fixture
def net() -> FakeNet:
    return FakeNet()


def metadata_answer(version: int, throttle_ms: int = 0) -> bytes:
    response = MetadataResponse(
        throttle_time_ms=throttle_ms, brokers=[], cluster_id="c", controller_id=1, topics=[], error_code=0,
        version=version,
    )  # fmt: skip
    return (b"\0" if version >= 9 else b"") + bytes(response.encode())


def opened(net: FakeNet, limits: ConnectionLimits = LIMITS) -> tuple[FakeClient, Any]:
    client = FakeClient(net)
    net.names.known["broker"] = ["10.0.0.1"]
    connection = client.open("broker", limits)
    net.last.accept()
    return client, connection


# --- greetings -------------------------------------------------------------------------------------------------------


@pytest.mark.row("I12")
def test_a_connection_is_ready_only_after_a_good_answer_to_the_newest_greeting(net: FakeNet) -> None:
    client, connection = opened(net)
    asked = net.last.read()
    assert (asked.api_key, asked.version) == (18, 4)
    assert not connection.can_send(net.now)
    assert client.readies == 0
    net.last.answer(asked, versions_body(4, RANGES))
    assert connection.can_send(net.now)
    assert client.readies == 1


@pytest.mark.row("I12")
@pytest.mark.parametrize(
    ("body", "version"),
    [(versions_body(0, {18: (0, 2)}, code=UNSUPPORTED_VERSION), 2), (struct.pack(">h", UNSUPPORTED_VERSION), 0)],
    ids=["told its greatest", "told nothing"],
)
def test_a_broker_that_does_not_know_the_version_is_asked_again_in_one_it_knows(
    net: FakeNet, body: bytes, version: int
) -> None:
    client, connection = opened(net)
    net.last.answer(net.last.read(), body)
    assert not connection.ready
    second = net.last.read()
    assert (second.api_key, second.version) == (18, version)
    net.last.answer(second, versions_body(version, RANGES))
    assert connection.ready
    assert client.lost == []


@pytest.mark.row("I12")
def test_a_broker_that_refuses_the_greeting_for_another_reason_is_left(net: FakeNet) -> None:
    client, connection = opened(net)
    net.last.answer(net.last.read(), versions_body(0, {}, code=INVALID_REQUEST))
    assert connection.state is ConnectionState.DISCONNECTED
    assert client.readies == 0
    assert "error 42" in connection.last_error


@pytest.mark.row("I18")
def test_a_broker_that_goes_after_the_greeting_is_tried_less_and_less_often_and_no_caller_hears_of_the_greeting(
    net: FakeNet,
) -> None:
    client, connection = opened(net)
    for count in range(5):
        assert net.last.read().api_key == 18
        net.last.hang_up()
        # That it ended is told; the greeting was no request of the owner's.
        assert client.lost[-1][0] == []
        connection.connect()
        wait_s = (connection.next_deadline() or 0.0) - net.now
        assert wait_s == pytest.approx(min(10.0 * 2**count, 100.0), rel=0.2)
        net.now += wait_s
        connection.tick(net.now)
        net.last.accept()
    assert client.told == []
    assert len(client.lost) == 5


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("I13")
@pytest.mark.parametrize("timeout_s", [1.0, 6.0])
def test_a_request_later_than_its_time_ends_the_connection(net: FakeNet, timeout_s: float) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS._replace(request_timeout_s=timeout_s))
    client.send(connection, "slow")
    net.now += timeout_s
    connection.tick(net.now)
    assert client.lost == []
    net.now += 0.001
    connection.tick(net.now)
    assert client.lost == [(["slow"], f"10.0.0.1:9092 did not answer within {timeout_s:g} s")]
    assert connection.state is ConnectionState.DISCONNECTED
    assert net.last.closed


@pytest.mark.row("I14")
@pytest.mark.parametrize("stuck_in", [ConnectionState.CONNECTING, ConnectionState.CHECKING_VERSIONS])
def test_brokers_that_do_not_let_a_connection_become_ready_are_given_up(
    net: FakeNet, stuck_in: ConnectionState
) -> None:
    client = FakeClient(net)
    net.names.known.update({"one": ["10.0.0.1"], "two": ["10.0.0.2"]})
    connections = [client.open("one", LIMITS), client.open("two", LIMITS)]
    if stuck_in is ConnectionState.CHECKING_VERSIONS:
        for sock in net.sockets:
            sock.accept()
    assert {connection.state for connection in connections} == {stuck_in}
    net.now += 5.0 * 0.8 - 0.001
    for connection in connections:
        connection.tick(net.now)
    assert client.lost == []
    net.now = 1000.0 + 5.0 * 1.2 + 0.001
    for connection in connections:
        connection.tick(net.now)
    assert [tags for tags, _ in client.lost] == [[], []]
    assert all("took too long" in reason for _, reason in client.lost)
    assert all(sock.closed for sock in net.sockets)


# --- throttles -------------------------------------------------------------------------------------------------------


def asked_metadata(connection: Any, net: FakeNet, tag: str) -> Asked:
    assert connection.send(MetadataRequest(topics=[]), tag, now=net.now) is not None
    return net.last.read()


@pytest.mark.row("I15")
def test_a_throttled_node_gets_nothing_until_the_throttle_is_over(net: FakeNet) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS)
    net.last.answer(asked_metadata(connection, net, "a"), metadata_answer(13, 100))
    start = net.now
    # Whoever waits for the connection is woken when the throttle ends, and no later (KAFKA-17455).
    assert connection.next_deadline() == pytest.approx(start + 0.100)
    for now, left in ((start, 0.100), (start + 0.050, 0.050), (start + 0.100, 0.0)):
        net.now = now
        assert connection.throttled_until - now == pytest.approx(left)
        assert connection.can_send(now) == (left == 0.0)


@pytest.mark.row("I15")
def test_what_is_in_flight_while_a_node_is_throttled_gets_that_much_more_time(net: FakeNet) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS)
    first, second = asked_metadata(connection, net, "first"), asked_metadata(connection, net, "second")
    net.last.answer(first, metadata_answer(13, 1000))
    net.now += 1.0
    for _ in range(2):
        connection.tick(net.now)
        assert client.lost == []
        # The second half of its time: as long as it had without the throttle.
        net.now += 1.0
    net.now += 0.001
    connection.tick(net.now)
    assert client.lost[0][0] == ["second"]
    assert second.api_key == 3


@pytest.mark.row("I15")
@pytest.mark.parametrize(("greatest", "throttled"), [(5, False), (13, True)])
def test_an_older_broker_has_waited_itself(net: FakeNet, greatest: int, throttled: bool) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS, {**RANGES, 3: (0, greatest), 0: (3, greatest)})
    asked = asked_metadata(connection, net, "a")
    assert asked.version == greatest
    net.last.answer(asked, metadata_answer(greatest, 100))
    assert client.answers[0][0] == "a"
    assert connection.can_send(net.now) is not throttled
    # And for Produce, whose answers the owner reads.
    net.now += 1.0
    connection.throttle(0, greatest, 100, net.now)
    assert connection.can_send(net.now) is not throttled


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.row("I19")
def test_everything_in_flight_ends_with_the_connection_in_the_order_sent(net: FakeNet) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS)
    client.send(connection, "first")
    client.send(connection, "second")
    net.last.hang_up()
    assert client.told == ["first", "second"]
    ((tags, reason),) = client.lost
    assert tags == ["first", "second"]
    assert reason.startswith("10.0.0.1:9092: the broker closed the connection")
    assert connection.version_of(3, 0, 13) is None


@pytest.mark.row("I23")
def test_who_asked_for_metadata_over_a_connection_hears_that_it_ended(net: FakeNet) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS)
    _ = asked_metadata(connection, net, "the owner's question")
    net.last.hang_up()
    assert client.lost[0][0] == ["the owner's question"]


@pytest.mark.row("I23")
def test_a_request_without_a_common_version_is_told_to_its_caller_and_leaves_the_connection_alone(
    net: FakeNet,
) -> None:
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS, {**RANGES, 3: (14, 15)})
    greeting_and_more = len(net.last.sent)
    assert connection.send(MetadataRequest(topics=[]), "never", now=net.now) is None
    assert len(net.last.sent) == greeting_and_more
    assert connection.in_flight == 0
    assert connection.can_send(net.now)
    assert client.lost == []
