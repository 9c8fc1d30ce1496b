"""The entries of the spool's log. Folding them gives the router's durable state, both live and at recovery.

`daemon/ledger/entry_codec.py` encodes them; `daemon/ledger/partition_state.py` and `daemon/ledger/client_sequences.py`
apply them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, NewType

from ...wire.messages import Anchor, BatchBounds, StampRow
from ...wire.record_ids import IdRow

Lsn = NewType("Lsn", int)
"""Log sequence number, a position in the log: segment number << 32 | offset of the entry in its segment. It increases
with every entry. A mark ("written through", "synced through") is greater than the LSN of the last entry that it covers:
an entry is covered if `entry < mark`."""


def lsn(segment: int, offset: int) -> Lsn:
    return Lsn(segment << 32 | offset)


def segment_of(place: Lsn) -> int:
    return place >> 32


OWN_SEQ: Final = -1
"""Sequence of the frames that the router creates itself. Clients count from 0."""


class PartitionEntry(NamedTuple):
    """Assigns a partition its number, or its topic a new id. `topic_id` b"": not known."""

    partition: int
    topic: str
    topic_id: bytes
    index: int  # type: ignore[assignment]


class SliceEntry(NamedTuple):
    """One slice of a frame. `offset` is relative to the entry's payload; `length` includes the slice header."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    max_ts: int
    offset: int
    length: int


class FrameEntry(NamedTuple):
    """An accepted frame. Its slices' bytes follow in the same entry, under the same checksum, so both become durable
    together.

    `client_id` None: anonymous; `seq` then has no meaning after the session. Frames that the router created have
    `OWN_SEQ`. `previous`: the session's previously accepted sequence (-1: none), from which gaps are derived.
    `partitions`: each record's partition index (i32 little-endian), kept only for sessions that request it. `wall_ms`:
    the accept time (`daemon/sessions/staging.py`). `era`: how often that clock has gone back in this incarnation.
    `incarnation`: the incarnation under which the records are numbered, 0 if they carry no id.
    """

    client_id: str | None
    uid: int
    seq: int
    previous: int
    level: int
    wall_ms: int
    count: int  # type: ignore[assignment]
    partitions: bytes | None
    slices: list[SliceEntry]
    incarnation: int = 0
    era: int = 0

    @property
    def is_own(self) -> bool:
        """Whether the router created the frame to publish audit records. Its records are not counted themselves."""
        return self.seq == OWN_SEQ and self.client_id is None


class IncarnationEntry(NamedTuple):
    """All ordinals assigned after this entry, in any partition, belong to this incarnation (`wire/record_ids.py`)."""

    incarnation: int


class StampRowEntry(NamedTuple):
    """A new stamp row of a partition. It is synced before any record stamped with it is sent to a shard."""

    partition: int
    row: StampRow
    reason: str


class GrantedEntry(NamedTuple):
    partition: int
    generation: int
    shard_id: int
    node: int
    leader_epoch: int


class BatchBoundsEntry(NamedTuple):
    """All unresolved batch bounds of a partition whose lease ended; replaces the previous ones. `facts` False: they are
    only hints. `unknown_through`: ordinals from the mark through this one may have been sent in batches of unknown
    bounds."""

    partition: int
    batch_bounds: list[BatchBounds]
    facts: bool
    unknown_through: int | None


class AckedEntry(NamedTuple):
    """Every ordinal below `mark` is resolved; `anchor` is the batch that proves it. The fields from `shard_id` on are
    for the audit counts: the reporting shard, its number of `batches`, how many times batches were `resent`, and the
    offset after the last record below the mark (-1: not known)."""

    partition: int
    mark: int
    anchor: Anchor
    log_start: int
    shard_id: int = -1
    batches: int = 0
    resent: int = 0
    offset_end: int = -1


class ParkedEntry(NamedTuple):
    """Ordinals that will never be sent, as (first, count) ranges; their records are in the dead letter named `letter`.
    The mark moves over a range that begins at it. A range beyond the mark becomes a hole, which the mark skips on
    arrival."""

    partition: int
    ordinals: list[tuple[int, int]]
    code: int
    message: str
    letter: str


class SessionEntry(NamedTuple):
    """State of a durable client id. `gaps`: (from, to) inclusive ranges of sequences that were refused on first
    arrival. `high`: the highest accepted sequence; -1: the client id was removed."""

    client_id: str
    uid: int
    high: int
    gaps: list[tuple[int, int]]
    last_seen_ms: int


class PartitionSnapshot(NamedTuple):
    """One partition's complete durable state. `holes`: (first, count) ranges beyond the mark that will never be sent.
    `id_rows`: the incarnations of its ordinals from the mark on."""

    partition: int
    topic: str
    topic_id: bytes
    index: int  # type: ignore[assignment]
    next_ordinal: int
    mark: int
    rows: list[StampRow]
    batch_bounds: list[BatchBounds]
    batch_bounds_are_facts: bool
    unknown_through: int | None
    anchor: Anchor | None
    log_start: int
    leader_epoch: int
    generation: int
    holes: list[tuple[int, int]]
    id_rows: Sequence[IdRow] = ()


class RefusedEntry(NamedTuple):
    """Number of a topic's records refused in one minute of an era, by reason. No other entry contains these totals.
    Written before they are published."""

    topic: str
    minute: int
    era: int
    refused: list[tuple[str, int]]


class RangeSnapshot(NamedTuple):
    """Ordinals [first, end) of a partition, assigned in one minute; those below `settled` are resolved. Their rows have
    `nbytes`, of which `counted_bytes` were counted as delivered or lost. `holes`: (first, end, reason)."""

    partition: int
    index: int  # type: ignore[assignment]
    first: int
    end: int
    settled: int
    offset_end: int
    nbytes: int
    counted_bytes: int
    holes: list[tuple[int, int, str]]


class MinuteSnapshot(NamedTuple):
    """The audit counts of one topic and minute. `outcomes`: (shard id, delivered, bytes, batches, resent)."""

    topic: str
    minute: int
    era: int
    ids: bool
    refused: list[tuple[str, int]]
    ranges: list[RangeSnapshot]
    outcomes: list[tuple[int, int, int, int, int]]


class CheckpointEntry(NamedTuple):
    """All tables; the first entry of every segment. Recovery starts with the oldest remaining segment. A checkpoint
    that does not directly continue the previous segment replaces the tables, so segments can be removed in any order
    once nothing in them is pending. `incarnation`: the one in force, 0: none yet. `accept_ms` and `era`: of the last
    frame. `audit_minutes`: packed `MinuteSnapshot`s; None: auditing is off."""

    partitions: list[PartitionSnapshot]
    sessions: list[SessionEntry]
    incarnation: int = 0
    accept_ms: int = 0
    era: int = 0
    audit_minutes: Sequence[bytes] | None = None


ControlEntry = (
    PartitionEntry
    | IncarnationEntry
    | StampRowEntry
    | GrantedEntry
    | BatchBoundsEntry
    | AckedEntry
    | ParkedEntry
    | SessionEntry
    | RefusedEntry
    | CheckpointEntry
)
Entry = ControlEntry | FrameEntry
