"""Results of the last audit, as a Prometheus text file for the node exporter's textfile collector.

All are gauges: every audit checks all unsealed hours again, so values fall when late records arrive.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from ...runtime.metrics import DaemonMetric
from ..report.data import HourRow, ReportData, Status
from ..report.verdict import ReportTotals, report_totals
from ..report.wording import hour_minute

TOPICS_MAX: Final = 1_000
OTHERS: Final = "(others)"
"""Label of the sum over all topics beyond `TOPICS_MAX`; not a valid topic name."""

_RECORDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("accepted", "accepted", "Records that daemons accepted in the audited hours."),
    ("holes", "holes", "Accepted records that will never be sent: dead-lettered, aborted, or damaged in the spool."),
    ("expected", "expected", "Records that must be in the tables: accepted minus holes."),
    ("arrived", "distinct", "Expected records that are in the tables."),
    ("lost", "lost", "Records that are lost. Alert when above zero; the report lists them."),
    ("late", "late", "Records in Kafka that `land` has not read yet."),
    ("pending", "pending", "Records that are still in a spool."),
    ("duplicated", "duplicated", "Rows beyond the first of a record id. `seal` removes them."),
    ("recovered", "recovered", "Records that a daemon had given up but that landed nevertheless."),
    ("foreign", "foreign", "Rows without a record id, from other producers."),
    (
        "without_ids",
        "counted",
        "Records accepted without ids (`audit = false`); counted in no other metric except `foreign`.",
    ),
)
"""Last part of the metric's name, the counter it comes from, and the help text."""

METRICS: Final[tuple[DaemonMetric, ...]] = (
    *(DaemonMetric(f"penstock_audit_records_{name}", "gauge", ("topic",), text) for name, _, text in _RECORDS),
    DaemonMetric(
        "penstock_audit_completeness_ratio",
        "gauge",
        ("topic",),
        "Arrived records divided by expected records; 1 if none were expected.",
    ),
    DaemonMetric("penstock_audit_topic_hours", "gauge", ("status",), "Hours of topics, by their worst status."),
    DaemonMetric(
        "penstock_audit_oldest_incomplete_timestamp_seconds",
        "gauge",
        ("topic",),
        "Start of the oldest incomplete hour; absent if all hours are complete.",
    ),
    DaemonMetric(
        "penstock_audit_latency_seconds",
        "gauge",
        ("topic", "quantile"),
        "Time from accepting a record to landing it, in the newest hour that has rows: maximum over its daemons.",
    ),
    DaemonMetric(
        "penstock_audit_incarnations",
        "gauge",
        ("state",),
        "Daemons by their last known state: running, closed, silent.",
    ),
    DaemonMetric(
        "penstock_audit_exit_code", "gauge", (), "Exit code of the run: 0, 10 late, 11 unknown, 12 duplicated, 13 lost."
    ),
    DaemonMetric(
        "penstock_audit_last_run_timestamp_seconds", "gauge", (), "Time of the last audit. Alert when it is too old."
    ),
    DaemonMetric("penstock_audit_last_run_duration_seconds", "gauge", (), "Duration of the last audit."),
)
"""The metrics of the file."""


def text(data: ReportData) -> str:
    """Render the file's content."""
    registry = CollectorRegistry()
    gauges = {metric.name: Gauge(metric.name, metric.text, metric.labels, registry=registry) for metric in METRICS}
    for topic, rows in _by_topic(data.rows).items():
        _set_topic_gauges(gauges, topic, rows)
    hours = _hours(data.rows)
    for status in Status:
        count = sum(1 for found in hours.values() if found is status)
        gauges["penstock_audit_topic_hours"].labels(status=status.value).set(count)
    for state in ("running", "closed", "silent"):
        count = sum(1 for incarnation in data.incarnations if incarnation.state == state)
        gauges["penstock_audit_incarnations"].labels(state=state).set(count)
    gauges["penstock_audit_exit_code"].set(data.exit_code)
    gauges["penstock_audit_last_run_timestamp_seconds"].set(data.ran_at_ms / 1000)
    gauges["penstock_audit_last_run_duration_seconds"].set(data.took_s)
    return generate_latest(registry).decode()


def _set_topic_gauges(gauges: Mapping[str, Gauge], topic: str, rows: list[HourRow]) -> None:
    sums = report_totals(rows)
    for name, counter, _ in _RECORDS:
        gauges[f"penstock_audit_records_{name}"].labels(topic=topic).set(getattr(sums, counter))
    ratio = sums.distinct / sums.expected if sums.expected else 1.0
    gauges["penstock_audit_completeness_ratio"].labels(topic=topic).set(ratio)
    incomplete = [
        minute
        for row in rows
        if row.status not in {Status.COMPLETE, Status.COUNTED} and (minute := hour_minute(row.hour)) is not None
    ]
    if incomplete:
        gauges["penstock_audit_oldest_incomplete_timestamp_seconds"].labels(topic=topic).set(min(incomplete) * 60)
    for quantile, value in _latency(rows).items():
        gauges["penstock_audit_latency_seconds"].labels(topic=topic, quantile=quantile).set(value)


def _latency(rows: Iterable[HourRow]) -> dict[str, float]:
    measured = [row for row in rows if row.latency_p50_s is not None and row.latency_p99_s is not None]
    if not measured:
        return {}
    newest = max(row.hour for row in measured)
    last = [row for row in measured if row.hour == newest]
    return {"0.5": max(row.latency_p50_s or 0.0 for row in last), "0.99": max(row.latency_p99_s or 0.0 for row in last)}


def _by_topic(rows: Iterable[HourRow]) -> dict[str, list[HourRow]]:
    """Group rows by topic. Beyond `TOPICS_MAX`, the topics with the fewest problems, and among them the smallest, are
    grouped together."""
    found: dict[str, list[HourRow]] = defaultdict(list)
    for row in rows:
        found[row.topic].append(row)
    if len(found) <= TOPICS_MAX:
        return dict(sorted(found.items()))

    def need(topic: str) -> tuple[int, int, str]:
        sums: ReportTotals = report_totals(found[topic])
        return -max(row.status.rank for row in found[topic]), -sums.accepted, topic

    ordered = sorted(found, key=need)
    kept = {topic: found[topic] for topic in sorted(ordered[: TOPICS_MAX - 1])}
    return kept | {OTHERS: [row for topic in ordered[TOPICS_MAX - 1 :] for row in found[topic]]}


def _hours(rows: Iterable[HourRow]) -> dict[tuple[str, str], Status]:
    """The worst status of each hour of a topic."""
    worst: dict[tuple[str, str], Status] = {}
    for row in rows:
        place = (row.topic, row.hour)
        if place not in worst or row.status.rank > worst[place].rank:
            worst[place] = row.status
    return worst
