"""Rows of group I about one connection and time: what is in flight, back-offs and set-up times, on a clock the test moves."""

import math

import pytest
from kafka.protocol.metadata import MetadataRequest
from penstock.producer.network.connection_state import (
    CORRELATION_IDS,
    ConnectionLimits,
    ConnectionState,
    ConnectionStateMachine,
    Due,
)
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.protocol.framing import StreamError

from tests.fakes.fake_net import FakeClient, FakeNet

LIMITS = ConnectionLimits(
    request_timeout_s=1.0,
    setup_timeout_s=10.0,
    setup_timeout_max_s=127.0,
    reconnect=Backoff(10.0, 60.0),
    idle_s=math.inf,
    in_flight_max=5,
)
CHANCES = [0.0, 0.5, 0.999]
MIDDLE = 0.5
INT_MAX = 2**31 - 1


def begun(core: ConnectionStateMachine[str], now: float, chance: float = MIDDLE) -> float:
    """Begin a connection. Returns how long setting it up may take."""
    core.request_connect()
    assert core.due(now, chance) is Due.CONNECT
    core.connecting(now)
    return (core.next_deadline() or 0.0) - now


def ready(now: float = 0.0, limits: ConnectionLimits = LIMITS) -> ConnectionStateMachine[str]:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(limits)
    make_ready(core, now)
    return core


def make_ready(core: ConnectionStateMachine[str], now: float) -> None:
    _ = begun(core, now)
    core.established()
    core.versions_received({0: (3, 13)}, now)


def send(core: ConnectionStateMachine[str], tag: str, now: float, timeout_s: float | None = None) -> int:
    correlation_id = core.next_correlation_id()
    core.sent(correlation_id, tag, 100, now, timeout_s=timeout_s)
    return correlation_id


def wait_after(core: ConnectionStateMachine[str], now: float) -> float:
    """How long a connection that has ended must not be made again."""
    core.request_connect()
    return (core.next_deadline() or 0.0) - now


@pytest.mark.row("I1")
def test_a_node_is_late_with_its_first_request_that_took_longer_than_its_own_time() -> None:
    first, second = ready(), ready()
    _ = send(first, "50", 0.0, 0.050)
    _ = send(second, "200", 0.0, 0.200)
    _ = send(second, "100", 0.0, 0.100)

    def late(now: float) -> list[str]:
        nodes = {"A": first, "B": second}
        return [name for name, core in nodes.items() if core.due(now, MIDDLE) is Due.REQUEST_TIMED_OUT]

    assert late(0.050) == []
    assert late(0.075) == ["A"]
    assert late(0.125) == ["A", "B"]


@pytest.mark.row("I2")
def test_answers_complete_the_oldest_request_and_the_end_completes_all_in_the_order_sent() -> None:
    # Nothing completes the newest: a request counts as in flight only once the transport has it.
    core = ready()
    ids = [send(core, tag, 0.0) for tag in ("a", "b", "c")]
    core.expect(ids[0], 0)
    assert core.answered(0.1) == "a"
    with pytest.raises(StreamError, match="the oldest request"):
        core.expect(ids[2], 0)
    assert core.ended(0.2, MIDDLE, "gone") == ["b", "c"]
    assert core.in_flight == 0
    make_ready(core, 100.0)
    with pytest.raises(StreamError, match="without a request"):
        core.expect(ids[1], 0)


@pytest.mark.row("I3")
@pytest.mark.parametrize("chance", CHANCES)
def test_what_a_connection_waits_for_follows_from_its_state(chance: float) -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    assert core.readiness(0.0).may_connect
    assert wait_after(core, 0.0) == 0.0
    assert begun(core, 0.0, chance) == pytest.approx(10.0, rel=0.2)
    assert core.readiness(0.0).connecting
    core.established()
    core.versions_received({}, 0.0)
    assert core.next_deadline() == math.inf
    assert core.can_send(0.0)
    _ = core.ended(5.0, chance, "gone")
    assert core.next_deadline() is None
    wait_s = wait_after(core, 5.0)
    assert wait_s == pytest.approx(10.0, rel=0.2)
    assert not core.readiness(5.0 + wait_s - 0.001).may_connect
    assert core.readiness(5.0 + wait_s).may_connect


@pytest.mark.row("I4")
def test_nodes_stand_for_themselves() -> None:
    one, two = ready(), ready()
    _ = one.ended(0.0, MIDDLE, "gone")
    assert one.state is ConnectionState.DISCONNECTED
    assert two.can_send(0.0)
    two.throttle(500, 0.0)
    assert one.throttled_until == 0.0


@pytest.mark.row("I4")
def test_why_a_connection_failed_is_kept_until_the_next_one_is_ready() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    _ = begun(core, 0.0)
    _ = core.ended(0.0, MIDDLE, "not admitted")
    _ = begun(core, 100.0)
    core.established()
    assert core.last_error == "not admitted"
    core.versions_received({}, 100.0)
    assert core.last_error == ""


@pytest.mark.row("I4")
def test_a_throttle_runs_out_with_the_clock() -> None:
    core = ready(limits=LIMITS._replace(idle_s=1000.0))
    core.throttle(100, 0.0)
    left: list[float] = []
    for now in (0.0, 0.050, 0.100):
        _ = core.due(now, MIDDLE)
        left.append(max(0.0, core.throttled_until - now))
    assert left == pytest.approx([0.100, 0.050, 0.0])
    assert core.can_send(0.100)


@pytest.mark.row("I5")
@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("reaches_checking", [False, True])
def test_the_wait_before_the_next_connection_doubles_with_every_end(chance: float, reaches_checking: bool) -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    now = 0.0
    for count in range(10):
        _ = begun(core, now)
        if reaches_checking:
            core.established()
        _ = core.ended(now, chance, "gone")
        wait_s = wait_after(core, now)
        assert wait_s == pytest.approx(10.0 * 2 ** min(count, math.log2(6)), rel=0.2)
        now += wait_s
    # Only READY ends it; the end of a healthy connection costs one first wait again.
    make_ready(core, now)
    _ = core.ended(now, chance, "gone")
    assert wait_after(core, now) == pytest.approx(10.0, rel=0.2)


@pytest.mark.row("I6")
@pytest.mark.parametrize("chance", CHANCES)
def test_the_wait_never_exceeds_its_greatest_value(chance: float) -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    now = 0.0
    for _ in range(100):
        _ = begun(core, now)
        _ = core.ended(now, chance, "gone")
        wait_s = wait_after(core, now)
        assert wait_s <= 60.0
        now += wait_s


@pytest.mark.row("I7")
def test_the_time_to_set_up_doubles_with_failures_to_connect_and_with_nothing_else() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    now = 0.0
    times: list[float] = []
    for _ in range(6):
        times.append(begun(core, now))
        _ = core.ended(now, MIDDLE, "refused")
        now += 60.0
    assert times == pytest.approx([10.0, 20.0, 40.0, 80.0, 127.0, 127.0])
    make_ready(core, now)
    _ = core.ended(now, MIDDLE, "gone")
    assert begun(core, now + 60.0) == pytest.approx(10.0)
    # An end while versions are checked is no failure to connect.
    core.established()
    _ = core.ended(now + 60.0, MIDDLE, "gone")
    assert begun(core, now + 180.0) == pytest.approx(10.0)


@pytest.mark.row("I8")
def test_connections_that_take_too_long_are_given_up_each_at_its_own_time() -> None:
    cores = {number: ConnectionStateMachine[str](LIMITS) for number in (1, 2, 3)}
    _ = begun(cores[1], 0.0), begun(cores[2], 0.0)
    _ = begun(cores[3], 5.0)

    def given_up(now: float) -> list[int]:
        found = [number for number, core in cores.items() if core.due(now, MIDDLE) is Due.SETUP_TIMED_OUT]
        for number in found:
            _ = cores[number].ended(now, MIDDLE, "took too long")
        return found

    assert given_up(5.0) == []
    assert given_up(12.0) == [1, 2]
    assert given_up(19.0) == [3]


@pytest.mark.row("I10")
def test_sending_to_a_node_that_is_not_ready_is_a_bug_and_sends_nothing() -> None:
    net = FakeNet()
    client = FakeClient(net)
    net.names.known["one"] = ["10.0.0.1"]
    connection = client.open("one", LIMITS)
    assert not connection.can_send(net.now)
    with pytest.raises(AssertionError):
        client.send(connection, "too early")
    with pytest.raises(AssertionError):
        _ = connection.send(MetadataRequest(topics=[]), "too early")
    assert connection.in_flight == 0
    assert not net.last.sent


@pytest.mark.row("I17")
@pytest.mark.parametrize("chance", CHANCES)
def test_the_wait_for_a_connection_is_nothing_at_first_and_doubles_when_it_ends_again(chance: float) -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS._replace(reconnect=Backoff(10.0, 100.0)))
    assert wait_after(core, 0.0) == 0.0
    _ = begun(core, 0.0)
    core.established()
    core.versions_received({}, 0.0)
    assert core.next_deadline() == math.inf
    _ = core.ended(0.0, chance, "gone")
    first = wait_after(core, 0.0)
    assert first == pytest.approx(10.0, rel=0.3)
    _ = begun(core, first)
    _ = core.ended(first, chance, "refused")
    assert wait_after(core, first) == pytest.approx(20.0, rel=0.3)


@pytest.mark.row("I20")
def test_a_second_disconnect_changes_nothing_and_the_connection_can_be_made_again() -> None:
    net = FakeNet()
    client = FakeClient(net)
    connection = client.ready("10.0.0.1", LIMITS)
    client.send(connection, "open")
    connection.disconnect("we say so")
    connection.connect()
    retry_at = connection.next_deadline()
    assert client.lost == [(["open"], "we say so")]
    net.now += 1.0
    connection.disconnect("again")
    assert connection.next_deadline() == retry_at == pytest.approx(1010.0)
    assert len(client.lost) == 1
    net.now = 1010.0
    connection.tick(net.now)
    net.last.accept()
    _ = net.last.greet()
    assert connection.ready


@pytest.mark.row("I20")
@pytest.mark.parametrize("connecting", [True, False])
def test_closing_never_loses_the_outcome_of_a_request(connecting: bool) -> None:
    net = FakeNet()
    client = FakeClient(net)
    if connecting:
        net.names.known["one"] = ["10.0.0.1"]
        connection = client.open("one", LIMITS)
    else:
        connection = client.ready("10.0.0.1", LIMITS)
        client.send(connection, "a")
        client.send(connection, "b")
    assert connection.close() == ([] if connecting else ["a", "b"])
    assert net.last.closed
    assert connection.state is ConnectionState.CLOSED


@pytest.mark.row("I21")
def test_correlation_ids_are_unique_and_stay_below_those_kept_for_authentication() -> None:
    core = ready()
    ids = [core.next_correlation_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert max(ids) < INT_MAX - 7
    core._correlation_id = CORRELATION_IDS - 2
    assert [core.next_correlation_id() for _ in range(3)] == [INT_MAX - 8, 0, 1]
