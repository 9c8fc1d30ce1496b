"""A producer's sensors, by group and tags, and the values of its metrics."""

import math
from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

from ...api.metrics import MetricName
from .catalogue import BY_GROUP, CLIENT, COUNTS, GAUGES, OWN, SENSORS, MetricGroup, MetricTemplate, RecordingLevel, Stat
from .windows import SampledSensor, SampleWindows

_ALWAYS: Final = (CLIENT, COUNTS, OWN)
"""Groups with no tag but `client-id`; their sensors exist from the start."""


class MetricValue(NamedTuple):
    """A metric's value. `sensor_created_at`: when its sensor was created, in seconds of the clock."""

    metric: MetricTemplate
    name: MetricName
    value: float
    sensor_created_at: float


class Sensors:
    """The sensors of one producer, created on first use. Only declared sensors exist."""

    def __init__(self, client_id: str, windows: SampleWindows, level: RecordingLevel, *, now: float) -> None:
        self.level: Final = level
        self._client_id: Final = client_id
        self._windows: Final = windows
        self._sampled: Final[dict[tuple[MetricGroup, tuple[str, ...]], dict[str, SampledSensor]]] = {}
        self._began: Final[dict[tuple[MetricGroup, tuple[str, ...]], float]] = {}
        self._gauges: Final[dict[str, Callable[[float], float]]] = {"count": lambda _now: float(self._count())}
        for group in _ALWAYS:
            self._open(group, (), now)

    def of(self, group: MetricGroup, *tags: str, now: float) -> dict[str, SampledSensor]:
        """Return the sensors of a group for these values of the tags after `client-id`."""
        key = (group, tags)
        return self._sampled[key] if key in self._sampled else self._open(group, tags, now)

    def _open(self, group: MetricGroup, tags: tuple[str, ...], now: float) -> dict[str, SampledSensor]:
        assert len(tags) == len(group.tags) - 1, f"{group.name} has the tags {group.tags}"
        names = {metric.sensor for metric in BY_GROUP[group] if metric.level <= self.level}
        made = {name: SampledSensor(self._windows) for name in sorted(names) if (group, name) in SENSORS}
        self._began[group, tags] = now
        self._sampled[group, tags] = made
        return made

    def gauge(self, name: str, read: Callable[[float], float]) -> None:
        """Set the function that reads a gauge. The thread that asks for metric values calls it with the time."""
        assert (CLIENT, name) in GAUGES, f"no gauge {name} is declared"
        self._gauges[name] = read

    def metric_values(self, now: float) -> list[MetricValue]:
        """The current values of all metrics. Any thread may call it."""
        found: list[MetricValue] = []
        for (group, tags), sampled in list(self._sampled.items()):
            named = tuple(zip(group.tags, (self._client_id, *tags), strict=True))
            began = self._began[group, tags]
            for metric in BY_GROUP[group]:
                if metric.level <= self.level:
                    value = self._value(metric, sampled, now)
                    found.append(MetricValue(metric, MetricName(group.name, metric.name, named), value, began))
        return found

    def _count(self) -> int:
        return sum(metric.level <= self.level for group, _ in list(self._sampled) for metric in BY_GROUP[group])

    def _value(self, metric: MetricTemplate, sampled: dict[str, SampledSensor], now: float) -> float:
        if metric.stat is Stat.GAUGE:
            read = self._gauges.get(metric.sensor)
            return math.nan if read is None else read(now)
        return _aggregate(metric.stat, sampled[metric.sensor], now) * metric.scale


def _aggregate(stat: Stat, sensor: SampledSensor, now: float) -> float:
    match stat:
        case Stat.AVERAGE:
            return sensor.average(now)
        case Stat.LARGEST:
            return sensor.largest(now)
        case Stat.RATE:
            return sensor.rate(now)
        case Stat.FREQUENCY:
            return sensor.frequency(now)
        case Stat.TOTAL:
            return sensor.total
        case Stat.COUNT:
            return float(sensor.count)
        case Stat.GAUGE:
            raise AssertionError("a gauge has no sensor")
        case _:
            assert_never(stat)
