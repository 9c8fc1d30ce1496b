"""What the spool's log consists of. The router's durable state is the fold of these entries, live and at recovery alike.

`daemon/spool/log.py` draws the bytes; `daemon/ledger/partition_state.py` and `daemon/ledger/client_sequences.py` apply them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, NewType

from ...wire.messages import Anchor, BatchBounds, StampRow
from ...wire.record_ids import IdRow

Lsn = NewType("Lsn", int)
"""A place in the log: segment number << 32 | offset of the entry in its segment. Later entries have larger ones. A mark
("written through", "synced through") lies just behind the place of the last entry it covers: `entry < mark` is covered."""


def lsn(segment: int, offset: int) -> Lsn:
    return Lsn(segment << 32 | offset)


def segment_of(place: Lsn) -> int:
    return place >> 32


OWN_SEQ: Final = -1
"""The sequence of frames that the router made itself: clients count from 0."""


class PartitionEntry(NamedTuple):
    """A partition gets its number, or its topic a new id. `topic_id` b"": not known."""

    partition: int
    topic: str
    topic_id: bytes
    index: int  # type: ignore[assignment]


class SliceEntry(NamedTuple):
    """One slice of a frame; `offset` counts from the entry's payload, `length` includes the slice header."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]
    max_ts: int
    offset: int
    length: int


class FrameEntry(NamedTuple):
    """A frame taken. Its slices' bytes follow in the same entry, under the same checksum: they become durable together.

    `client_id` None: anonymous, then `seq` means nothing after the session; frames that the router made itself have `OWN_SEQ`.
    `previous` is the session's previous taken sequence (-1: none), so that gaps can be told. `partitions`: each record's partition index (i32 little-endian), kept only
    for sessions that want it told. `wall_ms` is the accept time (`daemon/ledger/accept_clock.py`), `era` how often that clock had been
    followed back in this incarnation. `incarnation`: under which the records were numbered, 0 where they carry no id.
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
        """The router made it, to tell of others; it is not counted itself."""
        return self.seq == OWN_SEQ and self.client_id is None


class IncarnationEntry(NamedTuple):
    """Ordinals given out from here on, of whatever partition, are given out under this incarnation (`wire/record_ids.py`)."""

    incarnation: int


class StampRowEntry(NamedTuple):
    """Synced before anything stamped with it is handed out."""

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
    """All unresolved cuts of a partition whose lease ended; replaces what was known. `facts` False: hints."""

    partition: int
    batch_bounds: list[BatchBounds]
    facts: bool
    unknown_through: int | None


class AckedEntry(NamedTuple):
    """Every ordinal below `mark` is resolved; `anchor` is the batch that proved it. The rest is for the books: which shard said
    so, of how many batches, sent how often beyond once each, and the offset behind the last record below the mark (-1: not
    known)."""

    partition: int
    mark: int
    anchor: Anchor
    log_start: int
    shard_id: int = -1
    batches: int = 0
    resent: int = 0
    offset_end: int = -1


class ParkedEntry(NamedTuple):
    """Ordinals that will never be sent, as (first, count) ranges; they lie in the dead letters under `letter`. Moves the mark
    when they begin at it; beyond the mark they become a hole, over which the mark jumps when it gets there."""

    partition: int
    ordinals: list[tuple[int, int]]
    code: int
    message: str
    letter: str


class SessionEntry(NamedTuple):
    """`gaps`: (from, to) inclusive ranges of sequences that were refused when they first came. `high` -1: the client id was
    forgotten."""

    client_id: str
    uid: int
    high: int
    gaps: list[tuple[int, int]]
    last_seen_ms: int


class PartitionSnapshot(NamedTuple):
    """One partition's durable state, whole. `holes`: (first, count) ranges beyond the mark that will never be sent. `id_rows`:
    the incarnations of its ordinals from the mark on."""

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
    """How many records of a topic clients were refused in a minute of an era, by reason: totals, which no other entry tells.
    Written before they are told."""

    topic: str
    minute: int
    era: int
    refused: list[tuple[str, int]]


class RangeSnapshot(NamedTuple):
    """Ordinals [first, end) of a partition were given out in one minute; those below `settled` are resolved. `nbytes` of rows,
    of which `counted_bytes` were counted as delivered. `holes`: (first, end, reason)."""

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
    """What is counted of a topic's minute. `outcomes`: (seat, delivered, bytes, batches, resent)."""

    topic: str
    minute: int
    era: int
    ids: bool
    refused: list[tuple[str, int]]
    ranges: list[RangeSnapshot]
    outcomes: list[tuple[int, int, int, int, int]]


class CheckpointEntry(NamedTuple):
    """First entry of every segment: all tables. Recovery folds from the oldest segment left; a checkpoint replaces the tables,
    so that segments may be removed in any order once nothing in them is pending. `incarnation`: the one in force, 0: none yet.
    `accept_ms` and `era`: of the last frame. `audit_minutes`: a packed `MinuteSnapshot` each; None: none are kept."""

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
