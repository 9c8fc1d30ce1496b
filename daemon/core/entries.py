"""What the spool's log consists of. The router's durable state is the fold of these entries, live and at recovery alike.

`daemon/spool.py` draws the bytes; `ledger.py` and `sessions.py` apply them.
"""

from typing import NamedTuple, NewType

from ...wire.messages import Anchor, Cut, Row

Lsn = NewType("Lsn", int)
"""A place in the log: segment number << 32 | offset of the entry in its segment. Later entries have larger ones. A mark
("written through", "synced through") lies just behind the place of the last entry it covers: `entry < mark` is covered."""


def lsn(segment: int, offset: int) -> Lsn:
    return Lsn(segment << 32 | offset)


def segment_of(place: Lsn) -> int:
    return place >> 32


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

    `client_id` None: anonymous, then `seq` means nothing after the session. `previous` is the session's previous taken
    sequence (-1: none), so that gaps can be told. `partitions`: each record's partition index (i32 little-endian), kept only
    for sessions that want it told.
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


class StampRowEntry(NamedTuple):
    """Synced before anything stamped with it is handed out."""

    partition: int
    row: Row
    reason: str


class GrantedEntry(NamedTuple):
    partition: int
    generation: int
    seat: int
    node: int
    leader_epoch: int


class CutsEntry(NamedTuple):
    """All unresolved cuts of a partition whose lease ended; replaces what was known. `facts` False: hints."""

    partition: int
    cuts: list[Cut]
    facts: bool
    unknown_through: int | None


class AckedEntry(NamedTuple):
    """Every ordinal below `mark` is resolved; `anchor` is the batch that proved it."""

    partition: int
    mark: int
    anchor: Anchor
    log_start: int


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
    """One partition's durable state, whole. `holes`: (first, count) ranges beyond the mark that will never be sent."""

    partition: int
    topic: str
    topic_id: bytes
    index: int  # type: ignore[assignment]
    next_ordinal: int
    mark: int
    rows: list[Row]
    cuts: list[Cut]
    cuts_are_facts: bool
    unknown_through: int | None
    anchor: Anchor | None
    log_start: int
    leader_epoch: int
    generation: int
    holes: list[tuple[int, int]]


class CheckpointEntry(NamedTuple):
    """First entry of every segment: all tables. Recovery folds from the oldest segment left; a checkpoint replaces the tables,
    so that segments may be removed in any order once nothing in them is pending."""

    partitions: list[PartitionSnapshot]
    sessions: list[SessionEntry]


ControlEntry = (
    PartitionEntry
    | StampRowEntry
    | GrantedEntry
    | CutsEntry
    | AckedEntry
    | ParkedEntry
    | SessionEntry
    | CheckpointEntry
)
Entry = ControlEntry | FrameEntry
