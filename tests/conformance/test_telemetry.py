"""Rows about telemetry: ids, and which broker is told."""

import logging
import sys
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest
from penstock.api.errors import WaitTimeoutError
from penstock.producer import DirectProducer

from tests.fakes.telemetry_net import INSTANCE, pushed, subscription, telemetry_net

SUBSCRIPTIONS = 71
PUSH = 72


@pytest.mark.row("I25")
def test_the_same_node_is_told_as_long_as_it_stays_connected() -> None:
    with telemetry_net() as world:
        world.round()
        told = world.greet()
        count = len(world.net.sockets)
        assert world.answer(subscription("org.apache.kafka.")).api_key == SUBSCRIPTIONS
        for _ in range(3):
            world.round(1.0)
            assert world.answer(pushed()).api_key == PUSH
        assert world.net.last is told
        assert len(world.net.sockets) == count
        # Once it is gone, the next one is found and told with the same subscription.
        told.hang_up()
        world.round(1.0)
        assert len(world.net.sockets) == count + 1
        _ = world.greet()
        assert world.answer(pushed()).api_key == PUSH


@pytest.mark.row("I25")
def test_no_connection_is_made_where_brokers_do_not_ask() -> None:
    with telemetry_net(offered=False) as world:
        count = len(world.net.sockets)
        for _ in range(10):
            world.round(10.0)
        assert len(world.net.sockets) == count
        # Nor when nobody is asked for metadata any more.
        world.net.last.hang_up()
        for _ in range(3):
            world.round(600.0)
        assert len(world.net.sockets) == count
        assert world.pusher.finish(world.net.now + 5.0, world.net.now)


def test_without_the_extra_one_line_says_so_where_brokers_ask_and_none_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with telemetry_net(installed=False, offered=False) as world:
        world.round(1.0)
        assert "telemetry_disabled" not in caplog.text
    with telemetry_net(installed=False) as world:
        count = len(world.net.sockets)
        for _ in range(3):
            world.round(600.0)
        assert caplog.text.count("telemetry_disabled") == 1
        assert "penstock[telemetry] is not installed" in caplog.text
        assert len(world.net.sockets) == count


def test_telemetry_that_is_switched_off_does_nothing() -> None:
    with telemetry_net(**{"enable.metrics.push": False}) as world:
        count = len(world.net.sockets)
        world.round(10.0)
        assert len(world.net.sockets) == count
        assert world.pusher.next_deadline(world.net.now) is None
        assert world.instance.wait(0) is None


def test_the_last_push_has_a_part_of_the_time_of_the_close_and_no_more() -> None:
    with telemetry_net() as world:
        world.round()
        _ = world.greet()
        _ = world.answer(subscription("*"))
        began = world.net.now
        assert not world.pusher.finish(began + 2.0, began)
        assert world.net.last.read().api_key == PUSH
        assert world.pusher.next_deadline(began) == began + 2.0
        assert not world.pusher.finish(began + 2.0, began + 1.9)
        assert world.pusher.finish(began + 2.0, began + 2.0)


def test_a_last_push_that_is_answered_is_the_end_at_once() -> None:
    with telemetry_net() as world:
        world.round()
        _ = world.greet()
        _ = world.answer(subscription("*"))
        assert not world.pusher.finish(world.net.now + 60.0, world.net.now)
        _ = world.answer(pushed())
        assert world.pusher.finish(world.net.now + 60.0, world.net.now)


def test_bytes_that_are_no_answer_end_the_connection_and_harm_nothing() -> None:
    with telemetry_net() as world:
        world.round()
        _ = world.greet()
        _ = world.answer(b"\xff\xff\xff")
        assert world.net.last.closed
        world.round(2.0)
        _ = world.greet()
        assert world.answer(subscription("*")).api_key == SUBSCRIPTIONS
        assert world.instance.wait(0) == uuid.UUID(bytes=INSTANCE)


def test_a_broker_that_refuses_for_good_is_told_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with telemetry_net() as world, caplog.at_level(logging.WARNING, "penstock"):
        world.round()
        _ = world.greet()
        _ = world.answer(subscription("*"))
        world.round(1.0)
        _ = world.answer(pushed(42))
        world.round(3600.0)
        assert caplog.text.count("telemetry_disabled") == 1
        assert "INVALID_REQUEST" in caplog.text
        assert world.net.last.closed


# --- the client instance id ------------------------------------------------------------------------------------------


@pytest.mark.row("H27")
def test_the_id_is_the_one_that_the_broker_gave() -> None:
    with telemetry_net() as world:
        world.round()
        _ = world.greet()
        assert world.instance.wait(0) is None
        _ = world.answer(subscription())
        assert world.instance.wait(0) == uuid.UUID(bytes=INSTANCE)


@pytest.mark.row("H27")
def test_a_negative_timeout_for_the_id_is_refused() -> None:
    with DirectProducer({"bootstrap.servers": "127.0.0.1:1"}) as producer, pytest.raises(ValueError, match="negative"):
        producer.client_instance_id(-0.001)


@pytest.mark.row("H27")
def test_there_is_no_id_where_metrics_are_not_pushed() -> None:
    given = {"bootstrap.servers": "127.0.0.1:1", "enable.metrics.push": False}
    with DirectProducer(given) as producer, pytest.raises(RuntimeError, match=r"enable\.metrics\.push"):
        producer.client_instance_id(0)


@pytest.mark.row("H27")
def test_an_id_that_no_broker_gives_in_time_is_not_waited_for_longer() -> None:
    producer = DirectProducer({"bootstrap.servers": "127.0.0.1:1"})
    with producer, pytest.raises(WaitTimeoutError):
        producer.client_instance_id(0.05)


@pytest.fixture
def without_encoder() -> Iterator[None]:
    """As where the protobuf that is installed does not fit the rest."""
    name = "penstock.producer.telemetry.otlp"
    before = sys.modules.pop(name, None)
    sys.modules[name] = cast("Any", None)
    yield
    del sys.modules[name]
    if before is not None:
        sys.modules[name] = before


@pytest.mark.usefixtures("without_encoder")
def test_an_encoder_that_cannot_be_loaded_is_told_of_and_stops_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with telemetry_net() as world:
        world.round()
        _ = world.greet()
        _ = world.answer(subscription("org.apache.kafka."))
        for _ in range(3):
            world.round(1.0)
        assert caplog.text.count("cannot be loaded") == 1
        assert world.net.last.closed
        assert world.pusher.next_deadline(world.net.now) is None


def test_an_answer_of_any_size_is_not_read_but_ends_the_connection() -> None:
    with telemetry_net() as world:
        world.round()
        told = world.greet()
        asked = told.read()
        told.answer(asked, subscription("org.apache.kafka.") + bytes(1 << 20))
        world.round()
        assert world.instance.wait(0) is None
        assert told.closed
