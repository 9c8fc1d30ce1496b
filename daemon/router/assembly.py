"""Builds the router components that take many settings; the router wires the rest."""

import random
from functools import partial

from crc32c import crc32c

from ...config.model import Settings
from ..audit.session import AuditPorts, AuditSession
from ..ledger.counters import RouterCounters
from ..sessions.routing import Routing
from ..spool.frame_store import SpoolFrameStore
from .limits import has_record_ids, keyless_choice, preferred_rack
from .startup import StartedRouter


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
