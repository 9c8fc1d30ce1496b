"""Figures as OpenTelemetry's metrics."""

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
    MetricsData,
)
from penstock.producer.telemetry.catalogue import CLIENT, TOPIC, RecordingLevel
from penstock.producer.telemetry.otlp import EncodedMetrics, ExportTime, encode
from penstock.producer.telemetry.sensors import Sensors
from penstock.producer.telemetry.subscription import ReportedTotals
from penstock.producer.telemetry.windows import SampleWindows

PREFIX = "org.apache.kafka.producer."
SECOND_NS = 1_000_000_000


def sensors() -> Sensors:
    made = Sensors("me", SampleWindows(30.0, 2), RecordingLevel.INFO, now=100.0)
    made.of(CLIENT, now=100.0)["record-send"].add(5, 100.0)
    made.of(TOPIC, "a", now=104.0)["record-send"].add(3, 104.0)
    made.of(TOPIC, "b", now=104.0)["record-send"].add(2, 104.0)
    return made


def encoded(made: Sensors, since: ReportedTotals | None, *, now: float = 110.0, prefix: str = PREFIX) -> EncodedMetrics:
    at = ExportTime(now, round(now * SECOND_NS))
    return encode(made.metric_values(now), lambda name: name.startswith(prefix), {"client_rack": "here"}, at, since)


def metrics(found: EncodedMetrics) -> dict[str, Metric]:
    (resource,) = MetricsData.FromString(found.data).resource_metrics
    assert [(pair.key, pair.value.string_value) for pair in resource.resource.attributes] == [("client_rack", "here")]
    (scope,) = resource.scope_metrics
    assert len(scope.metrics) == found.metrics
    return {metric.name: metric for metric in scope.metrics}


def test_totals_are_sums_since_their_sensor_was_made_and_the_rest_gauges() -> None:
    told = metrics(encoded(sensors(), None))
    total = told[PREFIX + "record.send.total"].sum
    assert total.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert total.is_monotonic
    (point,) = total.data_points
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (5, 100 * SECOND_NS, 110 * SECOND_NS)
    (rate,) = told[PREFIX + "record.send.rate"].gauge.data_points
    assert rate.as_double == pytest.approx(5 / 40)
    assert not rate.start_time_unix_nano


def test_a_metric_has_a_point_for_each_of_its_tags_without_what_the_broker_knows() -> None:
    points = metrics(encoded(sensors(), None))[PREFIX + "topic.record.send.total"].sum.data_points
    found = {tuple((pair.key, pair.value.string_value) for pair in point.attributes): point for point in points}
    assert {tags: point.as_double for tags, point in found.items()} == {(("topic", "a"),): 3, (("topic", "b"),): 2}
    assert {point.start_time_unix_nano for point in points} == {104 * SECOND_NS}


def test_increments_count_from_the_push_before() -> None:
    made = sensors()
    first = encoded(made, ReportedTotals({}, 0))
    (point,) = metrics(first)[PREFIX + "record.send.total"].sum.data_points
    assert (point.as_double, point.start_time_unix_nano) == (5, 100 * SECOND_NS)
    made.of(CLIENT, now=112.0)["record-send"].add(7, 112.0)
    made.of(TOPIC, "c", now=112.0)["record-send"].add(7, 112.0)
    second = encoded(made, first.reported, now=120.0)
    total = metrics(second)[PREFIX + "record.send.total"].sum
    assert total.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
    assert (total.data_points[0].as_double, total.data_points[0].start_time_unix_nano) == (7, 110 * SECOND_NS)
    by_topic = {
        point.attributes[0].value.string_value: (point.as_double, point.start_time_unix_nano)
        for point in metrics(second)[PREFIX + "topic.record.send.total"].sum.data_points
    }
    assert by_topic == {"a": (0, 110 * SECOND_NS), "b": (0, 110 * SECOND_NS), "c": (7, 112 * SECOND_NS)}


def test_what_is_not_asked_for_and_what_is_nan_is_left_out() -> None:
    told = metrics(encoded(sensors(), None, prefix=PREFIX + "batch."))
    assert set(told) == {PREFIX + "batch.split.total", PREFIX + "batch.split.rate"}
    assert encoded(sensors(), None, prefix="none of these").metrics == 0
