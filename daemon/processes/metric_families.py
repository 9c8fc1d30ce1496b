"""Converts the router's stats to Prometheus metrics. Only names declared in `runtime.metrics` exist."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from ...runtime.metrics import BY_NAME, TOPICS_MAX

Stats = Mapping[str, Any]
Sample = tuple[tuple[str, ...], float]

_RETRIES: Final = "retries_"


def families(stats: Stats | None) -> Iterator[Family]:
    """All metric families; without stats only `penstock_up` 0."""
    yield _family("penstock_up", [((), 0.0 if stats is None else 1.0)])
    if stats is None:
        return
    yield from _records(stats)
    yield from _acks(stats["acks"])
    yield from _spool(stats["spool"])
    yield from _sessions(stats)
    yield from _leases(stats)
    yield from _audit(stats["audit"])
    yield from _brokers(stats["nodes"])
    # Include exited shards: a sum that drops when a shard restarts would look like a counter reset.
    yield from _shards([*stats["shards"], stats["exited_shards"]])
    yield from _processes(stats["processes"])
    yield _family("penstock_process_restarts", [((name,), count) for name, count in stats["restarts"].items()])


def _family(name: str, samples: Iterable[Sample]) -> Family:
    metric = BY_NAME[name]
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.text, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _single(name: str, value: float) -> Family:
    return _family(name, [((), value)])


def _records(stats: Stats) -> Iterator[Family]:
    records = stats["records"]
    for word in ("received", "delivered", "dead_lettered", "resent", "pending"):
        yield _single(f"penstock_records_{word}", records[word])
    yield _family("penstock_records_refused", [((code,), count) for code, count in records["refused_by_code"].items()])
    letters = [((error.lower(),), count) for error, count in records["dead_letters_by_error"].items()]
    yield _family("penstock_dead_letter_records", letters)
    yield _single("penstock_possible_duplicates", records["possible_duplicates"])
    pending = [((topic,), item["pending"]) for topic, item in stats["topics"].items()]
    yield _family("penstock_topic_records_pending", pending[:TOPICS_MAX])


def _acks(acks: Stats) -> Iterator[Family]:
    levels = {level: item for level, item in acks.items() if level != "single_replica"}
    yield _family("penstock_acks", [((level,), item["count"]) for level, item in levels.items()])
    yield _single("penstock_single_replica_acks", acks["single_replica"])
    metric = BY_NAME["penstock_ack_seconds"]
    histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
    for level, item in levels.items():
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound_ms, count in item["buckets"]:
            total += count
            buckets.append((str(bound_ms / 1000), total))
        buckets.append(("+Inf", total + item["over_last_bucket"]))
        histogram.add_metric([level], buckets, item["latency_sum_ms"] / 1000)
    yield histogram


def _spool(spool: Stats) -> Iterator[Family]:
    yield _single("penstock_spool_bytes", spool["bytes"])
    yield _single("penstock_spool_bytes_max", spool["bytes_max"])
    yield _single("penstock_spool_oldest_seconds", spool["oldest_s"])
    yield _single("penstock_spool_unsynced_bytes", spool["unsynced_bytes"])
    yield _single("penstock_spool_unsynced_records", spool["unsynced_records"])
    yield _single("penstock_spool_corrupt_records", spool["lost_records"])


def _audit(audit: Stats) -> Iterator[Family]:
    """The audit metrics, all 0 where audit is off."""
    records = audit.get("records", {})
    age_s = audit.get("last_publish_age_s")
    yield _single("penstock_audit_topic_records", records.get("accepted", 0))
    yield _single("penstock_audit_topic_records_pending", records.get("pending", 0))
    yield _single("penstock_audit_topic_missing", audit["state"] == "missing")
    yield _single("penstock_audit_minutes", audit.get("minutes", 0))
    yield _single("penstock_audit_unsettled_seconds", audit.get("unsettled_s", 0))
    yield _single("penstock_audit_minutes_dropped", audit.get("dropped_minutes", 0))
    yield _single("penstock_audit_last_publish_age_seconds", -1 if age_s is None else age_s)


def _sessions(stats: Stats) -> Iterator[Family]:
    sessions = stats["sessions"]
    yield _single("penstock_sessions", sessions["open"])
    yield _family("penstock_sessions_refused", [((reason,), count) for reason, count in sessions["refused"].items()])


def _leases(stats: Stats) -> Iterator[Family]:
    why: dict[str, int] = {}
    for alarm in stats["alarms"]:
        why[alarm["reason"]] = why.get(alarm["reason"], 0) + 1
    yield _family("penstock_alarms", [((reason,), count) for reason, count in why.items()])
    counters = stats["leases"]["counters"]
    yield _single("penstock_lease_moves", counters.get("grants", 0) + counters.get("moves", 0))
    yield _single("penstock_producer_epoch_bumps", counters.get("producer_epoch_bumps", 0))
    yield _single("penstock_out_of_order_records", counters.get("gap_records", 0))
    yield _single("penstock_shard_exits", counters.get("shard_exits", 0))


def _brokers(nodes: list[Stats]) -> Iterator[Family]:
    yield _family("penstock_broker_up", [((str(node["node"]),), node.get("state") == "ready") for node in nodes])
    known = [node for node in nodes if "state" in node]
    yield _family(
        "penstock_broker_rtt_seconds", [((str(node["node"]),), node["round_trip_us"] / 1e6) for node in known]
    )
    yield _family(
        "penstock_broker_throttle_seconds", [((str(node["node"]),), node["throttle_ms"] / 1e3) for node in known]
    )
    yield _family(
        "penstock_broker_send_blocked_seconds",
        [((str(node["node"]),), node["send_blocked_ms"] / 1e3) for node in known],
    )


def _shards(shards: list[Stats]) -> Iterator[Family]:
    outcomes: dict[str, int] = {}
    retries: dict[str, int] = {}
    raw = sent = probes = 0
    for shard in shards:
        counters = shard["counters"]
        outcomes["acked"] = outcomes.get("acked", 0) + counters.get("batches_acked", 0)
        outcomes["lost"] = outcomes.get("lost", 0) + counters.get("requests_lost", 0)
        for name, count in counters.items():
            if name.startswith("answers_"):
                word = name.removeprefix("answers_")
                outcomes[word] = outcomes.get(word, 0) + count
            if name.startswith(_RETRIES):
                word = name.removeprefix(_RETRIES)
                retries[word] = retries.get(word, 0) + count
        probes += counters.get("probes", 0)
        raw += counters.get("bytes_uncompressed", 0)
        sent += counters.get("bytes_sent", 0)
    yield _family("penstock_batches", [((word,), count) for word, count in outcomes.items()])
    yield _family("penstock_retries", [((word,), count) for word, count in retries.items()])
    yield _single("penstock_log_end_probes", probes)
    yield _family("penstock_batch_bytes", [(("raw",), raw), (("sent",), sent)])


def _processes(processes: list[Stats]) -> Iterator[Family]:
    yield _family("penstock_process_cpu_seconds", [((item["name"],), item["cpu_us"] / 1e6) for item in processes])
    yield _family("penstock_process_memory_bytes", [((item["name"],), item["memory_bytes"]) for item in processes])
    yield _family("penstock_process_open_fds", [((item["name"],), item["descriptors"]) for item in processes])
