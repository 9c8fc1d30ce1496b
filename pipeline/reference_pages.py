"""The reference pages of `penstock-pipeline` and of its metrics, generated from their declarations (`make docs`)."""

from collections.abc import Iterable
from typing import Final

from ..runtime.command_page import options_of, sections_of
from ..runtime.metrics import DaemonMetric
from . import query_metrics
from .audit import metrics as audit_metrics
from .cli import app
from .exits import MEANINGS

_HEAD: Final = """# The command line of the pipeline

Made from the commands by `penstock.pipeline.reference_pages`; do not edit. `penstock-pipeline VERB --help` says the same. `--config` is
by default `/etc/penstock/pipeline.toml`. Logs are JSON lines on standard error; what people asked for is on standard output.
"""


def options() -> dict[str, set[str]]:
    return options_of(app)


def command_page() -> str:
    """Return the page about the command, as Markdown."""
    lines = [_HEAD, *sections_of(app, "penstock-pipeline")]
    lines += ["## Exit codes\n", "| code | name | meaning |", "|---|---|---|"]
    lines += [f"| {int(code)} | `{code.name}` | {text} |" for code, text in sorted(MEANINGS.items())]
    return "\n".join(lines) + "\n"


def metric_page() -> str:
    """Return the page about the metrics, as Markdown."""
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
