"""What brokers are pushed, byte for byte as far as they read it, and what becomes of pushes that they do not take."""

import gzip
import struct
from typing import NamedTuple

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from penstock.producer.telemetry.catalogue import CLIENT
from penstock.producer.telemetry.push import LAST_PUSH_S

from tests.fakes.scripted_broker import Asked
from tests.fakes.telemetry_net import INSTANCE, TelemetryNet, pushed, subscription, telemetry_net

SUBSCRIPTIONS = 71
PUSH = 72
NAME = "org.apache.kafka.producer.metadata.wait.time.ns.total"


class Pushed(NamedTuple):
    """A request PushTelemetry."""

    codec: int
    data: bytes

    def figure(self) -> float:
        """Of the one metric that is asked for."""
        (resource,) = MetricsData.FromString(self.data).resource_metrics
        (scope,) = resource.scope_metrics
        (metric,) = scope.metrics
        (point,) = metric.sum.data_points
        return point.as_double


def read(asked: Asked) -> Pushed:
    assert asked.api_key == PUSH
    (length,) = struct.unpack_from(">h", asked.body, 8)
    at = 10 + length + 1
    instance, subscribed, _, codec = struct.unpack_from(">16si?b", asked.body, at)
    assert (instance, subscribed) == (INSTANCE, 7)
    at, size, shift = at + 22, 0, 0
    while True:
        byte = asked.body[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    assert at + size - 1 == len(asked.body) - 1
    return Pushed(codec, asked.body[at:-1])


def subscribed(world: TelemetryNet, body: bytes) -> None:
    world.round()
    _ = world.greet()
    assert world.answer(body).api_key == SUBSCRIPTIONS


def waits(world: TelemetryNet, seconds: float) -> None:
    """Something to count."""
    world.meters.waited_for_metadata(seconds, world.net.now)


def test_what_was_not_taken_is_told_with_the_next_push_and_what_was_is_not() -> None:
    with telemetry_net() as world:
        subscribed(world, subscription(NAME))
        waits(world, 5)
        world.round(1.0)
        assert read(world.answer(pushed())).figure() == 5e9
        waits(world, 2)
        world.round(1.0)
        assert read(world.answer(pushed(117))).figure() == 2e9
        assert world.answer(subscription(NAME)).api_key == SUBSCRIPTIONS
        waits(world, 1)
        world.round(1.0)
        assert read(world.answer(pushed())).figure() == 3e9


def test_where_increments_are_asked_for_anew_they_count_from_the_start() -> None:
    with telemetry_net() as world:
        subscribed(world, subscription(NAME))
        waits(world, 5)
        figures = []
        for delta in (False, True):
            world.round(1.0)
            figures.append(read(world.answer(pushed(117))).figure())
            _ = world.answer(subscription(NAME, delta=delta))
            waits(world, 1)
            world.round(1.0)
            figures.append(read(world.answer(pushed())).figure())
        assert figures == [5e9, 6e9, 6e9, 7e9]


def test_pushes_are_compressed_as_they_say() -> None:
    with telemetry_net() as world:
        subscribed(world, subscription(NAME, codecs=b"\1"))
        waits(world, 5)
        world.round(1.0)
        found = read(world.answer(pushed()))
        assert found.codec == 1
        assert found._replace(data=gzip.decompress(found.data)).figure() == 5e9


def test_who_is_asked_about_says_where_it_is_and_its_name_in_transactions() -> None:
    with telemetry_net(**{"client.rack": "here", "transactional.id": "payments"}) as world:
        subscribed(world, subscription(NAME))
        waits(world, 5)
        world.round(1.0)
        (resource,) = MetricsData.FromString(read(world.answer(pushed())).data).resource_metrics
        told = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
        assert told == {"client_rack": "here", "transactional_id": "payments"}


def test_a_push_larger_than_the_broker_takes_is_not_sent_and_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with telemetry_net() as world:
        subscribed(world, subscription("*", bytes_max=100))
        world.round(1.0)
        assert world.net.last.unread() == 0
        assert caplog.text.count("telemetry_push_too_large") == 1
        world.round(1.0)
        assert caplog.text.count("telemetry_push_too_large") == 2


def test_answers_are_counted_with_their_throttle_which_is_the_brokers_own_to_keep() -> None:
    with telemetry_net() as world:
        subscribed(world, subscription(NAME))
        waits(world, 5)
        world.round(1.0)
        before = told(world, "response-total")
        _ = world.answer(pushed(throttle_ms=5000))
        assert told(world, "response-total") == before + 1
        assert told(world, "produce-throttle-time-max") == 5000
        world.round(1.0)
        assert read(world.answer(pushed())).figure() == 0


def told(world: TelemetryNet, name: str) -> float:
    """A figure of the whole client."""
    figures = world.meters.sensors.metric_values(world.net.now)
    return next(one.value for one in figures if one.metric.group == CLIENT and one.metric.name == name)


def test_a_connection_that_ends_unused_is_made_again_when_the_next_push_is_due() -> None:
    with telemetry_net() as world:
        subscribed(world, subscription(NAME, interval_ms=10_000))
        waits(world, 5)
        world.round(4.9)
        world.net.last.hang_up()
        count = len(world.net.sockets)
        world.round(0.1)
        assert len(world.net.sockets) == count + 1
        _ = world.greet()
        assert read(world.answer(pushed())).figure() == 5e9


def test_the_last_push_has_no_more_than_some_seconds_of_a_long_close() -> None:
    with telemetry_net() as world:
        subscribed(world, subscription("*"))
        began = world.net.now
        assert not world.pusher.finish(began + 60.0, began)
        assert not world.pusher.finish(began + 60.0, began + LAST_PUSH_S - 0.1)
        assert world.pusher.finish(began + 60.0, began + LAST_PUSH_S)
