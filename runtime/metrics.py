"""Every metric, declared once. The exporter fills them from the router's stats; the reference page is made from here."""

from typing import Final, NamedTuple


class DaemonMetric(NamedTuple):
    """`kind` is counter, gauge or histogram; counters get `_total` when they are shown."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


METRICS: Final[tuple[DaemonMetric, ...]] = (
    DaemonMetric("penstock_up", "gauge", (), "1 while the router answers."),
    DaemonMetric(
        "penstock_records_received",
        "counter",
        (),
        "Records read from clients, and those found in the spool at the router's start.",
    ),
    DaemonMetric("penstock_records_delivered", "counter", (), "Records acknowledged by Kafka under acks=all."),
    DaemonMetric(
        "penstock_records_refused",
        "counter",
        ("reason",),
        "Records refused when they came; nothing of their frame was taken.",
    ),
    DaemonMetric(
        "penstock_records_dead_lettered", "counter", (), "Records Kafka refused for good; they lie in the dead letters."
    ),
    DaemonMetric(
        "penstock_dead_letter_records",
        "counter",
        ("reason",),
        "The same by Kafka's error, counted as they are written there.",
    ),
    DaemonMetric(
        "penstock_records_resent", "counter", (), "Records of frames a client sent again and that were known already."
    ),
    DaemonMetric(
        "penstock_records_pending",
        "gauge",
        (),
        "Records taken and not at their end. received = refused + pending + delivered + parked + corrupt ones.",
    ),
    DaemonMetric("penstock_acks", "counter", ("level",), "Frames answered at a level."),
    DaemonMetric("penstock_ack_seconds", "histogram", ("level",), "Time from a frame's arrival to its answer."),
    DaemonMetric(
        "penstock_single_replica_acks",
        "counter",
        (),
        "Answers at `delivered` that are one broker's word only (min.insync.replicas below 2).",
    ),
    DaemonMetric(
        "penstock_possible_duplicates",
        "counter",
        (),
        "Records that may be in the log twice, by a rule that allows no better. 0, or look.",
    ),
    DaemonMetric("penstock_spool_bytes", "gauge", (), "Bytes of segment files."),
    DaemonMetric("penstock_spool_bytes_max", "gauge", (), "Bytes the segment files may reach."),
    DaemonMetric("penstock_spool_oldest_seconds", "gauge", (), "Age of the oldest slice that is not delivered."),
    DaemonMetric(
        "penstock_spool_unsynced_bytes", "gauge", (), "Bytes a power cut would cost the level `accepted` right now."
    ),
    DaemonMetric("penstock_spool_unsynced_records", "gauge", (), "The same in records."),
    DaemonMetric(
        "penstock_spool_corrupt_records",
        "counter",
        (),
        "Records of damaged entries found at the start. 0, or an alarm.",
    ),
    DaemonMetric(
        "penstock_audit_topic_records", "counter", (), "Records written for the audit topic; no other counter has them."
    ),
    DaemonMetric("penstock_audit_topic_records_pending", "gauge", (), "The same, waiting for Kafka."),
    DaemonMetric(
        "penstock_audit_topic_missing",
        "gauge",
        (),
        "1 while brokers know no audit topic, or do not show it: nothing is told, and hours are not complete.",
    ),
    DaemonMetric(
        "penstock_audit_minutes", "gauge", (), "Minutes of topics that are not settled, or not told for the last time."
    ),
    DaemonMetric(
        "penstock_audit_unsettled_seconds", "gauge", (), "How far the oldest minute with something pending lies back."
    ),
    DaemonMetric(
        "penstock_audit_minutes_dropped",
        "counter",
        (),
        "Minutes forgotten untold because of `audit.ranges_max`: their hours can never be called complete. 0, or look.",
    ),
    DaemonMetric(
        "penstock_audit_last_publish_age_seconds",
        "gauge",
        (),
        "Since everything that had changed was last spooled; -1: never.",
    ),
    DaemonMetric("penstock_sessions", "gauge", (), "Open sessions."),
    DaemonMetric("penstock_sessions_refused", "counter", ("reason",), "Connections refused."),
    DaemonMetric(
        "penstock_alarms", "gauge", ("reason",), "Partitions that wait for an operator or for a limit to be lifted."
    ),
    DaemonMetric("penstock_lease_moves", "counter", (), "Leases granted anew or moved to another node."),
    DaemonMetric("penstock_producer_epoch_bumps", "counter", (), "Producer epochs spent."),
    DaemonMetric(
        "penstock_out_of_order_records",
        "counter",
        (),
        "Records held up because the broker refuses all of them as out of order. 0, or an alarm.",
    ),
    DaemonMetric(
        "penstock_retries",
        "counter",
        ("reason",),
        "Batches that were sent and have to be sent again, by Kafka's error or what else happened.",
    ),
    DaemonMetric("penstock_log_end_probes", "counter", (), "Times the end of a log was looked for after a refusal."),
    DaemonMetric("penstock_shard_exits", "counter", (), "Shard processes that ended."),
    DaemonMetric("penstock_broker_up", "gauge", ("node",), "1 while the shard's connection to the broker is ready."),
    DaemonMetric("penstock_broker_rtt_seconds", "gauge", ("node",), "Last round trip of a Produce request."),
    DaemonMetric(
        "penstock_broker_throttle_seconds", "gauge", ("node",), "Throttle the broker asked for last (KIP-219)."
    ),
    DaemonMetric(
        "penstock_broker_send_blocked_seconds",
        "gauge",
        ("node",),
        "For how long something has been ready for the broker and could not be sent.",
    ),
    DaemonMetric("penstock_batches", "counter", ("outcome",), "Answers to batches, by what they meant."),
    DaemonMetric(
        "penstock_batch_bytes", "counter", ("state",), "Bytes of acknowledged batches, raw and as sent (compressed)."
    ),
    DaemonMetric(
        "penstock_topic_records_pending", "gauge", ("topic",), "Records pending, by topic; at most 1000 topics."
    ),
    DaemonMetric("penstock_process_cpu_seconds", "counter", ("process",), "CPU time used."),
    DaemonMetric("penstock_process_memory_bytes", "gauge", ("process",), "Resident memory."),
    DaemonMetric(
        "penstock_process_restarts", "counter", ("process",), "Times it was started again since the daemon's start."
    ),
    DaemonMetric("penstock_process_open_fds", "gauge", ("process",), "Open descriptors."),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
TOPICS_MAX: Final = 1_000


def page() -> str:
    """The reference page, Markdown."""
    lines = [
        "# Metrics\n",
        "Made from `runtime/metrics.py`; do not edit. At `/metrics` of the exporter, in Prometheus' text format; counters end in `_total`",
        "there. They start at 0 with every start of the router.\n",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.text} |")
    return "\n".join(lines) + "\n"
