"""Reads the records of a slice one by one, for dead letters and reports. The hot path uses `producer/kernel`."""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from ...wire.errors import FrameError
from ...wire.slices import CRC_FROM, HEADER_BYTES, OWN_TIMESTAMPS, SliceHeader, crc_prefix, read_header

_TIMESTAMP: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<I")
_VARINT_BYTES_MAX: Final = 10


class SliceRow(NamedTuple):
    """One record of a slice."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def check_slice(data: bytes, topic: str, index: int) -> SliceHeader:
    """Verify the length, version and checksum of a partition's slice, and return its header.

    Raises:
        FrameError: one of them is wrong.
    """
    header = read_header(data)
    if crc32c(memoryview(data)[CRC_FROM:], crc32c(crc_prefix(topic, index))) != header.crc:
        raise FrameError("the slice's checksum is wrong")
    return header


def read_rows(data: bytes) -> list[SliceRow]:
    """Return all records of a slice.

    Raises:
        FrameError: the rows do not follow the layout.
    """
    header = read_header(data)
    rows: list[SliceRow] = []
    position = HEADER_BYTES
    try:
        for _ in range(header.count):
            timestamp = header.base_ts
            if header.flags & OWN_TIMESTAMPS:
                (timestamp,) = _TIMESTAMP.unpack_from(data, position)
                position += _TIMESTAMP.size
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            rows.append(_row(timestamp, data[position : position + length], length))
            position += length
    except struct.error as error:
        raise FrameError("a slice ends inside a row") from error
    if position != len(data):
        raise FrameError("bytes behind the slice's last row")
    return rows


def _row(timestamp_ms: int, body: bytes, length: int) -> SliceRow:
    if len(body) != length:
        raise FrameError("a slice ends inside a row")
    key, at = _field(body, 0)
    value, at = _field(body, at)
    count, at = _varint(body, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _field(body, at)
        content, at = _field(body, at)
        headers.append(((name or b"").decode(errors="replace"), content))
    if at != length:
        raise FrameError("bytes behind a row's last header")
    return SliceRow(timestamp_ms, key, value, headers)


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(body, at)
    if length < 0:
        return None, at
    if at + length > len(body):
        raise FrameError("a field is longer than its row")
    return body[at : at + length], at + length


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for byte in body[at : at + _VARINT_BYTES_MAX]:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise FrameError("a number of a row does not end")
