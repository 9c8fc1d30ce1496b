"""Record batches by hand, right by default, with any one thing wrong on demand."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import cramjam
import crc32c
import lz4.frame
import zstandard

HEAD = struct.Struct(">qiibIhiqqqhii")
XERIAL_HEAD = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
NOW_MS = 1_700_000_000_000


class Rec(NamedTuple):
    """A record as a producer means it."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int = NOW_MS


def zigzag(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def record(rec: Rec, index: int, base_timestamp: int) -> bytes:
    body = b"\x00" + zigzag(rec.timestamp - base_timestamp) + zigzag(index) + sized(rec.key) + sized(rec.value)
    body += zigzag(len(rec.headers)) + b"".join(sized(name.encode()) + sized(value) for name, value in rec.headers)
    return zigzag(len(body)) + body


def plain(records: Sequence[Rec]) -> bytes:
    return b"".join(record(rec, index, records[0].timestamp) for index, rec in enumerate(records))


def xerial(data: bytes, block: int = 1000) -> bytes:
    blocks = (bytes(cramjam.snappy.compress_raw(data[at : at + block])) for at in range(0, len(data), block))
    return XERIAL_HEAD + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


def squeeze(codec: int, data: bytes) -> bytes:
    match codec:
        case 1:
            return bytes(cramjam.gzip.compress(data))
        case 2:
            return xerial(data)
        case 3:
            return lz4.frame.compress(data, block_linked=False)
        case 4:
            return zstandard.ZstdCompressor().compress(data)
        case _:
            return data


class Head(NamedTuple):
    """What goes in front; None is worked out from the records."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    attributes: int = 0
    base_offset: int = 0
    length: int | None = None
    magic: int = 2
    crc: int | None = None
    last_offset_delta: int | None = None
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    count: int | None = None


def batch(records: Sequence[Rec] = (Rec(),), head: Head | None = None, payload: bytes | None = None) -> bytes:
    """A whole batch; `payload` stands for the records as they are on the wire."""
    head = head or Head()
    data = squeeze(head.attributes & 7, plain(records)) if payload is None else payload
    given = Head(
        length=HEAD.size - 12 + len(data),
        last_offset_delta=len(records) - 1,
        base_timestamp=records[0].timestamp,
        max_timestamp=max(rec.timestamp for rec in records),
        count=len(records),
    )
    full = head._replace(**{name: value for name, value in given._asdict().items() if getattr(head, name) is None})
    assert full.length is not None
    tail = struct.pack(
        ">hiqqqhii",
        full.attributes,
        full.last_offset_delta,
        full.base_timestamp,
        full.max_timestamp,
        full.producer_id,
        full.epoch,
        full.sequence,
        full.count,
    )
    crc = crc32c.crc32c(tail + data) if full.crc is None else full.crc
    return struct.pack(">qiibI", full.base_offset, full.length, -1, full.magic, crc) + tail + data


def numbered(producer_id: int, epoch: int, sequence: int, count: int = 1, timestamp: int = NOW_MS) -> bytes:
    """A batch of an idempotent producer."""
    return batch([Rec(timestamp=timestamp)] * count, Head(producer_id, epoch, sequence))
