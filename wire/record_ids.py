"""The record id header, which identifies a record of a daemon. Every record that a daemon sends has one.

One Kafka header, key `penstock`, its value 23 bytes, big-endian::

    0    u8   version, 1
    1    u48  incarnation     random, never 0; of the identity under which the record was numbered
    7    u24  origin          index of the partition for which it was numbered
    10   u56  ordinal         its number in that partition
    17   u48  accept time     milliseconds since 1970 (UTC) at which the daemon accepted its frame

A shard writes it as the last header while it encodes a slice (RID-1). Incarnation, origin and ordinal are unique within
the topic to which a record was first sent: two records with the same values are the same record. The accept time only
determines the minute in which the record is counted.
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
"""Bytes that the header adds to a record, including the varints of its two sizes. A record with 63 other headers needs
one more byte for their number, and its own length may need one more."""
ADDED_BYTES_MAX: Final = FIXED_BYTES + 2
"""Maximum number of bytes that the header adds to a record."""


_HEAD: Final = bytes((2 * len(HEADER), *HEADER.encode(), 2 * BYTES))
ORDINAL_AT: Final = len(_HEAD) + 10
"""Offset of the ordinal in a whole header."""


class RecordId(NamedTuple):
    """One record's id, and the time when the daemon accepted it. `accept_ms`: milliseconds since 1970."""

    incarnation: int
    origin: int
    ordinal: int
    accept_ms: int

    @property
    def text(self) -> str:
        """The text form of the id: incarnation, origin, ordinal."""
        return f"{incarnation_text(self.incarnation)}-{self.origin}-{self.ordinal}"

    def pack(self) -> bytes:
        """Return the header's value.

        Raises:
            OverflowError: a number does not fit its field.
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
        """Return the whole header as encoded in a record: both sizes as varints, key, value.

        Raises:
            OverflowError: as for `pack`.
        """
        return _HEAD + self.pack()

    @classmethod
    def unpack(cls, value: bytes) -> "RecordId":
        """Parse the id from a header's value.

        Raises:
            FrameError: another version, or another length.
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
    """Return the incarnation of an ordinal; None: the ordinal is older than all incarnations."""
    found: int | None = None
    for row in rows:
        if row.start > ordinal:
            break
        found = row.incarnation
    return found


def incarnation_text(incarnation: int) -> str:
    """The text form of an incarnation: 12 hexadecimal digits."""
    return f"{incarnation:012x}"
