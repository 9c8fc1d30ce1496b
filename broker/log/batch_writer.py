"""Builds and reads the broker's own batches: transaction markers and records of internal topics."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import crc32c

from .batches import CONTROL_BIT, CRC_FROM, HEAD, MAGIC, PREFIX_BYTES, TRANSACTIONAL_BIT, BatchHeader, read_header
from .records import varint

MARKER_KEY: Final = struct.Struct(">hh")
"""Version and type of a control record (KIP-98)."""

MARKER_VALUE: Final = struct.Struct(">hi")
"""Version, and the epoch of the coordinator that wrote it."""

ABORT: Final = 0
COMMIT: Final = 1
NO_SEQUENCE: Final = -1


class InternalRecord(NamedTuple):
    """Key and value of a record."""

    key: bytes | None
    value: bytes | None


class EndTxnMarker(NamedTuple):
    """Content of a transaction marker."""

    commit: bool
    coordinator_epoch: int


class BatchProducer(NamedTuple):
    """Producer id and epoch of a batch."""

    producer_id: int = -1
    epoch: int = -1


def internal_batch(pairs: Sequence[InternalRecord], wall_ms: int, writer: BatchProducer | None = None) -> bytes:
    """Build a batch for an internal topic; with a `writer` it belongs to that producer's transaction."""
    return _batch(pairs, wall_ms, writer or BatchProducer(), 0 if writer is None else TRANSACTIONAL_BIT)


def marker_batch(marker: EndTxnMarker, wall_ms: int, writer: BatchProducer) -> bytes:
    """Build the control batch that ends a transaction in a partition."""
    key = MARKER_KEY.pack(0, COMMIT if marker.commit else ABORT)
    value = MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return _batch([InternalRecord(key, value)], wall_ms, writer, TRANSACTIONAL_BIT | CONTROL_BIT)


def read_marker(data: bytes) -> EndTxnMarker:
    """Return the marker in a control batch that this broker wrote."""
    ((key, value),) = read_internal_records(data)
    assert key is not None
    assert value is not None
    return EndTxnMarker(MARKER_KEY.unpack(key)[1] == COMMIT, MARKER_VALUE.unpack(value)[1])


def read_internal_records(data: bytes) -> list[InternalRecord]:
    """Return the records of a batch that this broker wrote; such batches are never compressed."""
    head = read_header(data)
    found: list[InternalRecord] = []
    at = HEAD.size
    for _ in range(head.record_count):
        length, start = varint(data, at)
        at = start + length
        _, start = varint(data, start + 1, 64)
        _, start = varint(data, start)
        key, start = _sized(data, start)
        value, _ = _sized(data, start)
        found.append(InternalRecord(key, value))
    return found


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _batch(pairs: Sequence[InternalRecord], wall_ms: int, writer: BatchProducer, attributes: int) -> bytes:
    records = b"".join(_record(pair, index) for index, pair in enumerate(pairs))
    head = BatchHeader(
        base_offset=0,
        length=HEAD.size - PREFIX_BYTES + len(records),
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(pairs) - 1,
        base_timestamp=wall_ms,
        max_timestamp=wall_ms,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        base_sequence=NO_SEQUENCE,
        record_count=len(pairs),
    )
    data = bytearray(HEAD.pack(*head) + records)
    checksum: int = crc32c.crc32c(memoryview(data)[CRC_FROM:])
    data[CRC_FROM - 4 : CRC_FROM] = checksum.to_bytes(4, "big")
    return bytes(data)


def _record(pair: InternalRecord, index: int) -> bytes:
    body = b"\x00" + _zigzag(0) + _zigzag(index) + _length_and(pair.key) + _length_and(pair.value) + _zigzag(0)
    return _zigzag(len(body)) + body


def _length_and(data: bytes | None) -> bytes:
    return _zigzag(-1) if data is None else _zigzag(len(data)) + data


def _zigzag(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
