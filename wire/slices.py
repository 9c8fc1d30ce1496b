"""The layout of a slice: the records of one frame for one partition, as the router writes and the shards read them.

All numbers little-endian::

    0   u32  crc          CRC-32C over: topic (UTF-8), partition index (i32), bytes 4 … end of the rows
    4   u8   version      1
    5   u8   flags        bit 0: each row begins with its own timestamp; bit 1: records carry an id (`record_ids.py`)
    6   u16  zero
    8   i64  first        ordinal of the first record
    16  u32  count        records, at least 1
    20  u32  rows_bytes   bytes of rows that follow the header
    24  i64  wall_ms      when the router accepted the frame, ms since 1970; does not follow a clock set back a little
    32  i64  base_ts      timestamp of every row (bit 0 clear), else of the first row; ms since 1970
    40  i64  max_ts       largest timestamp of the rows; ms since 1970
    48  rows

    row: [i64 timestamp, if bit 0] u32 body_bytes, body
    body: Kafka's record format v2 from the key on: zig-zag varint key length (-1: null), key, varint value length
          (-1: null), value, varint header count, and per header varint name length, name, varint value length
          (-1: null), value

The checksum covers topic and partition because a record batch names neither: only this check detects a slice read for
the wrong lease. A crash may leave any prefix of a slice on disk; the spool's own entry checksum detects that.
"""

import struct
from typing import Final, NamedTuple

from .errors import FrameError

VERSION: Final = 1
OWN_TIMESTAMPS: Final = 1
RECORD_IDS: Final = 2
"""Set when the slice's records have ids, so that a resent record keeps its id even if the settings have changed
(RID-3)."""
HEADER: Final = struct.Struct("<IBBHqIIqqq")
HEADER_BYTES: Final = HEADER.size
CRC_FROM: Final = 4
_PARTITION: Final = struct.Struct("<i")

assert HEADER_BYTES == 48


class SliceHeader(NamedTuple):
    """The fixed part of a slice. `crc` is 0 until the slice is sealed."""

    crc: int
    version: int
    flags: int
    zero: int
    first: int
    count: int  # type: ignore[assignment]
    rows_bytes: int
    wall_ms: int
    base_ts: int
    max_ts: int


def segment_name(segment: int) -> str:
    """File name of a segment inside the spool's folder. The router writes the file; shards read it."""
    return f"{segment:016x}.seg"


def crc_prefix(topic: str, index: int) -> bytes:
    """The bytes that precede the slice's own bytes in its checksum. Compute them once per partition."""
    return topic.encode() + _PARTITION.pack(index)


def read_header(data: bytes | bytearray | memoryview) -> SliceHeader:
    """Unpack and check the fixed part.

    Raises:
        FrameError: too short, another version, or inconsistent lengths.
    """
    if len(data) < HEADER_BYTES:
        raise FrameError(f"a slice of {len(data)} bytes is shorter than its header")
    header = SliceHeader._make(HEADER.unpack_from(data, 0))
    if header.version != VERSION or header.zero != 0:
        raise FrameError(f"slice version {header.version} is not known")
    if header.count < 1 or header.rows_bytes != len(data) - HEADER_BYTES:
        raise FrameError("the slice's count or length is wrong")
    return header
