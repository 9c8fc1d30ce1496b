"""Encodes metrics for OpenTelemetry (OTLP, protobuf), with KIP-714's names and tags. Needs `penstock[telemetry]`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ...api.metrics import MetricName
from .exported_names import is_counter, otlp_name
from .sensors import MetricValue
from .subscription import ReportedTotals

_NS: Final = 1_000_000_000
_OMITTED_TAGS: Final = frozenset({"client-id"})
"""The broker knows these from the request."""


class ExportTime(NamedTuple):
    """The current time on the metrics' clock (seconds) and as wall-clock time (ns since 1970)."""

    now: float
    wall_ns: int


class EncodedMetrics(NamedTuple):
    """`MetricsData` as bytes, its number of metrics, and the totals from which the next increments are counted."""

    data: bytes
    metrics: int
    reported: ReportedTotals


def encode(
    figures: Sequence[MetricValue],
    wants: Callable[[str], bool],
    attributes: Mapping[str, str],
    at: ExportTime,
    since: ReportedTotals | None,
) -> EncodedMetrics:
    """Encode the metrics that `wants` selects by name. `since`: make totals increments since then; None: leave them."""
    metrics: dict[str, Metric] = {}
    totals: dict[MetricName, float] = {}
    for figure in figures:
        name = otlp_name(figure.metric)
        if not wants(name) or math.isnan(figure.value):
            continue
        metric = metrics.get(name)
        if metric is None:
            metric = metrics[name] = _empty(name, figure, delta=since is not None)
        if is_counter(figure.metric):
            totals[figure.name] = figure.value
            metric.sum.data_points.append(_increment(figure, at, since))
        else:
            point = NumberDataPoint(attributes=_tags(figure.name), time_unix_nano=at.wall_ns, as_double=figure.value)
            metric.gauge.data_points.append(point)
    resource = Resource(attributes=[_pair(key, value) for key, value in attributes.items()])
    scoped = ScopeMetrics(metrics=list(metrics.values()))
    data = MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scoped])])
    return EncodedMetrics(data.SerializeToString(), len(metrics), ReportedTotals(totals, at.wall_ns))


def _empty(name: str, figure: MetricValue, *, delta: bool) -> Metric:
    if is_counter(figure.metric):
        kind = AGGREGATION_TEMPORALITY_DELTA if delta else AGGREGATION_TEMPORALITY_CUMULATIVE
        return Metric(name=name, sum=Sum(aggregation_temporality=kind, is_monotonic=True))
    return Metric(name=name, gauge=Gauge())


def _increment(figure: MetricValue, at: ExportTime, since: ReportedTotals | None) -> NumberDataPoint:
    began_ns = at.wall_ns - round((at.now - figure.sensor_created_at) * _NS)
    value = figure.value
    if since is not None and figure.name in since.totals:
        value -= since.totals[figure.name]
        began_ns = since.at_ns
    return NumberDataPoint(
        attributes=_tags(figure.name), start_time_unix_nano=began_ns, time_unix_nano=at.wall_ns, as_double=value
    )


def _tags(name: MetricName) -> list[KeyValue]:
    return [_pair(tag.replace("-", "_"), value) for tag, value in name.tags if tag not in _OMITTED_TAGS]


def _pair(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))
