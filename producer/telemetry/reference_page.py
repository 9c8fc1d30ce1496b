"""Generates the reference page of the direct producer's metrics from their declarations."""

from .catalogue import BY_GROUP, OMITTED_KAFKA_METRICS
from .exported_names import otlp_name, prometheus_name

_HEAD = """\
# Metrics of the direct producer

Made from `producer/telemetry/catalogue.py`; do not edit. `DirectProducer.metrics()` answers a mapping of every metric to its figure; a name is a
`MetricName(group, name, tags)`. Names and groups are those of Kafka's own producer, so dashboards keep their words; what only Penstock has is in groups
that begin with `penstock-`. [How to use them](../howto/metrics.md).

Means, maxima and rates look back over `metrics.num.samples` windows of `metrics.sample.window.ms`; without a value there they are NaN, rates are 0. Totals
count from the producer's start. A rate takes at least all windows but one as the time that has passed, so the first seconds are no burst. What is
sent again counts again in what is counted by batch or request. Tags come in the order given.

The column *Prometheus* is the name that [the collector](../howto/metrics.md#prometheus) shows; it leaves rates out, because a query makes them of totals.
*OpenTelemetry* is the name under which [brokers receive](../howto/metrics.md#brokers-that-collect-metrics) the metrics that they subscribe to.
"""


def page() -> str:
    """Return the page as Markdown."""
    lines = [_HEAD]
    for group, metrics in BY_GROUP.items():
        tags = ", ".join(f"`{tag}`" for tag in group.tags)
        lines += [f"## {group.name}\n", f"Tags: {tags}.\n"]
        lines += ["| metric | unit | level | meaning | Prometheus | OpenTelemetry |", "|---|---|---|---|---|---|"]
        for metric in metrics:
            shown = prometheus_name(metric)
            lines.append(
                f"| `{metric.name}` | {metric.unit} | {metric.level.name} | {metric.description} "
                f"| {'-' if shown is None else f'`{shown}`'} | `{otlp_name(metric)}` |"
            )
        lines.append("")
    lines += ["## What is not kept\n", "| Kafka's name | why |", "|---|---|"]
    lines += [f"| {names} | {why} |" for names, why in OMITTED_KAFKA_METRICS]
    return "\n".join(lines) + "\n"
