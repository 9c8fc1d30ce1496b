"""The reference page of the pipeline's metrics, generated from their declarations."""

from collections.abc import Iterable

from ..runtime.metrics import DaemonMetric
from . import query_metrics
from .audit import metrics as audit_metrics


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(
        [
            "# Metrics of the pipeline\n",
            "Made from `pipeline/query_metrics.py` and `pipeline/audit/metrics.py`; do not edit.\n",
            "## Of running queries\n",
            "At `/metrics` of `land` (setting `listener.listen`), in Prometheus' text format, or sent to StatsD (`listener.statsd`). Counters end in",
            "`_total` there and start at 0 with every start of the job.\n",
            *_table(query_metrics.METRICS),
            "\n## Of the last audit\n",
            "In the file `audit.metrics_file`, for the node exporter's textfile collector; how to use them:",
            "[how to read an audit](../howto/audit-report.md#watch-it). Records are those of the hours that are not sealed.\n",
            *_table(audit_metrics.METRICS),
            "",
        ]
    )


def _table(metrics: Iterable[DaemonMetric]) -> list[str]:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.text} |")
    return lines
