"""What the router's cores hand to each other: frames and slices that wait for their end, and how they ended."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...wire.frames import RefusedRecords, Run
from .entries import OWN_SEQ, ControlEntry, Lsn


class EntryLog(Protocol):
    """Where cores put durable facts. The caller applies the entry to its table at once; bytes are written before any message
    or answer of the same round goes out."""

    def append(self, entry: ControlEntry) -> Lsn:
        """Place one entry.

        Raises:
            OSError: the log cannot be written; the process ends.
        """
        ...


@dataclass(slots=True, eq=False)
class PendingFrame:
    """A frame that was taken and is not at its end. Exactly one exists for each taken frame with unresolved slices, or whose
    answer is still owed. `session` is the live connection to answer to (None: none, the client may come back)."""

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
        """The router made it, to tell of others."""
        return self.seq == OWN_SEQ and self.client_id is None


@dataclass(slots=True, eq=False)
class PendingSlice:
    """The part of a frame that goes to one partition, until every ordinal of it is resolved."""

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
        """The ordinal behind its last."""
        return self.first + self.count


class SliceEnded(NamedTuple):
    """Every ordinal of the slice is resolved. `runs` in record order (offset -1 where only known to be in the log);
    `parked`: (index in the slice, count, Kafka's error in words)."""

    slice: PendingSlice
    runs: list[Run]
    parked: list[tuple[int, int, str]]


class FrameLocation(NamedTuple):
    """Where an appended frame will lie once the round's write is made. `offsets`: of each slice, in the segment file."""

    lsn: Lsn
    segment: int
    offsets: list[int]


class NoSpaceError(Exception):
    """The disk is full: the frame was not staged. Control entries still find room."""


class SpoolFullError(Exception):
    """The spool is at `spool.bytes_max`: the frame was not staged."""
