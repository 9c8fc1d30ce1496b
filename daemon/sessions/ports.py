"""What intake needs of the world around it, and how it counts the records of a frame it refuses."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ...wire.frames import PartitionInfo
from ..ledger.entries import FrameEntry
from ..ledger.slices import FrameLocation, PendingSlice
from .routing import TopicFacts

_ARRAY_16: Final = 0xDC
_ARRAY_32: Final = 0xDD
_SCALAR_BYTES: Final = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
"""Sizes of msgpack's numbers that take more than a byte."""


class FrameStore(Protocol):
    """Where frames are written."""

    def append_frame(self, entry: FrameEntry, payloads: Sequence[bytearray], *, created_ms: int) -> FrameLocation:
        """Stage one frame, taken at `created_ms` (CLOCK_MONOTONIC). The payloads are the store's from now on.

        Raises:
            NoSpaceError: the disk is full.
            SpoolFullError: the spool is at its limit.
        """
        ...


class Topics(Protocol):
    """What brokers said of topics."""

    def want(self, topic: str) -> None:
        """Ask about the topic; cheap when that is known or under way."""
        ...

    def facts(self, topic: str) -> TopicFacts | None: ...

    def error(self, topic: str) -> str | None:
        """What a live broker said when it did not know the topic."""
        ...

    def invalid(self, topic: str) -> str | None:
        """What a live broker said when no topic may have this name."""
        ...

    def problem(self, topic: str) -> str | None:
        """What stands in the way of knowing the topic, in words."""
        ...

    def partitions(self, topic: str) -> list[PartitionInfo] | None: ...


class Delivery(Protocol):
    """Who gets slices delivered."""

    def push(self, piece: PendingSlice) -> None: ...

    def flush(self, through: list[tuple[int, int]]) -> None:
        """No linger for these partitions up to these ordinals, these included."""
        ...


class IntakeLimits(NamedTuple):
    """What the settings say, in the units used here."""

    announced: dict[str, int]
    header_count_max: int
    max_block_s: float
    ignore_keys: bool
    refuse_when_full: bool
    own_topic: str | None = None
    """Where the router tells of the others' records: clients may not write there."""


class FrameIdentity(NamedTuple):
    """Whose frame it is, as its entry says."""

    client_id: str | None
    uid: int
    seq: int
    previous: int
    level: int


class ClockReading(NamedTuple):
    """Both clocks as of the round. `mono_ms` is `now` in whole ms."""

    wall_ms: int
    mono_ms: int


def frame_records(buffer: bytearray, at: int, end: int) -> int:
    """How many records a SEND holds whose columns begin at `at`: the length of its first column that is an array. 0 where that
    cannot be told; only for counting what is refused."""
    for _ in ("partitions", "keys", "values"):
        if at >= end:
            return 0
        tag = buffer[at]
        if tag & 0xF0 == 0x90:
            return tag & 0x0F
        if tag == _ARRAY_16 and end - at >= 3:
            return int.from_bytes(buffer[at + 1 : at + 3], "big")
        if tag == _ARRAY_32 and end - at >= 5:
            return min(int.from_bytes(buffer[at + 1 : at + 5], "big"), end - at)
        # nil, or one small number for all: nothing else is one of these without being an array.
        at += _SCALAR_BYTES.get(tag, 1)
    return 0
