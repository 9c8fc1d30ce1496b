"""Exports a producer's metrics to prometheus_client, which only this module imports:
`REGISTRY.register(Collector(producer))`.
"""

import math
from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector as _Collector

from .exported_names import base_scale, is_counter, prometheus_name
from .sensors import MetricValue


class MeteredProducer(Protocol):
    """`DirectProducer` or `AsyncDirectProducer`."""

    def metric_values(self) -> list[MetricValue]: ...


class Collector(_Collector):
    """Collects one producer's metrics. Each producer of a process needs its own collector and its own `client_id`.

    Names are in the column *Prometheus* of docs/reference/producer-metrics.md. Rates and NaN values are left out.
    """

    def __init__(self, producer: MeteredProducer) -> None:
        self._producer: Final = producer

    def collect(self) -> Iterator[Family]:
        """Yield every metric family with its current values."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for figure in self._producer.metric_values():
            name = prometheus_name(figure.metric)
            if name is not None and not math.isnan(figure.value):
                family = families.get(name)
                if family is None:
                    family = families[name] = _family(name, figure)
                labels = [value for _, value in figure.name.tags]
                family.add_metric(labels, figure.value * base_scale(figure.metric))
        yield from families.values()


def _family(name: str, figure: MetricValue) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if is_counter(figure.metric) else GaugeMetricFamily
    labels = [tag.replace("-", "_") for tag in figure.metric.group.tags]
    return kind(name.removesuffix("_total"), figure.metric.description, labels=labels)
