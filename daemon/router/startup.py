"""Router start before it serves clients: lock and recover the spool, end the previous router's shards, fill the tables.

Order: take the lock, end every shard of an earlier router (LSE-7), read the log, append the facts from the journals to
the log. Only when that is written are the journals removed (JRN-7).
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from ...config.handover import topic_settings
from ...config.model import AuditSettings, Settings
from ...runtime import logs
from ...runtime.clock import monotonic, wall_ms
from ...runtime.host import boot_id
from ...wire.record_ids import incarnation_text
from ..audit.session import AuditPorts, AuditSession
from ..leases import journals
from ..leases.ownership import LeaseLimits, Leases
from ..ledger.audit_counts import AuditCounts
from ..ledger.client_sequences import ClientStateLimits
from ..ledger.counters import RouterCounters
from ..ledger.entries import CheckpointEntry, IncarnationEntry
from ..ledger.replay import with_keepalive
from ..sessions.routing import Routing
from ..spool.frame_store import SpoolFrameStore
from ..spool.identity import SpoolIdentity
from ..spool.log import Spool
from ..spool.recovery import Recovered
from ..spool.tail import SpoolLimits
from .limits import has_record_ids, keyless_choice, preferred_rack

_OWNERS_END_S: Final = 10.0
_RECALL_MS: Final = 10_000
_SEGMENT_BYTES_PER_RANGE: Final = 320
"""A range takes 20 to 50 bytes of a checkpoint, so ranges take about an eighth of a segment at most."""
_BLOCKED_RETRY_MS: Final = 1_000
_BLOCKED_RETRY_MAX_MS: Final = 60_000


class StartedRouter(NamedTuple):
    """The durable state of a recovered router."""

    identity: SpoolIdentity
    spool: Spool
    recovered: Recovered
    leases: Leases
    audit_topic: str | None = None
    """The topic to which the router publishes audit records; None: audit is off."""


def start(settings: Settings, alive: Callable[[], None] = lambda: None) -> StartedRouter:
    """Recover everything. `alive` is called repeatedly while that takes.

    Raises:
        SpoolError: the spool cannot be opened; the text includes the remedy.
        JournalError: a shard of an earlier router does not end.
    """
    log = logs.get()
    for directory in (settings.data_dir, settings.journal_dir, settings.dead_letter_dir):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = SpoolIdentity.open(settings.spool_dir, allow_unsafe_filesystem=settings.spool.allow_unsafe_filesystem)
    boot = boot_id()
    alive()
    dead = journals.kill_owners(settings.journal_dir, boot, wait_s=_OWNERS_END_S, clock=monotonic)
    limits = SpoolLimits(bytes_max=settings.spool.bytes_max, segment_bytes=settings.spool.segment_bytes)
    spool, recovered = Spool.open(
        settings.spool_dir,
        limits,
        identity=identity,
        session_limits=ClientStateLimits(retention_ms=settings.limits.session_retention_s * 1_000),
        alive=alive,
        books=new_audit_counts(settings.audit, limits),
    )
    report = recovered.report
    log.info(
        "spool_recovered",
        segments=report.segments,
        entries=report.entries,
        bytes=report.nbytes,
        torn_bytes=report.torn_bytes,
        corrupt_entries=report.corrupt_entries,
        pending_slices=len(recovered.slices),
        journals=len(dead),
        power_cut=identity.power_cut,
    )
    spool.begin(lambda: _checkpoint(recovered))
    _begin_incarnation(identity, spool, recovered)
    alive()
    leases = _leases(settings, spool, recovered)
    # Another boot without a power cut means an orderly shutdown: its batch bounds are in the log as facts (JRN-8).
    facts = not identity.power_cut and all(
        journal.is_complete or (journal.header is not None and journal.header.boot_id != boot) for journal in dead
    )
    lost = {missing.partition for missing in report.lost}
    leases.recover((slot for journal in dead for slot in journal.slots), facts=facts, lost=lost)
    reason = identity.new_producer_id_reason
    if reason is not None and recovered.ledger.by_number:
        log.warning("producer_id_replaced", reason=reason)
        leases.require_new_producer_id(reason)
    for piece in with_keepalive(recovered.slices, alive):
        leases.push(piece)
    spool.write()
    alive()
    for journal in dead:
        journals.remove(journal.path)
    if identity.producer_id is not None:
        leases.set_producer_id(identity.producer_id)
    own_topic = settings.audit.topic if settings.audit.enabled else None
    return StartedRouter(identity, spool, recovered, leases, own_topic)


def new_audit_counts(settings: AuditSettings, limits: SpoolLimits) -> AuditCounts | None:
    """Empty audit counts. A checkpoint of them starts every segment and must leave most of it to records."""
    weight_max = min(settings.ranges_max, limits.segment_bytes_effective // _SEGMENT_BYTES_PER_RANGE)
    return AuditCounts(settings.topic, weight_max=weight_max) if settings.enabled else None


def _begin_incarnation(identity: SpoolIdentity, spool: Spool, recovered: Recovered) -> None:
    """Continue under the identity's incarnation. Its entry precedes every grant, so every GRANT has it (RID-2)."""
    if recovered.ledger.incarnation != identity.incarnation:
        entry = IncarnationEntry(identity.incarnation)
        _ = spool.append(entry)
        recovered.ledger.apply(entry)
        logs.get().info("incarnation_started", incarnation=incarnation_text(identity.incarnation))


def _checkpoint(recovered: Recovered) -> CheckpointEntry:
    ledger = recovered.ledger
    return CheckpointEntry(
        ledger.snapshot(),
        recovered.clients.snapshot(now_ms=int(monotonic() * 1_000), wall_ms=wall_ms()),
        ledger.incarnation,
        ledger.accept_ms,
        ledger.era,
        None if ledger.audit_counts is None else ledger.audit_counts.snapshot(),
    )


def _leases(settings: Settings, spool: Spool, recovered: Recovered) -> Leases:
    now = monotonic()
    return Leases(
        recovered.ledger,
        SpoolFrameStore(spool),
        LeaseLimits(
            shards=settings.shards,
            shard_return_ms=settings.timeouts.shard_return_ms,
            revoke_timeout_ms=_RECALL_MS,
            retry_ms=_BLOCKED_RETRY_MS,
            retry_max_ms=_BLOCKED_RETRY_MAX_MS,
            buffer_bytes=settings.kafka.buffer_memory,
            batch_bytes=max(settings.kafka.batch_size, settings.kafka.max_request_size),
        ),
        lambda topic: topic_settings(settings, topic).on_refusal == "park",
        now=now,
        wall_offset_ms=wall_ms() - int(now * 1_000),
    )


def new_counts(started: StartedRouter) -> RouterCounters:
    """Counters that start with the recovered records, as received."""
    recovered = started.recovered
    by_number = recovered.ledger.by_number
    own = {number for number, state in by_number.items() if state.topic == started.audit_topic}
    lost = sum(found.count for found in recovered.report.lost if found.partition not in own)
    own_recovered = sum(piece.count for piece in recovered.slices if piece.frame.is_own)
    found = sum(piece.count for piece in recovered.slices) - own_recovered
    return RouterCounters(recovered=found + lost, quarantined=lost, own_recovered=own_recovered)


def new_routing(settings: Settings, started: StartedRouter, store: SpoolFrameStore, chance: random.Random) -> Routing:
    return Routing(
        started.recovered.ledger,
        store,
        checksum=crc32c,
        keyless=keyless_choice(settings.kafka, lambda: chance.getrandbits(31)),
        record_bytes_max=settings.kafka.max_request_size,
        ids_of=partial(has_record_ids, settings),
        rack=preferred_rack(settings.kafka),
    )


def new_audit(settings: Settings, started: StartedRouter, rooms: AuditPorts) -> AuditSession | None:
    """The audit session, or None if audit is off."""
    books = started.recovered.ledger.audit_counts
    return None if books is None else AuditSession(settings.audit, books, rooms, starts=started.identity.starts)
