"""Declares every metric of the direct producer once. Names and groups are those of Kafka's producer.

Values are recorded in a sensor (`producer/telemetry/sensors.py`); each metric is one statistic of a sensor. The
reference page is generated from this module.
"""

from enum import Enum, IntEnum
from typing import Final, NamedTuple


class RecordingLevel(IntEnum):
    """The `metrics.recording.level` from which a metric is kept."""

    INFO = 0
    DEBUG = 1
    TRACE = 2


class Stat(Enum):
    """The statistic that a metric takes of its sensor."""

    AVERAGE = "average in the windows"
    LARGEST = "largest in the windows"
    RATE = "a second, over the windows"
    TOTAL = "since the start"
    FREQUENCY = "how many a second, over the windows"
    COUNT = "how many since the start"
    GAUGE = "now"


class MetricGroup(NamedTuple):
    """`tags` in their order in a metric's name."""

    name: str
    tags: tuple[str, ...]


class MetricTemplate(NamedTuple):
    """`unit`: unit of the metric; `scale`: factor that converts the sensor's values to that unit."""

    group: MetricGroup
    name: str
    sensor: str
    stat: Stat
    unit: str
    description: str
    level: RecordingLevel = RecordingLevel.INFO
    scale: float = 1.0


CLIENT: Final = MetricGroup("producer-metrics", ("client-id",))
NODE: Final = MetricGroup("producer-node-metrics", ("client-id", "node-id"))
TOPIC: Final = MetricGroup("producer-topic-metrics", ("client-id", "topic"))
COUNTS: Final = MetricGroup("kafka-metrics-count", ("client-id",))
OWN: Final = MetricGroup("penstock-producer-metrics", ("client-id",))
PARTITION: Final = MetricGroup("penstock-producer-partition-metrics", ("client-id", "topic", "partition"))

_NS: Final = 1e9


def _meter(
    group: MetricGroup,
    sensor: str,
    unit: str,
    text: str,
    level: RecordingLevel = RecordingLevel.INFO,
    stats: tuple[Stat, Stat] = (Stat.RATE, Stat.TOTAL),
) -> tuple[MetricTemplate, MetricTemplate]:
    """A rate and its total."""
    return (
        MetricTemplate(group, f"{sensor}-rate", sensor, stats[0], f"{unit}/s", f"{text}, per second.", level),
        MetricTemplate(group, f"{sensor}-total", sensor, stats[1], unit, f"{text}.", level),
    )


def _events(group: MetricGroup, sensor: str, unit: str, text: str) -> tuple[MetricTemplate, MetricTemplate]:
    """A rate and a total of the number of recordings, whatever their values."""
    return _meter(group, sensor, unit, text, stats=(Stat.FREQUENCY, Stat.COUNT))


def _avg_and_max(group: MetricGroup, sensor: str, unit: str, text: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Mean and maximum."""
    return (
        MetricTemplate(group, f"{sensor}-avg", sensor, Stat.AVERAGE, unit, f"{text}: mean."),
        MetricTemplate(group, f"{sensor}-max", sensor, Stat.LARGEST, unit, f"{text}: maximum."),
    )


def _gauge(group: MetricGroup, name: str, unit: str, text: str) -> MetricTemplate:
    return MetricTemplate(group, name, name, Stat.GAUGE, unit, text)


def _time_spent(group: MetricGroup, sensor: str, text: str) -> MetricTemplate:
    """Time spent, which is recorded in seconds."""
    return MetricTemplate(group, f"{sensor}-time-ns-total", sensor, Stat.TOTAL, "ns", text, scale=_NS)


_SENDING: Final = (
    *_avg_and_max(CLIENT, "batch-size", "bytes", "Size of batches as sent, compressed"),
    MetricTemplate(
        CLIENT,
        "compression-rate-avg",
        "compression",
        Stat.AVERAGE,
        "ratio",
        "Compressed size of a batch's records divided by their uncompressed size: mean over batches; 1 without compression.",
    ),
    *_avg_and_max(CLIENT, "record-queue-time", "ms", "Time from a batch's first record to the request that carried it"),
    *_avg_and_max(CLIENT, "request-latency", "ms", "Time from a Produce request to its response"),
    *_avg_and_max(CLIENT, "produce-throttle-time", "ms", "Throttle time requested in responses, including ApiVersions"),
    *_meter(CLIENT, "record-send", "records", "Records sent, including those sent again"),
    MetricTemplate(
        CLIENT,
        "records-per-request-avg",
        "record-send",
        Stat.AVERAGE,
        "records",
        "Records per Produce request: mean.",
    ),
    *_meter(CLIENT, "record-retry", "records", "Records of batches to be sent again"),
    *_meter(CLIENT, "record-error", "records", "Records that were accepted and then failed"),
    *_avg_and_max(CLIENT, "record-size", "bytes", "Size of each batch's largest record, before compression"),
    _gauge(CLIENT, "requests-in-flight", "requests", "Requests that wait for their response."),
    _gauge(CLIENT, "metadata-age", "s", "Age of the latest Metadata response; NaN before the first."),
    *_meter(CLIENT, "batch-split", "batches", "Batches split because a broker refused them as too large"),
)
_WAITING: Final = (
    _gauge(CLIENT, "waiting-threads", "threads", "Calls that wait for memory."),
    _gauge(CLIENT, "buffer-total-bytes", "bytes", "Memory limit for records, `buffer.memory`."),
    _gauge(CLIENT, "buffer-available-bytes", "bytes", "Free part of that memory."),
    MetricTemplate(
        CLIENT,
        "bufferpool-wait-ratio",
        "bufferpool-wait",
        Stat.RATE,
        "ratio",
        "Fraction of time in which a call waited for memory; the times of concurrent calls add up.",
    ),
    _time_spent(CLIENT, "bufferpool-wait", "Time that calls waited for memory."),
    *_meter(CLIENT, "buffer-exhausted", "records", "Calls that timed out waiting for memory"),
    _time_spent(CLIENT, "flush", "Time spent in `flush`."),
    _time_spent(CLIENT, "metadata-wait", "Time that calls waited for a topic's metadata."),
    _time_spent(CLIENT, "txn-init", "Time spent in `init_transactions`."),
    _time_spent(CLIENT, "txn-begin", "Time spent in `begin_transaction`."),
    _time_spent(CLIENT, "txn-send-offsets", "Time spent in `send_offsets_to_transaction`."),
    _time_spent(CLIENT, "txn-commit", "Time spent in `commit_transaction`."),
    _time_spent(CLIENT, "txn-abort", "Time spent in `abort_transaction`."),
)


def _traffic(group: MetricGroup, what: str) -> tuple[MetricTemplate, ...]:
    """Metrics of connections."""
    return (
        *_meter(group, "outgoing-byte", "bytes", f"Bytes written{what}"),
        *_meter(group, "incoming-byte", "bytes", f"Bytes read{what}"),
        *_events(group, "request", "requests", f"Requests sent{what}"),
        MetricTemplate(group, "request-size-avg", "request", Stat.AVERAGE, "bytes", f"Requests sent{what}: mean size."),
        MetricTemplate(
            group, "request-size-max", "request", Stat.LARGEST, "bytes", f"Requests sent{what}: maximum size."
        ),
        *_events(group, "response", "responses", f"Responses read{what}"),
    )


_CONNECTIONS: Final = (
    *_meter(CLIENT, "connection-creation", "connections", "Connections opened"),
    *_meter(CLIENT, "connection-close", "connections", "Connections closed"),
    _gauge(CLIENT, "connection-count", "connections", "Open connections."),
    *_events(CLIENT, "network-io", "operations", "Writes and reads on connections"),
    *_traffic(CLIENT, ""),
    *_meter(CLIENT, "successful-authentication", "connections", "Connections that authenticated"),
    *_meter(CLIENT, "failed-authentication", "connections", "Connections that failed authentication"),
    *_meter(
        CLIENT,
        "successful-reauthentication",
        "connections",
        "Successful re-authentications of a connection before its session expired",
    ),
    *_meter(CLIENT, "failed-reauthentication", "connections", "Failed re-authentications of a connection"),
    *_avg_and_max(CLIENT, "reauthentication-latency", "ms", "Duration of re-authentication"),
)
_NODES: Final = (
    *_traffic(NODE, " (one broker)"),
    *_avg_and_max(NODE, "request-latency", "ms", "Time from a Produce request to its response (one broker)"),
)
_TOPICS: Final = (
    *_meter(TOPIC, "record-send", "records", "Records sent (one topic)"),
    *_meter(TOPIC, "byte", "bytes", "Compressed bytes of batches sent (one topic)"),
    MetricTemplate(
        TOPIC, "compression-rate", "compression", Stat.AVERAGE, "ratio", "As `compression-rate-avg`, for one topic."
    ),
    *_meter(TOPIC, "record-retry", "records", "Records to be sent again (one topic)"),
    *_meter(TOPIC, "record-error", "records", "Records that failed (one topic)"),
)
_OWN: Final = (
    MetricTemplate(
        OWN,
        "record-rejected-total",
        "record-not-taken",
        Stat.TOTAL,
        "records",
        "Records that `send` rejected: no metadata or memory in time, too large, or no such topic.",
    ),
    MetricTemplate(
        OWN,
        "record-may-be-written-total",
        "record-unsure",
        Stat.TOTAL,
        "records",
        "Failed records that may nevertheless be in the log.",
    ),
    MetricTemplate(
        OWN,
        "partition-alarm-total",
        "partition-alarm",
        Stat.TOTAL,
        "alarms",
        "`partition_alarm` log lines: problems of a partition that an operator should know about.",
    ),
    MetricTemplate(
        OWN,
        "log-end-probe-total",
        "probe",
        Stat.TOTAL,
        "probes",
        "Lookups of a log's end offset after a refusal.",
    ),
)
_PARTITIONS: Final = (
    *_meter(PARTITION, "record-send", "records", "Records sent (one partition)", RecordingLevel.DEBUG),
    *_meter(PARTITION, "byte", "bytes", "Compressed bytes of batches sent (one partition)", RecordingLevel.DEBUG),
)

METRICS: Final[tuple[MetricTemplate, ...]] = (
    *_SENDING,
    *_WAITING,
    *_CONNECTIONS,
    *_NODES,
    *_TOPICS,
    MetricTemplate(COUNTS, "count", "count", Stat.GAUGE, "metrics", "Number of metrics, including this one."),
    *_OWN,
    *_PARTITIONS,
)

OMITTED_KAFKA_METRICS: Final = (
    ("select-rate, select-total", "there is no selector: one thread waits for connections, files and timers alike."),
    (
        "io-wait-time-ns-avg, io-wait-time-ns-total, io-wait-ratio",
        "the same: a wait time would not show the cause of the wait.",
    ),
    ("io-time-ns-avg, io-time-ns-total, io-ratio", "the same; the process's CPU time is more informative."),
    ("io-waittime-total, iotime-total, bufferpool-wait-time-total", "deprecated names that Kafka has replaced."),
    (
        "successful-authentication-no-reauth-rate, -total",
        "counts connections of old clients, which only a broker can see.",
    ),
    ("app-info (version, commit-id, start-time-ms)", "texts; the package's version is `penstock --version`."),
)
"""Kafka's producer metrics that do not apply, and why."""

SENSORS: Final = frozenset((metric.group, metric.sensor) for metric in METRICS if metric.stat is not Stat.GAUGE)
GAUGES: Final = frozenset((metric.group, metric.sensor) for metric in METRICS if metric.stat is Stat.GAUGE)
BY_GROUP: Final = {
    group: tuple(metric for metric in METRICS if metric.group == group)
    for group in (CLIENT, NODE, TOPIC, COUNTS, OWN, PARTITION)
}
