"""Rows about metrics: what is recorded, and at which level."""

from collections import Counter

import pytest
from penstock.config.direct import DirectSettings, direct_settings
from penstock.config.errors import ConfigError
from penstock.producer.accumulator.buffer_pool import BufferPool
from penstock.producer.delivery.outcomes import DeliveryFailure, DeliveryFailureKind, Failed
from penstock.producer.telemetry.catalogue import BY_GROUP, CLIENT, METRICS, PARTITION, SENSORS, RecordingLevel
from penstock.producer.telemetry.metrics import ProducerMetrics

from tests.fakes.link_world import link_world
from tests.fakes.shard_bench import ShardBench


def settings(**given: object) -> DirectSettings:
    return direct_settings({"bootstrap.servers": "x:1", "client.id": "me", **given})


def figures(meters: ProducerMetrics, now: float) -> dict[str, float]:
    """Those of the whole client."""
    return {
        figure.metric.name: figure.value
        for figure in meters.sensors.metric_values(now)
        if figure.metric.group == CLIENT
    }


@pytest.mark.row("F3")
def test_the_throttle_of_every_answer_counts_that_of_apiversions_too() -> None:
    meters = ProducerMetrics(settings(), None, now=0.0)
    with link_world(watch=meters) as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        world.send()
        world.connect(throttle_ms=400)
        world.send(world.net.now + 0.401)
        for offset, throttle_ms in ((1, 100), (2, 200), (3, 300)):
            if offset > 1:
                world.bench.put(0, 1)
                world.send()
            _ = world.answer([0], offset=offset, throttle_ms=throttle_ms)
            world.send(world.net.now + throttle_ms / 1000 + 0.001)
        told = figures(meters, world.net.now)
    assert told["produce-throttle-time-avg"] == 250
    assert told["produce-throttle-time-max"] == 400
    assert (told["request-total"], told["response-total"], told["record-send-total"]) == (4, 4, 3)


@pytest.mark.row("H27")
@pytest.mark.parametrize("level", list(RecordingLevel), ids=lambda level: level.name)
def test_the_recording_level_is_info_unless_another_is_set(level: RecordingLevel) -> None:
    assert settings().metrics_recording_level == "INFO"
    meters = ProducerMetrics(settings(**{"metrics.recording.level": level.name}), None, now=0.0)
    assert meters.sensors.level is level
    meters.sensors.of(PARTITION, "a", "0", now=0.0)
    shown = {figure.metric for figure in meters.sensors.metric_values(0.0)}
    assert shown >= set(BY_GROUP[CLIENT])
    assert shown & set(BY_GROUP[PARTITION]) == ({*BY_GROUP[PARTITION]} if level else set())


@pytest.mark.row("H27")
def test_no_other_level_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.recording\.level"):
        settings(**{"metrics.recording.level": "debug"})


@pytest.mark.row("H27")
@pytest.mark.parametrize("call", ["init", "begin", "send-offsets", "commit", "abort"])
def test_the_time_spent_in_calls_about_transactions_adds_up(call: str) -> None:
    meters = ProducerMetrics(settings(), None, now=0.0)
    meters.transaction_call_finished(call, 0.25, 1.0)
    meters.transaction_call_finished(call, 0.5, 2.0)
    told = figures(meters, 2.0)
    assert told[f"txn-{call}-time-ns-total"] == 0.75e9
    assert {name for name, value in told.items() if value and name.startswith("txn-")} == {f"txn-{call}-time-ns-total"}


def test_authentications_are_counted_by_how_they_ended() -> None:
    meters = ProducerMetrics(settings(), None, now=0.0)
    traffic = meters.traffic(1, now=0.0)
    traffic.authenticated(1.0)
    traffic.reauthenticated(0.04, 2.0)
    traffic.reauthenticated(0.02, 3.0)
    traffic.authentication_failed(4.0, again=False)
    traffic.authentication_failed(5.0, again=True)
    told = figures(meters, 6.0)
    assert told["successful-authentication-total"] == told["failed-authentication-total"] == 1
    assert (told["successful-reauthentication-total"], told["failed-reauthentication-total"]) == (2, 1)
    assert (told["reauthentication-latency-avg"], told["reauthentication-latency-max"]) == (30, 40)


@pytest.mark.row("F4")
def test_no_metric_is_shown_that_is_not_declared() -> None:
    meters = ProducerMetrics(settings(**{"metrics.recording.level": "DEBUG"}), None, now=0.0)
    assert {figure.metric for figure in meters.sensors.metric_values(0.0)} <= set(METRICS)


@pytest.mark.row("F4")
def test_every_sensor_that_is_declared_is_recorded_by_something() -> None:
    pool = BufferPool(1000, 100)
    meters = ProducerMetrics(settings(**{"metrics.recording.level": "DEBUG"}), pool, now=0.0)
    bench = ShardBench()
    bench.grant(0)
    bench.put(0, 1)
    (sent,) = bench.send()
    now, topic = bench.now + 1.0, sent.flight.entries[0][0].topic
    meters.request_sent(sent.flight.entries, now)
    meters.request_answered(1, 0.1, now)
    meters.batch_retried(topic, 2, now)
    unsure = DeliveryFailure(DeliveryFailureKind.MAY_BE_WRITTEN, -1, "EXPIRED", "its time is over")
    meters.records_failed(topic, Failed(0, 0, 3, unsure, released=False), now)
    meters.partition_alarm_logged(now)
    pool.waited_s, pool.exhausted_count = 0.5, 2
    meters.update_counters(Counter(splits=2, probes=1), now)
    meters.record_rejected(4, now)
    meters.waited_for_metadata(0.1, now)
    meters.flushed(0.1, now)
    for call in ("init", "begin", "send-offsets", "commit", "abort"):
        meters.transaction_call_finished(call, 0.1, now)
    traffic = meters.traffic(1, now=now)
    traffic.opened(now)
    traffic.sent(10, now)
    traffic.wrote(10, now)
    traffic.read(5, now)
    traffic.answered(7, now)
    traffic.authenticated(now)
    traffic.reauthenticated(0.1, now)
    traffic.authentication_failed(now, again=False)
    traffic.authentication_failed(now, again=True)
    traffic.closed(now)
    told = {(figure.metric.group, figure.metric.sensor): figure.value for figure in meters.sensors.metric_values(now)}
    assert {key for key, value in told.items() if key in SENSORS and not value > 0} == set()
    assert set(told) >= SENSORS
    totals = figures(meters, now)
    assert (totals["batch-split-total"], totals["buffer-exhausted-total"]) == (2, 2)
    assert (totals["record-retry-total"], totals["record-error-total"]) == (2, 3)


def test_only_records_that_may_be_written_are_counted_as_such() -> None:
    meters = ProducerMetrics(settings(), None, now=0.0)
    for kind, count in (
        (DeliveryFailureKind.REFUSED, 2),
        (DeliveryFailureKind.EXPIRED, 4),
        (DeliveryFailureKind.MAY_BE_WRITTEN, 8),
    ):
        meters.records_failed(
            "t", Failed(0, 0, count, DeliveryFailure(kind, -1, "WHY", "because"), released=False), 1.0
        )
    told = {figure.metric.name: figure.value for figure in meters.sensors.metric_values(1.0)}
    assert told["record-may-be-written-total"] == 8
    assert figures(meters, 1.0)["record-error-total"] == 14


def test_connections_are_closed_once_and_only_if_they_were_open() -> None:
    meters = ProducerMetrics(settings(), None, now=0.0)
    never, once = meters.traffic(1, now=0.0), meters.traffic(2, now=0.0)
    once.opened(1.0)
    for traffic in (never, once, once):
        traffic.closed(2.0)
    told = figures(meters, 2.0)
    assert (told["connection-creation-total"], told["connection-close-total"], told["connection-count"]) == (1, 1, 0)


def test_what_was_counted_elsewhere_is_counted_once() -> None:
    pool = BufferPool(1000, 100)
    meters = ProducerMetrics(settings(), pool, now=0.0)
    pool.waited_s = 0.5
    for _ in range(3):
        meters.update_counters(Counter(splits=2, probes=1), 1.0)
    assert figures(meters, 1.0)["batch-split-total"] == 2
    assert figures(meters, 1.0)["bufferpool-wait-time-ns-total"] == 0.5e9
    meters.update_counters(Counter(splits=5, probes=1), 2.0)
    assert figures(meters, 2.0)["batch-split-total"] == 5
