"""The record id header: which record of which daemon this is, on every record that a daemon sends.

One Kafka header, key `penstock`, its value 23 bytes, big-endian::

    0    u8   version, 1
    1    u48  incarnation     random, never 0; of the identity under which the record was numbered
    7    u24  origin          index of the partition for which it was numbered
    10   u56  ordinal         its number in that partition
    17   u48  accept time     milliseconds since 1970 (UTC) at which the daemon took its frame

A shard writes it as the last header while it encodes a slice (RID-1). Incarnation, origin and ordinal are unique within the topic to which a record was first sent: whoever meets them twice has met
the same record twice. The accept time says into which minute the record is counted, nothing else.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from .errors import FrameError

HEADER: Final = "penstock"
VERSION: Final = 1
BYTES: Final = 23
INCARNATION_BITS: Final = 48
ORIGIN_MAX: Final = (1 << 24) - 1
ORDINAL_MAX: Final = (1 << 56) - 1
ACCEPT_MS_MAX: Final = (1 << 48) - 1
FIXED_BYTES: Final = 2 + len(HEADER) + BYTES
"""What the header adds to a record, the varints of its two sizes included; a record of 63 headers takes one byte more for their
number, and its own length may take one more."""
ADDED_BYTES_MAX: Final = FIXED_BYTES + 2
"""What a record grows by at most."""


_HEAD: Final = bytes((2 * len(HEADER), *HEADER.encode(), 2 * BYTES))
ORDINAL_AT: Final = len(_HEAD) + 10
"""Where the ordinal lies in a whole header."""


class RecordId(NamedTuple):
    """One record's id, and when the daemon took it. `accept_ms`: milliseconds since 1970."""

    incarnation: int
    origin: int
    ordinal: int
    accept_ms: int

    @property
    def text(self) -> str:
        """The id as people write it: incarnation, origin, ordinal."""
        return f"{incarnation_text(self.incarnation)}-{self.origin}-{self.ordinal}"

    def pack(self) -> bytes:
        """The header's value.

        Raises:
            OverflowError: a number that its field cannot hold.
        """
        return b"".join(
            (
                VERSION.to_bytes(1, "big"),
                self.incarnation.to_bytes(6, "big"),
                self.origin.to_bytes(3, "big"),
                self.ordinal.to_bytes(7, "big"),
                self.accept_ms.to_bytes(6, "big"),
            )
        )

    def header(self) -> bytes:
        """The whole header as a record has it: both sizes as varints, key, value.

        Raises:
            OverflowError: as for `pack`.
        """
        return _HEAD + self.pack()

    @classmethod
    def unpack(cls, value: bytes) -> "RecordId":
        """The id in a header's value.

        Raises:
            FrameError: it is of another version, or has another length.
        """
        if value and value[0] != VERSION:
            raise FrameError(f"a record id of version {value[0]}; this program knows version {VERSION}")
        if len(value) != BYTES:
            raise FrameError(f"a record id has {BYTES} bytes, not {len(value)}")
        numbers = [int.from_bytes(value[start:end], "big") for start, end in ((1, 7), (7, 10), (10, 17), (17, 23))]
        return cls(*numbers)


class IdRow(NamedTuple):
    """From ordinal `start` on, records are numbered under this incarnation."""

    start: int
    incarnation: int


def incarnation_at(rows: Sequence[IdRow], ordinal: int) -> int | None:
    """The incarnation under which an ordinal was given out; None: it was before there were any."""
    found: int | None = None
    for row in rows:
        if row.start > ordinal:
            break
        found = row.incarnation
    return found


def incarnation_text(incarnation: int) -> str:
    """An incarnation as people write it: 12 hexadecimal digits."""
    return f"{incarnation:012x}"
