"""The direct producer's metric names in Prometheus (a noun and a base unit, `_total` on counters) and in telemetry."""

from typing import Final

from .catalogue import MetricTemplate, Stat

_BASE: Final = {"ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "ns": ("seconds", 1e-9), "bytes": ("bytes", 1.0)}
"""Base unit of a metric's unit, and the factor for its values. Other units do not appear in the name."""


def is_counter(metric: MetricTemplate) -> bool:
    """Whether the metric only ever grows."""
    return metric.stat in (Stat.TOTAL, Stat.COUNT)


def prometheus_name(metric: MetricTemplate) -> str | None:
    """The name in Prometheus. None: the metric is left out, because queries compute rates from totals."""
    if metric.stat in (Stat.RATE, Stat.FREQUENCY) and metric.unit != "ratio":
        return None
    group = (
        metric.group.name.removesuffix("-metrics")
        .removeprefix("penstock-")
        .replace("kafka-metrics-count", "producer-metrics")
    )
    words = metric.name.replace("-time-ns-total", "-total").split("-")
    tail = [word for word in words[-1:] if word in ("avg", "max", "total")]
    unit = _BASE.get(metric.unit, ("", 1.0))[0]
    noun = [word for word in (words[: -len(tail)] if tail else words) if word not in (unit, unit.removesuffix("s"))]
    return "_".join(["penstock", *group.split("-"), *noun, *([unit] if unit else []), *tail])


def base_scale(metric: MetricTemplate) -> float:
    """The factor that converts the metric's values to the base unit."""
    return _BASE.get(metric.unit, ("", 1.0))[1]


def otlp_name(metric: MetricTemplate) -> str:
    """The name in telemetry (KIP-714)."""
    group = metric.group.name.replace("-", ".").replace(".metrics", "")
    return f"org.apache.kafka.{group}.{metric.name.replace('-', '.')}"
