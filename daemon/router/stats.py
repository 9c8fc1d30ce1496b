"""The content of `/stats` and `penstock status`, as plain maps and lists.

Top level: `router` (pid, start, phase, uptime_s), `records` (the sums of `daemon/ledger/counters.py`; `received` =
`refused` + `pending` + `delivered` + `parked` + `expired` + `quarantined`), `acks`, `sessions`, `spool`, `topics`
(backlog by partition), `leases` (counters, partition states), `alarms`, `nodes`, `shards`, `exited_shards` (totals of
exited shards), `metadata`, `processes` (name, pid, cpu_us, memory_bytes, descriptors). Waits are in ms, `since` in s
ago.
"""

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...runtime.starts import restarts
from ...wire.messages import ShardLoad
from ...wire.record_ids import incarnation_text
from ..leases.lease import Lease
from ..ledger.counters import ACK_BUCKETS_MS
from ..sessions.session import RouterSession, RouterSessionState

if TYPE_CHECKING:
    from .router import Router

_LEVELS: Final = ("accepted", "spooled", "delivered")
_TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_NOW: Final = {"rss_max_bytes", "descriptors", "segments_open", "buffer_bytes", "journal_slots_free"}
"""Shard counters that are gauges, not totals."""
_SESSIONS_SHOWN: Final = 1_000
_READY: Final = "ready"

StatsMap = dict[str, object]


def stats(router: "Router", now: float) -> StatsMap:
    """All statistics, as of now."""
    leases = list(router.leases.all())
    return {
        "router": {
            "pid": os.getpid(),
            "start": str(router.identity.start),
            "spool_id": router.identity.spool_id,
            "phase": router.lifecycle.phase.value,
            "uptime_s": round(now - router.started_at, 3),
            "settings_digest": router.digest,
        },
        "records": records(router),
        "acks": _acks(router),
        "sessions": _sessions(router),
        "spool": _spool(router, now),
        "topics": _topics(leases),
        "leases": {"counters": dict(router.leases.counters), "partitions": [_lease(lease, now) for lease in leases]},
        "alarms": [
            {
                "topic": alarm.topic,
                "partition": alarm.index,
                "reason": alarm.why.value,
                "text": alarm.text,
                "first": alarm.first,
                "end": alarm.end,
                "since_s": round(now - alarm.since, 1),
            }
            for alarm in router.leases.alarms.values()
        ],
        "nodes": _nodes(router),
        "shards": _shards(router),
        "exited_shards": {
            "counters": {name: n for name, n in router.leases.exited_shard_counters.items() if name not in _NOW}
        },
        "metadata": {
            "connected": router.metadata.connected_to is not None,
            "problems": dict(router.metadata.problems),
            "round_trip_us": router.metadata.round_trip_us,
            "producer_id": router.identity.producer_id,
        },
        "audit": _audit(router, now),
        "security": _security(router),
        "processes": _processes(router),
        "restarts": restarts(router.settings.runtime_dir),
    }


def _audit(router: "Router", now: float) -> StatsMap:
    """State of the audit publication. `records` are the router's own, which the sums of `records` above leave out."""
    audit, counts = router.audit, router.counts
    if audit is None:
        return {"enabled": False, "state": "off", "last_error": None}
    books = audit.audit_counts
    return {
        "enabled": True,
        "topic": router.settings.audit.topic,
        "state": audit.state.value,
        "last_error": audit.last_error,
        "incarnation": incarnation_text(books.incarnation),
        "era": books.era,
        "minutes": len(books.minutes),
        "minutes_settled": len(books.settled),
        "ordinal_ranges": books.entry_count - len(books.minutes),
        "unsettled_s": audit.unsettled_s(),
        "dropped_minutes": books.dropped_minutes,
        "refused_unpublished": books.refused_unpublished,
        "publish_rounds": audit.rounds,
        "last_publish_age_s": None if audit.last_published_at is None else round(now - audit.last_published_at, 3),
        "rounds_spool_full": audit.rounds_spool_full,
        "records_too_large": audit.records_too_large,
        "records": {
            "recovered": counts.own_recovered,
            "accepted": counts.own_accepted,
            "delivered": counts.own_delivered,
            "dead_lettered": counts.own_parked,
            "pending": counts.own_pending,
        },
    }


def _security(router: "Router") -> StatsMap:
    """Security of the broker connections, and disabled protections. It contains no user names and no paths."""
    kafka = router.settings.kafka
    return {
        "protocol": kafka.security_protocol,
        "mechanism": kafka.sasl_mechanism if kafka.uses_sasl else None,
        "insecure": list(kafka.insecure_settings()),
    }


def records(router: "Router") -> StatsMap:
    """Where every record is. `pending` is the lease table's count; the others are counted where frames are answered."""
    counts = router.counts
    return {
        "received": counts.received,
        "recovered": counts.recovered,
        "accepted": counts.accepted,
        "accepted_frames": counts.accepted_frames,
        "accepted_bytes": counts.accepted_bytes,
        "resent": counts.resent,
        "refused": sum(counts.refused.values()),
        "refused_by_code": {str(code): count for code, count in counts.refused.items()},
        "refused_frames_by_code": {str(code): count for code, count in counts.refused_frames.items()},
        "pending": router.pending_records,
        "delivered": counts.delivered,
        "dead_lettered": counts.parked,
        "expired": counts.expired,
        "quarantined": counts.quarantined,
        "possible_duplicates": router.leases.counters.get("possible_duplicates", 0),
        "dead_letters_by_error": dict(router.dead_letter_writer.records),
    }


def _acks(router: "Router") -> StatsMap:
    counts = router.counts
    shown: StatsMap = {
        level: {
            "count": counts.acks[number],
            "latency_sum_ms": counts.ack_latency[number].sum_ms,
            "buckets": [
                [bound, count] for bound, count in zip(ACK_BUCKETS_MS, counts.ack_latency[number].buckets, strict=False)
            ],
            "over_last_bucket": counts.ack_latency[number].buckets[-1],
        }
        for number, level in enumerate(_LEVELS)
    }
    shown["single_replica"] = counts.single_replica_acks
    return shown


def _sessions(router: "Router") -> StatsMap:
    sessions = list(router.listener.sessions)
    counts = router.counts
    return {
        "open": len(sessions),
        "opened": counts.sessions_opened,
        "refused": dict(counts.sessions_refused),
        "ended": {str(reason): count for reason, count in counts.sessions_ended.items()},
        "held": len(router.intake.held),
        "client_ids": len(router.sessions.by_id),
        "list": [
            _session(session)
            for session in sessions[:_SESSIONS_SHOWN]
            if session.state is not RouterSessionState.CLOSED
        ],
    }


def _session(session: RouterSession) -> StatsMap:
    return {
        "number": session.number,
        "client_id": None if session.client is None else session.client.client_id,
        "uid": session.peer.uid,
        "pid": session.peer.pid,
        "state": session.state.name.lower(),
        "unanswered_frames": len(session.unanswered),
        "unanswered_records": session.credit.records,
        "unanswered_bytes": session.credit.nbytes,
        "held_for": None if session.hold is None else session.hold.reason.name.lower(),
        "held_topic": None if session.hold is None else session.hold.topic,
    }


def _spool(router: "Router", now: float) -> StatsMap:
    spool = router.spool
    oldest_ms = spool.segments.oldest_ms()
    report = router.started.recovered.report
    return {
        "bytes": spool.bytes_used,
        "bytes_max": int(router.settings.spool.bytes_max),
        "segments": len(spool.segments.by_number),
        "pending_slices": spool.segments.pending,
        "oldest_s": 0.0 if oldest_ms is None else round(now - oldest_ms / 1_000, 3),
        "unsynced_bytes": spool.unsynced_bytes,
        "unsynced_records": spool.unsynced_records,
        "has_spare": spool.has_spare,
        "corrupt_entries": report.corrupt_entries,
        "lost_records": sum(lost.count for lost in report.lost),
        "torn_bytes": report.torn_bytes,
        "new_producer_id_reason": router.identity.new_producer_id_reason,
    }


def _topics(leases: list[Lease]) -> StatsMap:
    topics: dict[str, dict[str, object]] = {}
    for durable in (lease.durable for lease in leases):
        topic = topics.setdefault(durable.topic, {"pending": 0, "partitions": {}})
        pending = durable.next_ordinal - durable.mark
        assert isinstance(topic["pending"], int), "a sum"
        topic["pending"] += pending
        partitions = topic["partitions"]
        assert isinstance(partitions, dict), "a map"
        partitions[str(durable.index)] = pending
    return dict(topics)


def _lease(lease: Lease, now: float) -> StatsMap:
    durable, unresolved = lease.durable, lease.backlog.unresolved
    return {
        "topic": durable.topic,
        "partition": durable.index,
        "state": lease.state.value,
        "shard": lease.shard_id,
        "node": lease.node,
        "generation": lease.generation,
        "pace": lease.pace,
        "ack_mark": durable.mark,
        "next_ordinal": durable.next_ordinal,
        "slices": len(unresolved),
        "oldest_s": round(now - unresolved[0].created_ms / 1_000, 3) if unresolved else 0.0,
    }


def _nodes(router: "Router") -> list[StatsMap]:
    """The brokers, with the loads that their shards report."""
    said: dict[int, StatsMap] = {}
    for seat, load in router.leases.loads.items():
        for node in load.nodes:
            # Where lanes divide a broker, a shard with nothing to send has no connection: prefer a connected one.
            if said.get(node.node, {}).get("state") != _READY:
                said[node.node] = {"shard": seat, **node._asdict()}
    return [
        {"node": found.node, "host": found.host, "port": found.port, **said.get(found.node, {})}
        for found in router.metadata.cluster.nodes.values()
    ]


def _shards(router: "Router") -> list[StatsMap]:
    pids, loads = router.bus.pids(), router.leases.loads
    return [
        {
            "shard": seat,
            "pid": pids.get(seat),
            "counters": dict(loads[seat].counters) if seat in loads else {},
            "partitions": [part._asdict() for part in loads[seat].partitions] if seat in loads else [],
        }
        for seat in range(router.settings.shards)
    ]


def _processes(router: "Router") -> list[StatsMap]:
    shards = [
        _shard_process(seat, pid, router.leases.loads.get(seat)) for seat, pid in sorted(router.bus.pids().items())
    ]
    return [own_process(), *shards]


def own_process() -> StatsMap:
    """The router's own resource usage."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "name": "router",
        "pid": os.getpid(),
        "cpu_us": int((usage.ru_utime + usage.ru_stime) * 1e6),
        "memory_bytes": int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES,
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }


def _shard_process(seat: int, pid: int, load: ShardLoad | None) -> StatsMap:
    """Resource usage from the kernel if available, else from the shard's report, which is up to a second old."""
    told = {} if load is None else load.counters
    cpu_us, memory_bytes = told.get("cpu_us", 0), told.get("rss_max_bytes", 0)
    try:
        # The name in parentheses may contain any characters.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        cpu_us = (int(fields[11]) + int(fields[12])) * _TICK_US
        memory_bytes = int(fields[21]) * _PAGE_BYTES
    except OSError:
        pass
    return {
        "name": f"shard-{seat}",
        "pid": pid,
        "cpu_us": cpu_us,
        "memory_bytes": memory_bytes,
        "descriptors": told.get("descriptors", 0),
    }
