"""Row I16: which node is asked what any node can answer."""

from collections.abc import Mapping

import pytest
from penstock.producer.network.connection_state import ConnectionLimits, ConnectionStateMachine, Due
from penstock.producer.network.least_loaded import ConnectionReadiness, NodeChoice, least_loaded
from penstock.producer.protocol.backoff import Backoff

from tests.fakes.metadata_net import metadata_net

LIMITS = ConnectionLimits(reconnect=Backoff(10.0, 100.0), in_flight_max=2)
CHANCES = [0.0, 0.34, 0.67, 0.999]
MIDDLE = 0.5


def chosen(cores: Mapping[str, ConnectionStateMachine[str]], now: float, chance: float = 0.0) -> NodeChoice[str]:
    return least_loaded([(name, core.readiness(now)) for name, core in cores.items()], chance)


def begin(core: ConnectionStateMachine[str], now: float) -> None:
    core.request_connect()
    assert core.due(now, MIDDLE) is Due.CONNECT
    core.connecting(now)


def ready(now: float = 0.0) -> ConnectionStateMachine[str]:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    begin(core, now)
    core.established()
    core.versions_received({}, now)
    return core


def send(core: ConnectionStateMachine[str], now: float = 0.0) -> None:
    core.sent(core.next_correlation_id(), "r", 10, now)


@pytest.mark.row("I16")
def test_a_single_node_is_chosen_while_it_is_connected_with_and_not_while_it_backs_off() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    nodes = {"one": core}
    assert chosen(nodes, 0.0) == NodeChoice("one", connected=False)
    begin(core, 0.0)
    assert chosen(nodes, 0.0) == NodeChoice("one", connected=False)
    core.established()
    core.versions_received({}, 0.0)
    assert chosen(nodes, 0.0) == NodeChoice("one", connected=True)
    _ = core.ended(1.0, MIDDLE, "gone")
    assert chosen(nodes, 1.0) == NodeChoice(None, connected=False)
    assert chosen(nodes, 10.999) == NodeChoice(None, connected=False)
    assert chosen(nodes, 11.0) == NodeChoice("one", connected=False)


@pytest.mark.row("I16")
@pytest.mark.parametrize("chance", CHANCES)
def test_a_throttled_node_is_not_chosen(chance: float) -> None:
    core = ready()
    core.throttle(100, 0.0)
    assert chosen({"one": core}, 0.05, chance) == NodeChoice(None, connected=False)
    assert chosen({"one": core, "two": ready()}, 0.05, chance) == NodeChoice("two", connected=True)
    assert chosen({"one": core}, 0.1, chance) == NodeChoice("one", connected=True)


@pytest.mark.row("I16")
def test_a_node_whose_connection_is_full_is_not_chosen_but_known_to_be_connected() -> None:
    core = ready()
    send(core)
    send(core)
    assert chosen({"one": core}, 0.0) == NodeChoice(None, connected=True)


@pytest.mark.row("I16")
def test_nodes_that_fail_take_turns_by_their_last_attempt() -> None:
    cores: dict[str, ConnectionStateMachine[str]] = {
        name: ConnectionStateMachine(LIMITS) for name in ("one", "two", "three")
    }
    now = 0.0
    for turn in range(10):
        tried: list[str] = []
        for chance in (0.9, 0.1, 0.5):
            name = chosen(cores, now, chance).node
            assert name is not None
            tried.append(name)
            begin(cores[name], now)
            _ = cores[name].ended(now + 0.1, MIDDLE, "refused")
            now += 1.0
        assert sorted(tried) == ["one", "three", "two"], turn
        now += 1000.0


@pytest.mark.row("I16")
@pytest.mark.parametrize("chance", CHANCES)
def test_an_idle_node_comes_first_then_a_busy_one_then_one_on_its_way_then_one_left_alone(chance: float) -> None:
    idle, busy, busier = ready(), ready(), ConnectionStateMachine[str](LIMITS._replace(in_flight_max=3))
    begin(busier, 0.0)
    busier.established()
    busier.versions_received({}, 0.0)
    send(busy)
    send(busier)
    send(busier)
    connecting: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    begin(connecting, 0.0)
    untried: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    ended = ready()
    _ = ended.ended(0.0, MIDDLE, "gone")
    left = {
        "ended": ended, "untried": untried, "connecting": connecting, "busier": busier, "busy": busy, "idle": idle,
    }  # fmt: skip
    order: list[str] = []
    while left:
        name = chosen(left, 20.0, chance).node
        assert name is not None
        order.append(name)
        del left[name]
    assert order == ["idle", "busy", "busier", "connecting", "untried", "ended"]


@pytest.mark.row("I16")
def test_chance_decides_between_equals() -> None:
    equals = [(name, ConnectionReadiness(usable=True, connected=True)) for name in ("one", "two", "three")]
    assert [least_loaded(equals, chance).node for chance in CHANCES] == ["one", "two", "three", "three"]


# --- as the metadata client chooses ----------------------------------------------------------------------------------


@pytest.mark.row("I16", "F10")
def test_metadata_is_asked_of_another_node_while_the_one_that_was_asked_is_throttled() -> None:
    with metadata_net(bootstrap="10.0.0.1") as world:
        first = world.greet()
        world.answer(1, 2, throttle_ms=60_000)
        world.metadata.request_producer_id()
        world.round(1.0)
        assert world.net.connects == ["10.0.0.1", "10.0.0.2"]
        assert first.closed
        _ = world.greet()
        assert world.net.last.read().api_key == 22


@pytest.mark.row("I16", "F10")
def test_a_throttled_node_is_waited_for_where_there_is_no_other() -> None:
    with metadata_net(bootstrap="10.0.0.1") as world:
        first = world.greet()
        world.answer(1, throttle_ms=60_000)
        throttled_at = world.net.now
        world.metadata.request_producer_id()
        world.round(1.0)
        assert world.net.connects == ["10.0.0.1"]
        while first.unread() == 0:
            before = world.net.now
            world.wait()
            assert world.net.now > before, "it spins"
        assert world.net.now == pytest.approx(throttled_at + 60.0)
