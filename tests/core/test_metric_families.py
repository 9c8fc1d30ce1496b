"""From the router's stats to Prometheus: each declared metric is set, and each figure is the one it says it is."""

from typing import Any, Final

from penstock.daemon.processes.metric_families import families
from penstock.runtime.metrics import METRICS

STATS: Final[dict[str, Any]] = {
    "records": {
        "received": 100, "delivered": 60, "dead_lettered": 3, "expired": 1, "resent": 9, "pending": 30, "possible_duplicates": 2,
        "refused_by_code": {"busy": 4, "no_metadata": 2}, "dead_letters_by_error": {"MESSAGE_TOO_LARGE": 3},
    },
    "topics": {"clicks": {"pending": 30}},
    "acks": {
        "delivered": {"count": 5, "latency_sum_ms": 2500, "buckets": [[100, 2], [500, 1]], "over_last_bucket": 2},
        "single_replica": 7,
    },
    "spool": {
        "bytes": 1000, "bytes_max": 9000, "oldest_s": 2.5, "unsynced_bytes": 300, "unsynced_records": 12, "lost_records": 4,
    },
    "audit": {
        "state": "missing", "minutes": 11, "unsettled_s": 120, "dropped_minutes": 3, "last_publish_age_s": 1.5,
        "records": {"accepted": 21, "pending": 5},
    },
    "sessions": {"open": 2, "refused": {"limit": 1}},
    "alarms": [{"reason": "gap"}, {"reason": "gap"}, {"reason": "halted"}],
    "leases": {"counters": {"grants": 3, "moves": 4, "producer_epoch_bumps": 5, "gap_records": 6, "shard_exits": 7}},
    "nodes": [
        {"node": 1, "state": "ready", "round_trip_us": 1500, "throttle_ms": 20, "send_blocked_ms": 40},
        {"node": 2},
    ],
    "shards": [
        {"counters": {
            "batches_acked": 10, "requests_lost": 1, "answers_retry": 2, "bytes_uncompressed": 500, "bytes_sent": 200, "probes": 1,
            "retries_not_enough_replicas": 2, "retries_connection_lost": 1, "splits": 1,
        }},
        {"counters": {"batches_acked": 5, "probes": 2, "retries_not_enough_replicas": 4}},
    ],
    "exited_shards": {"counters": {"batches_acked": 100, "probes": 20, "bytes_uncompressed": 1000, "retries_connection_lost": 10}},
    "processes": [{"name": "router", "cpu_us": 2_000_000, "memory_bytes": 77, "descriptors": 8}],
    "restarts": {"router": 0, "shard-0": 2},
}  # fmt: skip


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families(STATS)
        for sample in family.samples
    }


def test_every_declared_metric_is_set_and_no_other() -> None:
    shown = {family.name: family for family in families(STATS)}
    assert set(shown) == {metric.name for metric in METRICS}
    assert [name for name, family in shown.items() if not family.samples] == []


def test_figures_are_those_of_the_stats() -> None:
    found = samples()
    expected = {
        ("penstock_up", ()): 1,
        ("penstock_records_received_total", ()): 100,
        ("penstock_audit_topic_records_total", ()): 21,
        ("penstock_audit_topic_records_pending", ()): 5,
        ("penstock_audit_topic_missing", ()): 1,
        ("penstock_audit_minutes", ()): 11,
        ("penstock_audit_unsettled_seconds", ()): 120,
        ("penstock_audit_minutes_dropped_total", ()): 3,
        ("penstock_audit_last_publish_age_seconds", ()): 1.5,
        ("penstock_records_delivered_total", ()): 60,
        ("penstock_records_dead_lettered_total", ()): 3,
        ("penstock_records_refused_total", (("reason", "busy"),)): 4,
        ("penstock_dead_letter_records_total", (("reason", "message_too_large"),)): 3,
        ("penstock_spool_unsynced_records", ()): 12,
        ("penstock_spool_corrupt_records_total", ()): 4,
        ("penstock_out_of_order_records_total", ()): 6,
        ("penstock_lease_moves_total", ()): 7,
        ("penstock_retries_total", (("reason", "not_enough_replicas"),)): 6,
        ("penstock_retries_total", (("reason", "connection_lost"),)): 11,
        ("penstock_log_end_probes_total", ()): 23,
        ("penstock_batches_total", (("outcome", "acked"),)): 115,
        ("penstock_batch_bytes_total", (("state", "raw"),)): 1500,
        ("penstock_process_restarts_total", (("process", "shard-0"),)): 2,
        ("penstock_process_restarts_total", (("process", "router"),)): 0,
        ("penstock_broker_up", (("node", "1"),)): 1,
        ("penstock_broker_up", (("node", "2"),)): 0,
        ("penstock_broker_throttle_seconds", (("node", "1"),)): 0.02,
        ("penstock_ack_seconds_bucket", (("le", "0.5"), ("level", "delivered"))): 3,
        ("penstock_ack_seconds_sum", (("level", "delivered"),)): 2.5,
        ("penstock_alarms", (("reason", "gap"),)): 2,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_a_router_that_does_not_answer_is_all_there_is_to_say() -> None:
    assert [(family.name, family.samples[0].value) for family in families(None)] == [("penstock_up", 0.0)]
