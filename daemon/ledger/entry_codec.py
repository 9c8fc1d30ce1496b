"""Encodes and decodes entry bodies. `daemon/ledger/segment_scan.py` has the layout around them in a segment.

The body of a control entry is one msgpack array: the fields of its NamedTuple in order. The body of a FRAME is::

    0   u32  meta_bytes    little-endian
    4   meta               msgpack array of the fields of FrameEntry
        payload            the slices, concatenated; layout in `wire/slices.py`

A later version of the spool may only append fields to an array.
"""

import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

import msgpack

from ...wire.errors import FrameError
from ...wire.messages import Anchor, BatchBounds, StampRow
from ...wire.record_ids import IdRow
from .entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    ControlEntry,
    FrameEntry,
    GrantedEntry,
    IncarnationEntry,
    Lsn,
    MinuteSnapshot,
    ParkedEntry,
    PartitionEntry,
    PartitionSnapshot,
    RangeSnapshot,
    RefusedEntry,
    SessionEntry,
    SliceEntry,
    StampRowEntry,
)

META: Final = struct.Struct("<I")


class EntryType(IntEnum):
    """The type byte of an entry."""

    FRAME = 1
    PARTITION = 2
    STAMP_ROW = 3
    GRANTED = 4
    CUTS = 5
    ACKED = 6
    PARKED = 7
    SESSION = 8
    CHECKPOINT = 9
    SYNCED = 10
    VOID = 11
    INCARNATION = 12
    REFUSED = 13


class SyncedEntry(NamedTuple):
    """Everything before `through` was on disk when this entry was written. With it, recovery distinguishes data that a
    power cut may have torn from data that must be intact."""

    through: Lsn


class VoidEntry(NamedTuple):
    """The entries from `start` to `end` are void: their sync failed, and all of them were rewritten between `end` and
    this entry."""

    start: Lsn
    end: Lsn


SpoolEntry = ControlEntry | FrameEntry | SyncedEntry | VoidEntry

_KINDS: Final[dict[type[Any], EntryType]] = {
    PartitionEntry: EntryType.PARTITION,
    StampRowEntry: EntryType.STAMP_ROW,
    GrantedEntry: EntryType.GRANTED,
    BatchBoundsEntry: EntryType.CUTS,
    AckedEntry: EntryType.ACKED,
    ParkedEntry: EntryType.PARKED,
    SessionEntry: EntryType.SESSION,
    CheckpointEntry: EntryType.CHECKPOINT,
    IncarnationEntry: EntryType.INCARNATION,
    RefusedEntry: EntryType.REFUSED,
    SyncedEntry: EntryType.SYNCED,
    VoidEntry: EntryType.VOID,
}
_UNPACK_ERRORS: Final = (ValueError, OverflowError, RecursionError, TypeError, msgpack.UnpackException)


def pack_control(entry: ControlEntry | SyncedEntry | VoidEntry) -> tuple[EntryType, bytes]:
    """Return the type and body of any entry but a frame."""
    return _KINDS[type(entry)], cast("bytes", msgpack.packb(entry, use_bin_type=True))


def pack_frame_meta(entry: FrameEntry) -> bytes:
    """Return the part of a frame's body that precedes the payload."""
    meta = cast("bytes", msgpack.packb(entry, use_bin_type=True))
    return META.pack(len(meta)) + meta


def unpack(kind: int, body: bytes | memoryview) -> tuple[SpoolEntry, int]:
    """Return the entry, and for a frame the offset of its payload in the body (else 0).

    Raises:
        FrameError: the body is not in this version's format, although its checksum is right.
    """
    try:
        return _unpack(kind, body)
    except _UNPACK_ERRORS as error:
        raise FrameError(f"an entry of type {kind} has a wrong shape: {error}") from error


def _unpack(kind: int, body: bytes | memoryview) -> tuple[SpoolEntry, int]:
    if kind == EntryType.FRAME:
        if len(body) < META.size:
            raise FrameError("a frame entry has no room for its length")
        payload = META.size + cast("int", META.unpack_from(body, 0)[0])
        if payload > len(body):
            raise FrameError("a frame entry is shorter than it says")
        frame = FrameEntry(*_array(body[META.size : payload]))
        frame = frame._replace(slices=[SliceEntry(*part) for part in frame.slices])
        if any(part.offset < 0 or part.offset + part.length > len(body) - payload for part in frame.slices):
            raise FrameError("a slice lies outside its frame entry")
        return frame, payload
    return _unpack_control(kind, _array(body)), 0


def _unpack_control(kind: int, fields: list[Any]) -> ControlEntry | SyncedEntry | VoidEntry:
    match kind:
        case EntryType.ACKED:
            partition, mark, anchor, *rest = fields
            return AckedEntry(partition, mark, Anchor(*anchor), *rest)
        case EntryType.PARTITION:
            return PartitionEntry(*fields)
        case EntryType.STAMP_ROW:
            partition, row, reason = fields
            return StampRowEntry(partition, StampRow(*row), reason)
        case EntryType.GRANTED:
            return GrantedEntry(*fields)
        case EntryType.CUTS:
            partition, cuts, facts, unknown_through = fields
            return BatchBoundsEntry(partition, [BatchBounds(*cut) for cut in cuts], facts, unknown_through)
        case EntryType.PARKED:
            partition, ordinals, code, message, letter = fields
            return ParkedEntry(partition, _pairs(ordinals), code, message, letter)
        case EntryType.SESSION:
            return _session(fields)
        case EntryType.CHECKPOINT:
            partitions, sessions, *grown = fields
            return CheckpointEntry(
                [_partition(item) for item in partitions], [_session(item) for item in sessions], *grown
            )
        case EntryType.INCARNATION:
            return IncarnationEntry(*fields)
        case EntryType.REFUSED:
            topic, minute, era, refused = fields
            return RefusedEntry(topic, minute, era, _counts(refused))
        case EntryType.SYNCED:
            return SyncedEntry(*fields)
        case EntryType.VOID:
            return VoidEntry(*fields)
        case _:
            raise FrameError(f"entry type {kind} is not known")


def _array(data: bytes | memoryview) -> list[Any]:
    fields = msgpack.unpackb(data, raw=False, use_list=True, max_ext_len=0)
    if not isinstance(fields, list):
        raise FrameError("an entry is not an array")
    return cast("list[Any]", fields)


def _pairs(items: list[Any]) -> list[tuple[int, int]]:
    return [(first, second) for first, second in items]


def _session(fields: list[Any]) -> SessionEntry:
    client_id, uid, high, gaps, last_seen_ms = fields
    return SessionEntry(client_id, uid, high, _pairs(gaps), last_seen_ms)


def _partition(fields: list[Any]) -> PartitionSnapshot:
    snapshot = PartitionSnapshot(*fields)
    return snapshot._replace(
        rows=[StampRow(*row) for row in snapshot.rows],
        batch_bounds=[BatchBounds(*cut) for cut in snapshot.batch_bounds],
        anchor=None if snapshot.anchor is None else Anchor(*snapshot.anchor),
        holes=_pairs(snapshot.holes),
        id_rows=tuple(IdRow(*row) for row in snapshot.id_rows),
    )


def _counts(items: list[Any]) -> list[tuple[str, int]]:
    return [(reason, count) for reason, count in items]


def pack_minute(minute: MinuteSnapshot) -> bytes:
    """Encode one minute of the audit counts for a checkpoint."""
    return cast("bytes", msgpack.packb(minute, use_bin_type=True))


def unpack_minute(body: bytes) -> MinuteSnapshot:
    """Decode the result of `pack_minute`.

    Raises:
        FrameError: the bytes are not a packed minute.
    """
    try:
        return _minute(_array(body))
    except _UNPACK_ERRORS as error:
        raise FrameError(f"a minute of the books has a wrong shape: {error}") from error


def _minute(fields: list[Any]) -> MinuteSnapshot:
    snapshot = MinuteSnapshot(*fields)
    ranges = [RangeSnapshot(*item) for item in snapshot.ranges]
    return snapshot._replace(
        refused=_counts(snapshot.refused),
        ranges=[part._replace(holes=[(first, end, reason) for first, end, reason in part.holes]) for part in ranges],
        outcomes=[
            (seat, delivered, nbytes, batches, resent) for seat, delivered, nbytes, batches, resent in snapshot.outcomes
        ],
    )
