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
        MetricTemplate(group, f"{sensor}-rate", sensor, stats[0], f"{unit}/s", f"{text}, a second.", level),
        MetricTemplate(group, f"{sensor}-total", sensor, stats[1], unit, f"{text}.", level),
    )


def _events(group: MetricGroup, sensor: str, unit: str, text: str) -> tuple[MetricTemplate, MetricTemplate]:
    """A rate and a total of the number of recordings, whatever their values."""
    return _meter(group, sensor, unit, text, stats=(Stat.FREQUENCY, Stat.COUNT))


def _avg_and_max(group: MetricGroup, sensor: str, unit: str, text: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Mean and maximum."""
    return (
        MetricTemplate(group, f"{sensor}-avg", sensor, Stat.AVERAGE, unit, f"{text}: mean."),
        MetricTemplate(group, f"{sensor}-max", sensor, Stat.LARGEST, unit, f"{text}: largest."),
    )


def _gauge(group: MetricGroup, name: str, unit: str, text: str) -> MetricTemplate:
    return MetricTemplate(group, name, name, Stat.GAUGE, unit, text)


def _time_spent(group: MetricGroup, sensor: str, text: str) -> MetricTemplate:
    """Time spent, which is recorded in seconds."""
    return MetricTemplate(group, f"{sensor}-time-ns-total", sensor, Stat.TOTAL, "ns", text, scale=_NS)


_SENDING: Final = (
    *_avg_and_max(CLIENT, "batch-size", "bytes", "Batches as they were sent, compressed"),
    MetricTemplate(
        CLIENT,
        "compression-rate-avg",
        "compression",
        Stat.AVERAGE,
        "ratio",
        "Bytes of a batch's records as sent by those before compression: mean of the batches; 1 without compression.",
    ),
    *_avg_and_max(CLIENT, "record-queue-time", "ms", "From a batch's first record to the request it left in"),
    *_avg_and_max(CLIENT, "request-latency", "ms", "From a Produce request to its answer"),
    *_avg_and_max(CLIENT, "produce-throttle-time", "ms", "Throttle that answers asked for, ApiVersions' too"),
    *_meter(CLIENT, "record-send", "records", "Records sent; those sent again count again"),
    MetricTemplate(
        CLIENT,
        "records-per-request-avg",
        "record-send",
        Stat.AVERAGE,
        "records",
        "Records of a Produce request: mean.",
    ),
    *_meter(CLIENT, "record-retry", "records", "Records of batches that are to be sent again"),
    *_meter(CLIENT, "record-error", "records", "Records that were taken and have failed"),
    *_avg_and_max(CLIENT, "record-size", "bytes", "Largest record of a batch, before compression"),
    _gauge(CLIENT, "requests-in-flight", "requests", "Requests without an answer."),
    _gauge(CLIENT, "metadata-age", "s", "Age of the newest Metadata answer; NaN before the first."),
    *_meter(CLIENT, "batch-split", "batches", "Batches cut up because a broker found them too large"),
)
_WAITING: Final = (
    _gauge(CLIENT, "waiting-threads", "threads", "Calls that wait for memory."),
    _gauge(CLIENT, "buffer-total-bytes", "bytes", "What records may take, `buffer.memory`."),
    _gauge(CLIENT, "buffer-available-bytes", "bytes", "What is left of it."),
    MetricTemplate(
        CLIENT,
        "bufferpool-wait-ratio",
        "bufferpool-wait",
        Stat.RATE,
        "ratio",
        "Part of the time in which a call waited for memory; of several calls it adds up.",
    ),
    _time_spent(CLIENT, "bufferpool-wait", "Time that calls waited for memory."),
    *_meter(CLIENT, "buffer-exhausted", "records", "Calls that were given no memory in time"),
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
        MetricTemplate(group, "request-size-max", "request", Stat.LARGEST, "bytes", f"Requests sent{what}: largest."),
        *_events(group, "response", "responses", f"Answers read{what}"),
    )


_CONNECTIONS: Final = (
    *_meter(CLIENT, "connection-creation", "connections", "Connections made"),
    *_meter(CLIENT, "connection-close", "connections", "Connections ended"),
    _gauge(CLIENT, "connection-count", "connections", "Connections there are."),
    *_events(CLIENT, "network-io", "operations", "Writes and reads on connections"),
    *_traffic(CLIENT, ""),
    *_meter(CLIENT, "successful-authentication", "connections", "Connections that have authenticated"),
    *_meter(CLIENT, "failed-authentication", "connections", "Connections that were refused for who we are"),
    *_meter(
        CLIENT,
        "successful-reauthentication",
        "connections",
        "Times a connection has authenticated again, before its session was over",
    ),
    *_meter(CLIENT, "failed-reauthentication", "connections", "Times that was refused"),
    *_avg_and_max(CLIENT, "reauthentication-latency", "ms", "How long authenticating again took"),
)
_NODES: Final = (
    *_traffic(NODE, ", of one broker"),
    *_avg_and_max(NODE, "request-latency", "ms", "From a Produce request to its answer, of one broker"),
)
_TOPICS: Final = (
    *_meter(TOPIC, "record-send", "records", "Records sent, of one topic"),
    *_meter(TOPIC, "byte", "bytes", "Bytes of batches sent, compressed, of one topic"),
    MetricTemplate(
        TOPIC, "compression-rate", "compression", Stat.AVERAGE, "ratio", "As `compression-rate-avg`, of one topic."
    ),
    *_meter(TOPIC, "record-retry", "records", "Records to be sent again, of one topic"),
    *_meter(TOPIC, "record-error", "records", "Records that have failed, of one topic"),
)
_OWN: Final = (
    MetricTemplate(
        OWN,
        "record-rejected-total",
        "record-not-taken",
        Stat.TOTAL,
        "records",
        "Records that `send` did not take: no metadata or memory in time, too large, no such topic.",
    ),
    MetricTemplate(
        OWN,
        "record-may-be-written-total",
        "record-unsure",
        Stat.TOTAL,
        "records",
        "Of the failed records, those that may be in the log all the same.",
    ),
    MetricTemplate(
        OWN,
        "partition-alarm-total",
        "partition-alarm",
        Stat.TOTAL,
        "alarms",
        "Lines `partition_alarm` in the log: something about a partition that a person should know.",
    ),
    MetricTemplate(
        OWN,
        "log-end-probe-total",
        "probe",
        Stat.TOTAL,
        "probes",
        "Times the end of a log was looked for after a refusal.",
    ),
)
_PARTITIONS: Final = (
    *_meter(PARTITION, "record-send", "records", "Records sent, of one partition", RecordingLevel.DEBUG),
    *_meter(PARTITION, "byte", "bytes", "Bytes of batches sent, compressed, of one partition", RecordingLevel.DEBUG),
)

METRICS: Final[tuple[MetricTemplate, ...]] = (
    *_SENDING,
    *_WAITING,
    *_CONNECTIONS,
    *_NODES,
    *_TOPICS,
    MetricTemplate(COUNTS, "count", "count", Stat.GAUGE, "metrics", "Metrics there are, this one too."),
    *_OWN,
    *_PARTITIONS,
)

OMITTED_KAFKA_METRICS: Final = (
    ("select-rate, select-total", "there is no selector: one thread waits for connections, files and timers alike."),
    (
        "io-wait-time-ns-avg, io-wait-time-ns-total, io-wait-ratio",
        "the same: a wait would not say what was waited for.",
    ),
    ("io-time-ns-avg, io-time-ns-total, io-ratio", "the same; the process's CPU time says more."),
    ("io-waittime-total, iotime-total, bufferpool-wait-time-total", "Kafka's own names of old, which others replaced."),
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
