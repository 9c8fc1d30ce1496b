"""Sensors and the figures that the declared metrics make of them."""

import math

import pytest
from penstock.api.metrics import MetricName
from penstock.producer.telemetry.catalogue import (
    BY_GROUP,
    CLIENT,
    GAUGES,
    METRICS,
    OMITTED_KAFKA_METRICS,
    PARTITION,
    SENSORS,
    TOPIC,
    MetricTemplate,
    RecordingLevel,
)
from penstock.producer.telemetry.exported_names import prometheus_name
from penstock.producer.telemetry.sensors import Sensors
from penstock.producer.telemetry.windows import SampleWindows


def made(level: RecordingLevel = RecordingLevel.INFO) -> Sensors:
    return Sensors("me", SampleWindows(30.0, 2), level, now=100.0)


def values(sensors: Sensors, now: float) -> dict[MetricName, float]:
    return {figure.name: figure.value for figure in sensors.metric_values(now)}


def test_one_sensor_has_a_mean_a_maximum_a_rate_and_a_total() -> None:
    sensors = made()
    for value in (10, 30):
        sensors.of(CLIENT, now=100.0)["record-send"].add(value, 100.0)
    told = values(sensors, 110.0)
    mine = (("client-id", "me"),)
    assert told[MetricName("producer-metrics", "record-send-total", mine)] == 40
    assert told[MetricName("producer-metrics", "record-send-rate", mine)] == 40 / 40
    assert told[MetricName("producer-metrics", "records-per-request-avg", mine)] == 20


def test_times_are_recorded_in_seconds_and_shown_in_nanoseconds() -> None:
    sensors = made()
    sensors.of(CLIENT, now=100.0)["bufferpool-wait"].add(0.5, 100.0)
    told = values(sensors, 100.0)
    mine = (("client-id", "me"),)
    assert told[MetricName("producer-metrics", "bufferpool-wait-time-ns-total", mine)] == 5e8
    assert told[MetricName("producer-metrics", "bufferpool-wait-ratio", mine)] == 0.5 / 30


def test_metrics_of_topics_come_with_their_first_record() -> None:
    sensors = made()
    before = values(sensors, 100.0)
    assert not any(name.group == TOPIC.name for name in before)
    sensors.of(TOPIC, "a", now=100.0)["byte"].add(7, 100.0)
    told = values(sensors, 100.0)
    assert told[MetricName(TOPIC.name, "byte-total", (("client-id", "me"), ("topic", "a")))] == 7
    assert len(told) == len(before) + len(BY_GROUP[TOPIC])
    assert told[MetricName("kafka-metrics-count", "count", (("client-id", "me"),))] == len(told)


@pytest.mark.parametrize("level", list(RecordingLevel), ids=lambda level: level.name)
def test_metrics_above_the_recording_level_are_not_there(level: RecordingLevel) -> None:
    sensors = made(level)
    sensors.of(PARTITION, "a", "0", now=100.0)
    shown = {(figure.metric.group, figure.metric.name) for figure in sensors.metric_values(100.0)}
    assert shown >= {(metric.group, metric.name) for metric in BY_GROUP[CLIENT]}
    assert any(group == PARTITION for group, _ in shown) == (level >= RecordingLevel.DEBUG)


def test_what_is_not_declared_cannot_be_recorded() -> None:
    sensors = made()
    with pytest.raises(KeyError):
        sensors.of(CLIENT, now=100.0)["select"]
    with pytest.raises(AssertionError, match="declared"):
        sensors.gauge("load", lambda now: now)
    with pytest.raises(AssertionError, match="tags"):
        sensors.of(TOPIC, now=100.0)


def test_a_gauge_is_asked_when_figures_are_and_nan_before_anybody_tells_it() -> None:
    sensors = made()
    name = MetricName("producer-metrics", "metadata-age", (("client-id", "me"),))
    assert math.isnan(values(sensors, 100.0)[name])
    sensors.gauge("metadata-age", lambda now: now - 90)
    assert values(sensors, 100.0)[name] == 10


def test_names_are_declared_once_in_every_form() -> None:
    names = [(metric.group.name, metric.name) for metric in METRICS]
    assert len(names) == len(set(names))
    shown = [name for metric in METRICS if (name := prometheus_name(metric)) is not None]
    assert len(shown) == len(set(shown))
    assert SENSORS.isdisjoint(GAUGES)


def test_every_name_of_kafkas_producer_is_there_or_listed_as_dropped() -> None:
    dropped = " ".join(names for names, _ in OMITTED_KAFKA_METRICS)
    for stem in KAFKAS.split():
        found = [metric for metric in METRICS if fits(metric, stem)]
        assert found or stem in dropped, stem


def fits(metric: MetricTemplate, name: str) -> bool:
    group = {"topic:": TOPIC.name, "node:": "producer-node-metrics"}
    prefix, _, rest = name.rpartition(":")
    return (metric.group.name, metric.name) == (group.get(f"{prefix}:", CLIENT.name), rest)


KAFKAS = """
batch-size-avg batch-size-max compression-rate-avg record-queue-time-avg record-queue-time-max request-latency-avg request-latency-max
produce-throttle-time-avg produce-throttle-time-max record-send-rate record-send-total records-per-request-avg record-retry-rate
record-retry-total record-error-rate record-error-total record-size-avg record-size-max requests-in-flight metadata-age batch-split-rate
batch-split-total waiting-threads buffer-total-bytes buffer-available-bytes bufferpool-wait-ratio bufferpool-wait-time-ns-total
bufferpool-wait-time-total buffer-exhausted-rate buffer-exhausted-total flush-time-ns-total metadata-wait-time-ns-total
txn-init-time-ns-total txn-begin-time-ns-total txn-send-offsets-time-ns-total txn-commit-time-ns-total txn-abort-time-ns-total
connection-creation-rate connection-creation-total connection-close-rate connection-close-total connection-count network-io-rate
network-io-total outgoing-byte-rate outgoing-byte-total incoming-byte-rate incoming-byte-total request-rate request-total
request-size-avg request-size-max response-rate response-total select-rate select-total io-wait-time-ns-avg io-wait-time-ns-total
io-wait-ratio io-time-ns-avg io-time-ns-total io-ratio successful-authentication-rate successful-authentication-total
failed-authentication-rate failed-authentication-total successful-reauthentication-rate successful-reauthentication-total
failed-reauthentication-rate failed-reauthentication-total reauthentication-latency-avg reauthentication-latency-max
topic:record-send-rate topic:record-send-total topic:byte-rate topic:byte-total topic:compression-rate topic:record-retry-rate
topic:record-retry-total topic:record-error-rate topic:record-error-total node:request-rate node:request-total node:request-size-avg
node:request-size-max node:outgoing-byte-rate node:outgoing-byte-total node:response-rate node:response-total node:incoming-byte-rate
node:incoming-byte-total node:request-latency-avg node:request-latency-max
"""
