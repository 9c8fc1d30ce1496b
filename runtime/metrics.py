"""Declares every metric of the daemon once. The exporter fills them; the reference page is generated from them."""

from typing import Final, NamedTuple


class DaemonMetric(NamedTuple):
    """`kind` is counter, gauge or histogram; the exported name of a counter ends in `_total`."""

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
        "Records received from clients, plus those found in the spool when the router started.",
    ),
    DaemonMetric("penstock_records_delivered", "counter", (), "Records acknowledged by Kafka under acks=all."),
    DaemonMetric(
        "penstock_records_refused",
        "counter",
        ("reason",),
        "Records refused on arrival; no record of their frame was taken.",
    ),
    DaemonMetric(
        "penstock_records_dead_lettered",
        "counter",
        (),
        "Records that Kafka refused permanently; they are in the dead letters.",
    ),
    DaemonMetric(
        "penstock_dead_letter_records",
        "counter",
        ("reason",),
        "Records written to the dead letters, by Kafka's error.",
    ),
    DaemonMetric(
        "penstock_records_resent",
        "counter",
        (),
        "Records of frames that a client sent again after the router had already taken them.",
    ),
    DaemonMetric(
        "penstock_records_pending",
        "gauge",
        (),
        "Records taken and not yet finished. received = refused + pending + delivered + parked + corrupt.",
    ),
    DaemonMetric("penstock_acks", "counter", ("level",), "Frames acknowledged, by level."),
    DaemonMetric(
        "penstock_ack_seconds", "histogram", ("level",), "Time from a frame's arrival to its acknowledgement."
    ),
    DaemonMetric(
        "penstock_single_replica_acks",
        "counter",
        (),
        "Acknowledgements at `delivered` that only one broker guarantees (min.insync.replicas below 2).",
    ),
    DaemonMetric(
        "penstock_possible_duplicates",
        "counter",
        (),
        "Records that may have been written twice. Alert when above zero.",
    ),
    DaemonMetric("penstock_spool_bytes", "gauge", (), "Size of all segment files, in bytes."),
    DaemonMetric("penstock_spool_bytes_max", "gauge", (), "Maximum size of all segment files, in bytes."),
    DaemonMetric("penstock_spool_oldest_seconds", "gauge", (), "Age of the oldest undelivered slice."),
    DaemonMetric(
        "penstock_spool_unsynced_bytes",
        "gauge",
        (),
        "Unsynced bytes: a power cut would now lose these at level `accepted`.",
    ),
    DaemonMetric(
        "penstock_spool_unsynced_records",
        "gauge",
        (),
        "Unsynced records: a power cut would now lose these at level `accepted`.",
    ),
    DaemonMetric(
        "penstock_spool_corrupt_records",
        "counter",
        (),
        "Records in damaged entries found at start. Alert when above zero.",
    ),
    DaemonMetric(
        "penstock_audit_topic_records",
        "counter",
        (),
        "Records written for the audit topic; no other counter includes them.",
    ),
    DaemonMetric(
        "penstock_audit_topic_records_pending", "gauge", (), "Records for the audit topic that wait for Kafka."
    ),
    DaemonMetric(
        "penstock_audit_topic_missing",
        "gauge",
        (),
        "1 while the audit topic does not exist or the brokers hide it: nothing is published, and hours are not complete.",
    ),
    DaemonMetric(
        "penstock_audit_minutes",
        "gauge",
        (),
        "Topic minutes that are unsettled or not yet published for the last time.",
    ),
    DaemonMetric("penstock_audit_unsettled_seconds", "gauge", (), "Age of the oldest minute with pending records."),
    DaemonMetric(
        "penstock_audit_minutes_dropped",
        "counter",
        (),
        "Minutes dropped unpublished due to `audit.ranges_max`: their hours are never complete. Alert when above zero.",
    ),
    DaemonMetric(
        "penstock_audit_last_publish_age_seconds",
        "gauge",
        (),
        "Time since all changes were last written to the spool; -1: never.",
    ),
    DaemonMetric("penstock_sessions", "gauge", (), "Open sessions."),
    DaemonMetric("penstock_sessions_refused", "counter", ("reason",), "Connections refused."),
    DaemonMetric(
        "penstock_alarms",
        "gauge",
        ("reason",),
        "Partitions that wait for an operator or for a limit to be lifted, by reason.",
    ),
    DaemonMetric("penstock_lease_moves", "counter", (), "Leases granted again or moved to another node."),
    DaemonMetric("penstock_producer_epoch_bumps", "counter", (), "Producer epoch bumps."),
    DaemonMetric(
        "penstock_out_of_order_records",
        "counter",
        (),
        "Records held up because the broker refuses all of them as out of order. Alert when above zero.",
    ),
    DaemonMetric(
        "penstock_retries",
        "counter",
        ("reason",),
        "Batches to be sent again, by Kafka's error or another cause.",
    ),
    DaemonMetric("penstock_log_end_probes", "counter", (), "Lookups of a log's end offset after a refusal."),
    DaemonMetric("penstock_shard_exits", "counter", (), "Shard processes that ended."),
    DaemonMetric("penstock_broker_up", "gauge", ("node",), "1 while the shard's connection to the broker is ready."),
    DaemonMetric("penstock_broker_rtt_seconds", "gauge", ("node",), "Last round trip of a Produce request."),
    DaemonMetric(
        "penstock_broker_throttle_seconds",
        "gauge",
        ("node",),
        "Throttle time of the broker's last request to throttle (KIP-219).",
    ),
    DaemonMetric(
        "penstock_broker_send_blocked_seconds",
        "gauge",
        ("node",),
        "How long data that is ready for the broker has been blocked from sending.",
    ),
    DaemonMetric("penstock_batches", "counter", ("outcome",), "Produce responses for batches, by outcome."),
    DaemonMetric(
        "penstock_batch_bytes",
        "counter",
        ("state",),
        "Bytes of acknowledged batches, uncompressed (`raw`) and as sent, compressed (`sent`).",
    ),
    DaemonMetric(
        "penstock_topic_records_pending", "gauge", ("topic",), "Records pending, by topic; at most 1000 topics."
    ),
    DaemonMetric("penstock_process_cpu_seconds", "counter", ("process",), "CPU time used."),
    DaemonMetric("penstock_process_memory_bytes", "gauge", ("process",), "Resident memory."),
    DaemonMetric(
        "penstock_process_restarts", "counter", ("process",), "Restarts of the process since the daemon started."
    ),
    DaemonMetric("penstock_process_open_fds", "gauge", ("process",), "Open file descriptors."),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
TOPICS_MAX: Final = 1_000


def page() -> str:
    """Render the reference page in Markdown."""
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
