"""Slices as the router would write them: into a segment file, or into memory."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c
from penstock.wire.messages import SliceRef
from penstock.wire.slices import CRC_FROM, HEADER, OWN_TIMESTAMPS, RECORD_IDS, VERSION, crc_prefix, segment_name

NOW_MS = 1_760_000_000_000


class Row(NamedTuple):
    """A record as a client means it."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int | None = None


def _zigzag(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _zigzag(-1) if data is None else _zigzag(len(data)) + data


def slice_bytes(
    topic: str, index: int, first: int, rows: Sequence[Row], *, wall_ms: int = NOW_MS, ids: bool = False
) -> bytes:
    """A sealed slice; `ids`: its records carry one."""
    own = any(row.timestamp is not None for row in rows)
    stamps = [wall_ms if row.timestamp is None else row.timestamp for row in rows]
    body = bytearray()
    for row, stamp in zip(rows, stamps, strict=True):
        record = _sized(row.key) + _sized(row.value) + b"\x00"
        body += (struct.pack("<q", stamp) if own else b"") + struct.pack("<I", len(record)) + record
    flags = (OWN_TIMESTAMPS if own else 0) | (RECORD_IDS if ids else 0)
    head = HEADER.pack(0, VERSION, flags, 0, first, len(rows), len(body), wall_ms, stamps[0], max(stamps))
    data = head + body
    crc = crc32c(data[CRC_FROM:], crc32c(crc_prefix(topic, index)))
    return struct.pack("<I", crc) + data[CRC_FROM:]


class SegmentWriter:
    """Appends slices to segment files, with something else between them, as frames have."""

    def __init__(self, directory: Path, segment: int = 1) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.segment = segment
        self._offset = 0
        self._file = (directory / segment_name(segment)).open("wb", buffering=0)
        self.put(b"head of the segment")

    def put(self, data: bytes) -> int:
        """Append bytes; where they begin."""
        at = self._offset
        assert self._file.write(data) == len(data)
        self._offset += len(data)
        return at

    def slice(
        self,
        partition: int,
        generation: int,
        topic: str,
        index: int,
        first: int,
        rows: Sequence[Row],
        *,
        created_ms: int,
        wall_ms: int = NOW_MS,
    ) -> SliceRef:
        """Append a slice and return the reference to it. `wall_ms`: timestamp of records without one."""
        data = slice_bytes(topic, index, first, rows, wall_ms=wall_ms)
        at = self.put(data)
        self.put(b"\x00" * 20)
        stamps = [wall_ms if row.timestamp is None else row.timestamp for row in rows]
        return SliceRef(partition, generation, self.segment, at, len(data), first, len(rows), created_ms, max(stamps))

    def close(self) -> None:
        self._file.close()
