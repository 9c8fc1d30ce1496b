"""The records of the audit topic: a daemon's account of the records it accepted, for checking that all of them arrived.

Key, UTF-8: `<incarnation, 12 hex>|<shard>|<topic>|<minute>`, followed by `|<era>` where that is not 0. Value, UTF-8:
one JSON object. `minute` counts minutes since 1970 (UTC), by the accept time of the records. `era` counts how often
minutes could repeat because the daemon's clock was set back far enough, or how often its audit counts were not kept for
a while. Shard -1 is the router. Every record is a total: for one key only the record with the highest `version` counts.
Reading a record twice or late, or skipping it and reading its successor, makes no difference.

Fields of every kind: `v` (1), `kind`, `incarnation`, `host`, `shard`, `version`, `sent_at` (ms since 1970), `era`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, cast

from .errors import FrameError

VERSION: Final = 1
ROUTER: Final = -1
"""Shard number in the router's own records."""
MINUTE_MS: Final = 60_000
RUNNING: Final = "running"
CLOSED: Final = "closed"
PARKED: Final = "parked"
EXPIRED: Final = "expired"
ABORTED: Final = "aborted"
QUARANTINED: Final = "quarantined"
HOLE_REASONS: Final = (PARKED, EXPIRED, ABORTED, QUARANTINED)
_HEX_DIGITS: Final = frozenset("0123456789abcdef")
_INCARNATION_DIGITS: Final = 12
_Raw = bytes
"""`bytes`, for classes with a field of that name."""


class AuditRange(NamedTuple):
    """Ordinals [first, end) of one origin that were assigned in this minute; those below `settled_end` are delivered,
    or holes. `offset_end`: Kafka has acknowledged nothing of the range at or above this offset; -1: not known."""

    origin: int
    first: int
    end: int
    settled_end: int
    offset_end: int


class AuditHole(NamedTuple):
    """Ordinals [first, end) of one origin that are never sent. `reason` is one of `HOLE_REASONS`."""

    origin: int
    first: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class AuditIntake:
    """Records that the router accepted for a topic in a minute. `accepted` counts records, holes included; `bytes` is
    the size of their rows in the spool. `refused`: refused records by reason. `ids` False: all or some records of the
    topic carry no id, so they can only be counted."""

    kind: ClassVar[str] = "intake"
    shard: ClassVar[int] = ROUTER

    incarnation: str
    host: str
    version: int
    sent_at: int
    topic: str
    minute: int
    era: int
    ids: bool
    accepted: int
    bytes: int
    refused: dict[str, int]
    ranges: tuple[AuditRange, ...]
    holes: tuple[AuditHole, ...]

    @property
    def settled(self) -> bool:
        """Whether nothing is pending."""
        return all(part.settled_end == part.end for part in self.ranges)

    def key(self) -> _Raw:
        """The Kafka key."""
        return _key(self.incarnation, ROUTER, self.topic, self.minute, self.era)

    def encode(self) -> _Raw:
        """The Kafka value."""
        return _json(
            self,
            topic=self.topic,
            minute=self.minute,
            ids=self.ids,
            accepted=self.accepted,
            bytes=self.bytes,
            refused=self.refused,
            ranges=self.ranges,
            holes=self.holes,
        )


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """Results of one shard for a topic's records of a minute. `batches`: counted in the minute of their last record;
    `resent`: attempts of those batches beyond each one's first."""

    kind: ClassVar[str] = "outcome"

    incarnation: str
    host: str
    version: int
    sent_at: int
    shard: int
    topic: str
    minute: int
    era: int
    delivered: int
    bytes: int
    batches: int
    resent: int

    def key(self) -> _Raw:
        """The Kafka key."""
        return _key(self.incarnation, self.shard, self.topic, self.minute, self.era)

    def encode(self) -> _Raw:
        """The Kafka value."""
        return _json(
            self,
            topic=self.topic,
            minute=self.minute,
            delivered=self.delivered,
            bytes=self.bytes,
            batches=self.batches,
            resent=self.resent,
        )


@dataclass(frozen=True, slots=True)
class AuditHeartbeat:
    """The router's progress, in ms since 1970. It accepts no more records with an accept time below `closed_before`.
    All records below `settled_before` are delivered, or holes, and their final totals were published. `state`:
    `running`, or `closed` when nothing is pending and nothing will come before the daemon starts again. `interval_s`:
    time between heartbeats."""

    kind: ClassVar[str] = "heartbeat"
    shard: ClassVar[int] = ROUTER

    incarnation: str
    host: str
    version: int
    sent_at: int
    era: int
    closed_before: int
    settled_before: int
    state: str
    interval_s: float

    def key(self) -> _Raw:
        """The Kafka key: one per incarnation, whatever its era."""
        return f"{self.incarnation}|{ROUTER}||".encode()

    def encode(self) -> _Raw:
        """The Kafka value."""
        return _json(
            self,
            closed_before=self.closed_before,
            settled_before=self.settled_before,
            state=self.state,
            interval_s=self.interval_s,
        )


AuditRecord = AuditIntake | AuditOutcome | AuditHeartbeat


def decode(key: bytes | None, value: bytes | None) -> AuditRecord:
    """Decode the audit record in a Kafka record.

    Raises:
        FrameError: not an audit record, a key that does not match its value, or a newer version.
    """
    if value is None:
        raise FrameError("an audit record has no value")
    try:
        found: object = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"an audit record is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FrameError("an audit record is not a JSON object")
    fields = cast("dict[str, object]", found)
    version = _number(fields, "v", least=1)
    if version > VERSION:
        raise FrameError(f"an audit record of version {version}; this program knows version {VERSION}")
    kind = _text(fields, "kind")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise FrameError(f"an audit record of the kind {kind!r} is not known")
    record = decoder(fields)
    if key != record.key():
        raise FrameError(f"an audit record has the key {key!r}, not {record.key()!r}")
    return record


def _key(incarnation: str, shard: int, topic: str, minute: int, era: int) -> bytes:
    text = f"{incarnation}|{shard}|{topic}|{minute}"
    return (f"{text}|{era}" if era else text).encode()


def _json(record: AuditRecord, **fields: object) -> bytes:
    whole = {
        "v": VERSION,
        "kind": record.kind,
        "incarnation": record.incarnation,
        "host": record.host,
        "shard": record.shard,
        "version": record.version,
        "sent_at": record.sent_at,
        "era": record.era,
        **fields,
    }
    return json.dumps(whole, separators=(",", ":")).encode()


# --- decoding --------------------------------------------------------------------------------------------------------


def _intake(fields: dict[str, object]) -> AuditIntake:
    _require_router(fields)
    return AuditIntake(
        **_common(fields),
        **_topic_minute(fields),
        ids=_flag(fields, "ids"),
        accepted=_number(fields, "accepted"),
        bytes=_number(fields, "bytes"),
        refused=_counts(fields, "refused"),
        ranges=tuple(_range(item) for item in _list(fields, "ranges")),
        holes=tuple(_hole(item) for item in _list(fields, "holes")),
    )


def _outcome(fields: dict[str, object]) -> AuditOutcome:
    return AuditOutcome(
        **_common(fields),
        **_topic_minute(fields),
        shard=_number(fields, "shard"),
        delivered=_number(fields, "delivered"),
        bytes=_number(fields, "bytes"),
        batches=_number(fields, "batches"),
        resent=_number(fields, "resent"),
    )


def _heartbeat(fields: dict[str, object]) -> AuditHeartbeat:
    _require_router(fields)
    state = _text(fields, "state")
    if state not in {RUNNING, CLOSED}:
        raise FrameError(f"the state {state!r} of a heartbeat is not known")
    interval_s = fields.get("interval_s")
    if not isinstance(interval_s, int | float) or isinstance(interval_s, bool) or not 0 <= interval_s < float("inf"):
        raise FrameError("the interval of a heartbeat is no number of seconds")
    return AuditHeartbeat(
        **_common(fields),
        era=_number(fields, "era"),
        closed_before=_number(fields, "closed_before"),
        settled_before=_number(fields, "settled_before"),
        state=state,
        interval_s=interval_s,
    )


_DECODERS: Final[dict[str, Callable[[dict[str, object]], AuditRecord]]] = {
    AuditIntake.kind: _intake,
    AuditOutcome.kind: _outcome,
    AuditHeartbeat.kind: _heartbeat,
}


def _common(fields: dict[str, object]) -> dict[str, Any]:
    incarnation = _text(fields, "incarnation")
    if len(incarnation) != _INCARNATION_DIGITS or not _HEX_DIGITS.issuperset(incarnation):
        raise FrameError(f"the incarnation {incarnation!r} is not {_INCARNATION_DIGITS} hexadecimal digits")
    return {
        "incarnation": incarnation,
        "host": _text(fields, "host"),
        "version": _number(fields, "version"),
        "sent_at": _number(fields, "sent_at"),
    }


def _topic_minute(fields: dict[str, object]) -> dict[str, Any]:
    return {"topic": _text(fields, "topic"), "minute": _number(fields, "minute"), "era": _number(fields, "era")}


def _require_router(fields: dict[str, object]) -> None:
    if _number(fields, "shard", least=ROUTER) != ROUTER:
        raise FrameError("a shard says what only the router can")


def _range(item: object) -> AuditRange:
    origin, first, end, settled_end, offset_end = _numbers(item, 5)
    if not (origin >= 0 and 0 <= first <= settled_end <= end and first < end and offset_end >= -1):
        raise FrameError(f"an audit record has the range {item!r}")
    return AuditRange(origin, first, end, settled_end, offset_end)


def _hole(item: object) -> AuditHole:
    parts = cast("list[object]", item) if isinstance(item, list) else []
    reason = parts[-1] if parts else None
    if not isinstance(reason, str):
        raise FrameError(f"an audit record has the hole {item!r}")
    origin, first, end = _numbers(parts[:-1], 3)
    if not (origin >= 0 and 0 <= first < end):
        raise FrameError(f"an audit record has the hole {item!r}")
    return AuditHole(origin, first, end, reason)


def _numbers(item: object, count: int) -> list[int]:
    if not isinstance(item, list):
        raise FrameError(f"an audit record has {item!r} where {count} numbers belong")
    parts = cast("list[object]", item)
    numbers = [part for part in parts if isinstance(part, int) and not isinstance(part, bool)]
    if len(parts) != count or len(numbers) != count:
        raise FrameError(f"an audit record has {item!r} where {count} numbers belong")
    return numbers


def _text(fields: dict[str, object], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str):
        raise FrameError(f"the field {name} of an audit record is not a text")
    return found


def _number(fields: dict[str, object], name: str, *, least: int = 0) -> int:
    found = fields.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise FrameError(f"the field {name} of an audit record is not a number from {least} on")
    return found


def _flag(fields: dict[str, object], name: str) -> bool:
    found = fields.get(name)
    if not isinstance(found, bool):
        raise FrameError(f"the field {name} of an audit record is neither true nor false")
    return found


def _list(fields: dict[str, object], name: str) -> list[object]:
    found = fields.get(name)
    if not isinstance(found, list):
        raise FrameError(f"the field {name} of an audit record is not a list")
    return cast("list[object]", found)


def _counts(fields: dict[str, object], name: str) -> dict[str, int]:
    found = fields.get(name)
    if not isinstance(found, dict):
        raise FrameError(f"the field {name} of an audit record is not an object")
    counts = cast("dict[str, object]", found)
    return {reason: _number(counts, reason) for reason in counts}
