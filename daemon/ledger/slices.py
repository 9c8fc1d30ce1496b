"""Types that the router's cores exchange: pending frames and slices, and their outcomes."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...wire.frames import RefusedRecords, Run
from .entries import OWN_SEQ, ControlEntry, Lsn


class EntryLog(Protocol):
    """The log as the cores see it. The caller applies an entry to its table at once. Entries are written before any
    message or ack of the same round is sent."""

    def append(self, entry: ControlEntry) -> Lsn:
        """Append one entry and return its LSN.

        Raises:
            OSError: the log cannot be written; the process exits.
        """
        ...


@dataclass(slots=True, eq=False)
class PendingFrame:
    """An accepted frame that is not completed. Exactly one exists for each accepted frame that has unresolved slices or
    whose ack was not sent. `session`: the connection that gets the ack; None while the client is disconnected."""

    client_id: str | None
    uid: int
    seq: int
    level: int
    count: int
    nbytes: int
    lsn: Lsn
    created_ms: int
    partitions: bytes | None
    slices_left: int
    session: object | None = None
    answered: bool = False
    single_replica: bool = False
    runs: list[Run] = field(default_factory=list)
    refused: list[RefusedRecords] = field(default_factory=list)

    @property
    def is_own(self) -> bool:
        """Whether the router created the frame to publish audit records."""
        return self.seq == OWN_SEQ and self.client_id is None


@dataclass(slots=True, eq=False)
class PendingSlice:
    """The part of a frame for one partition, while any of its ordinals is unresolved."""

    partition: int
    first: int
    count: int
    segment: int
    offset: int
    length: int
    max_ts: int
    created_ms: int
    lsn: Lsn
    frame: PendingFrame

    @property
    def end(self) -> int:
        """The ordinal after the last one."""
        return self.first + self.count


class SliceEnded(NamedTuple):
    """Outcome of a slice whose ordinals are all resolved. `runs`: in record order; offset -1 if the records are in
    Kafka at an unknown offset. `parked`: (index in the slice, count, text of Kafka's error)."""

    slice: PendingSlice
    runs: list[Run]
    parked: list[tuple[int, int, str]]


class FrameLocation(NamedTuple):
    """Position of a staged frame, valid after the round's write. `offsets`: of each slice, in the segment file."""

    lsn: Lsn
    segment: int
    offsets: list[int]


class NoSpaceError(Exception):
    """The disk is full: the frame was not staged. Control entries still find space."""


class SpoolFullError(Exception):
    """The spool is at `spool.bytes_max`: the frame was not staged."""
