"""The interfaces that intake requires, and the record count of a refused frame."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ...wire.frames import PartitionInfo
from ..ledger.entries import FrameEntry
from ..ledger.slices import FrameLocation, PendingSlice
from .routing import TopicFacts

_ARRAY_16: Final = 0xDC
_ARRAY_32: Final = 0xDD
_SCALAR_BYTES: Final = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
"""Sizes of msgpack numbers that take more than one byte."""


class FrameStore(Protocol):
    """Where frames are written."""

    def append_frame(self, entry: FrameEntry, payloads: Sequence[bytearray], *, created_ms: int) -> FrameLocation:
        """Stage one frame, accepted at `created_ms` (CLOCK_MONOTONIC). The store owns the payloads from now on.

        Raises:
            NoSpaceError: the disk is full.
            SpoolFullError: the spool is at its limit.
        """
        ...


class Topics(Protocol):
    """Broker metadata of topics."""

    def want(self, topic: str) -> None:
        """Request metadata of the topic; cheap when it is known or already requested."""
        ...

    def facts(self, topic: str) -> TopicFacts | None: ...

    def error(self, topic: str) -> str | None:
        """The error of a live broker that does not know the topic."""
        ...

    def invalid(self, topic: str) -> str | None:
        """The error of a live broker that rejects the name as invalid."""
        ...

    def problem(self, topic: str) -> str | None:
        """Why the topic's metadata is missing, as text."""
        ...

    def partitions(self, topic: str) -> list[PartitionInfo] | None: ...


class Delivery(Protocol):
    """Delivers slices."""

    def push(self, piece: PendingSlice) -> None: ...

    def flush(self, through: list[tuple[int, int]]) -> None:
        """Skip linger for these partitions up to and including these ordinals."""
        ...


class IntakeLimits(NamedTuple):
    """The settings of intake, in the units it uses."""

    announced: dict[str, int]
    header_count_max: int
    max_block_s: float
    ignore_keys: bool
    refuse_when_full: bool
    own_topic: str | None = None
    """The router's own audit topic: clients may not write to it."""


class FrameIdentity(NamedTuple):
    """The sender of a frame, as its log entry records it."""

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
    """How many records a SEND contains whose columns start at `at`: the length of its first column that is an array. 0
    if unknown. Used only to count refused records."""
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
        # nil, or one small number for all records: any other type must be an array.
        at += _SCALAR_BYTES.get(tag, 1)
    return 0
