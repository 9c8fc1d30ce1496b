"""The layout of a segment file, and the scan that finds its entries even if the file is damaged.

All numbers little-endian::

    0     header, 64 bytes
            0   8s   magic          b"PENSPOOL"
            8   u32  version        1
            12  u32  rewrites       1: after a failed sync; the first checkpoint includes the rewritten entries after it
            16  u64  spool number
            24  u64  segment number
            32  u64  router start   start number of the router that wrote the segment
            40  u64  continues      LSN (number << 32 | offset) after the last valid entry of the log when this segment
                                    was created; 0: it is the first
            48  u32  crc            CRC-32C over bytes 0 … 47
    64    entries, each at a multiple of 8

    entry 0   3s   magic          b"PSE"
          3   u8   type           `entry_codec.EntryType`
          4   u32  length         bytes of the body
          8   u32  body_crc       CRC-32C over the body
          12  u32  header_crc     CRC-32C over spool number, segment number, entry offset (u64 each), bytes 0 … 11
          16  body, then zeros up to a multiple of 8

The file is allocated in full before its first entry, so it ends in zeros until it is sealed. The last entry has no
header after it. The header has its own checksum, so its length can be trusted and a damaged body costs one entry. That
checksum also covers the position, so bytes of an entry elsewhere (in a record's value, or in a copy of another spool)
are never taken for an entry. After a damaged header, the scan continues at the next magic with a valid checksum.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ...wire.errors import FrameError

MAGIC: Final = b"PENSPOOL"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIIQQQQ")
HEADER_CRC: Final = struct.Struct("<I")
ENTRIES_AT: Final = 64
ENTRY_MAGIC: Final = b"PSE"
ENTRY: Final = struct.Struct("<3sBIII")
_ENTRY_START: Final = struct.Struct("<3sBII")
_PLACE: Final = struct.Struct("<QQQ")
ALIGNMENT: Final = 8
_LOOK_BYTES: Final = 1 << 16
_ZEROS: Final = bytes(_LOOK_BYTES)

assert HEADER.size == 48
assert ENTRY.size == 16


class SegmentHeader(NamedTuple):
    """The spool and the router start that wrote a segment, and the LSN of the log at which it continues."""

    spool: int
    segment: int
    router_start: int
    continues: int
    rewrites: bool = False


class RawEntry(NamedTuple):
    """A complete entry with valid checksums."""

    offset: int
    kind: int
    body: memoryview


class SegmentDamage(NamedTuple):
    """A range of damaged bytes: [start, end)."""

    start: int
    end: int


class SegmentScan(NamedTuple):
    """Result of a scan. `end`: offset after the last whole entry. `damages`: ranges before or between whole entries.
    `torn`: from `end` through the last byte that is not zero, if any."""

    entries: list[RawEntry]
    damages: list[SegmentDamage]
    end: int
    torn: SegmentDamage | None


def pack_segment_header(header: SegmentHeader) -> bytes:
    spool, segment, router_start, continues, rewrites = header
    start = HEADER.pack(MAGIC, VERSION, rewrites, spool, segment, router_start, continues)
    return (start + HEADER_CRC.pack(crc32c(start))).ljust(ENTRIES_AT, b"\0")


def read_segment_header(data: bytes | bytearray | memoryview) -> SegmentHeader:
    """Parse the header of a segment.

    Raises:
        FrameError: not a segment, damaged, or (`code` "version") of an unknown version.
    """
    if len(data) < ENTRIES_AT:
        raise FrameError("a segment is shorter than its header")
    magic, version, rewrites, spool, segment, router_start, continues = HEADER.unpack_from(data, 0)
    if magic != MAGIC:
        raise FrameError("not a segment of a spool")
    if HEADER_CRC.unpack_from(data, HEADER.size)[0] != crc32c(memoryview(data)[: HEADER.size]):
        raise FrameError("the checksum of the segment's header is wrong")
    if version != VERSION:
        raise FrameError(f"spool version {version}, not {VERSION}", code="version")
    return SegmentHeader(spool, segment, router_start, continues, rewrites != 0)


def padded(nbytes: int) -> int:
    """Round up to the next multiple of `ALIGNMENT`."""
    return nbytes + ALIGNMENT - 1 & -ALIGNMENT


class EntryHeaders:
    """Packs and verifies entry headers of one segment."""

    def __init__(self, spool: int, segment: int) -> None:
        self._spool = spool
        self._segment = segment

    def pack(self, offset: int, kind: int, length: int, body_crc: int) -> bytes:
        start = _ENTRY_START.pack(ENTRY_MAGIC, kind, length, body_crc)
        return start + HEADER_CRC.pack(crc32c(start, crc32c(_PLACE.pack(self._spool, self._segment, offset))))

    def read(self, data: bytes | bytearray | memoryview, offset: int) -> tuple[int, int, int] | None:
        """Return (type, length, body_crc) of the entry at an offset, or None without a valid header there."""
        if offset + ENTRY.size > len(data):
            return None
        magic, kind, length, body_crc, header_crc = ENTRY.unpack_from(data, offset)
        if magic != ENTRY_MAGIC:
            return None
        if header_crc != crc32c(
            memoryview(data)[offset : offset + _ENTRY_START.size],
            crc32c(_PLACE.pack(self._spool, self._segment, offset)),
        ):
            return None
        return kind, length, body_crc


def scan_segment(data: bytes | bytearray, spool: int, segment: int) -> SegmentScan:
    """Find every whole entry of a segment. `data` is the whole file."""
    headers = EntryHeaders(spool, segment)
    entries: list[RawEntry] = []
    damages: list[SegmentDamage] = []
    end = ENTRIES_AT
    for entry in _whole_entries(data, headers):
        if entry.offset > end:
            damages.append(SegmentDamage(end, entry.offset))
        entries.append(entry)
        end = padded(entry.offset + ENTRY.size + len(entry.body))
    last = _last_nonzero(data, end)
    return SegmentScan(entries, damages, end, None if last is None else SegmentDamage(end, last + 1))


def _whole_entries(data: bytes | bytearray, headers: EntryHeaders) -> Iterator[RawEntry]:
    view = memoryview(data)
    offset = ENTRIES_AT
    while offset < len(data):
        found = headers.read(data, offset) if offset % ALIGNMENT == 0 else None
        if found is None:
            offset = data.find(ENTRY_MAGIC, offset + 1)
            if offset < 0:
                return
            continue
        kind, length, body_crc = found
        start = offset + ENTRY.size
        body = view[start : start + length]
        if len(body) == length and crc32c(body) == body_crc:
            yield RawEntry(offset, kind, body)
        elif len(body) < length:
            # The file ends inside this entry: look for whole entries in the rest.
            offset += ALIGNMENT
            continue
        offset = padded(start + length)


def _last_nonzero(data: bytes | bytearray, start: int) -> int | None:
    """Return the offset of the last byte from `start` on that is not zero."""
    view = memoryview(data)
    high = len(data)
    while high > start:
        low = max(start, high - _LOOK_BYTES)
        piece = bytes(view[low:high])
        # Comparison is many times faster than stripping, and nearly all of a new segment is zeros.
        if piece != _ZEROS[: high - low]:
            return low + len(piece.rstrip(b"\0")) - 1
        high = low
    return None
