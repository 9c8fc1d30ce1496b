"""Record batches (format 2): their header, and the checks of a strict broker before it appends."""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

import crc32c

from .decompression import Codec, CodecError, decompress
from .error_codes import AppendRejection, BadRecord, ErrorCode
from .records import RecordDecodeError, RecordSummary, decode_records
from .topics import TimestampType, TopicRules

HEAD: Final = struct.Struct(">qiibIhiqqqhii")
PREFIX_BYTES: Final = 12
"""Bytes of base offset and length, which the length field does not count."""

CRC_FROM: Final = 21
MAGIC: Final = 2
UNFOLDED_BYTES_MAX: Final = 104_857_600
"""Largest uncompressed size of one batch: a hundred times the default `max.message.bytes`."""

LENGTH_MIN: Final = 14
"""Below it Kafka treats the length itself as corrupt: no record of any format is that short."""

NO_TIMESTAMP: Final = -1
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20


class BatchHeader(NamedTuple):
    """The 61 bytes before the records."""

    base_offset: int
    length: int
    """Bytes after this field."""

    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    """-1: not idempotent."""

    producer_epoch: int
    base_sequence: int
    record_count: int
    """Number of records."""

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return PREFIX_BYTES + self.length

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap to 0 after 2³¹ - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Verify(Enum):
    """How thoroughly to validate batches."""

    RECORDS = "records"
    """Decompress the batch and check every record."""

    BATCHES = "batches"
    """Trust the records that the checksum covers: cheaper, for large loads."""


def read_header(data: bytes, at: int = 0) -> BatchHeader:
    """Return the header of the batch at `at`.

    Raises:
        struct.error: there are fewer than 61 bytes.
    """
    return BatchHeader._make(HEAD.unpack_from(data, at))


def validate_batch(
    data: bytes, rules: TopicRules, *, verify: Verify, wall_ms: int, zstd: bool = True
) -> BatchHeader | AppendRejection:
    """Validate the data of a Produce request for one partition; `wall_ms` is the time of day.

    It checks only size and content; the caller then checks the log and the producer's state.
    """
    head = _shape(data)
    if isinstance(head, AppendRejection):
        return head
    if head.size > rules.max_message_bytes:
        return AppendRejection(
            ErrorCode.MESSAGE_TOO_LARGE, f"{head.size} bytes, the topic takes {rules.max_message_bytes}"
        )
    if crc32c.crc32c(memoryview(data)[CRC_FROM:]) != head.crc:
        return AppendRejection(ErrorCode.CORRUPT_MESSAGE, "checksum")
    refusal = _fields(head, zstd=zstd)
    if refusal is None and verify is Verify.RECORDS:
        refusal = _records(head, data, rules, wall_ms)
    return head if refusal is None else refusal._replace(has_log_start_offset=True)


def _shape(data: bytes) -> BatchHeader | AppendRejection:
    if len(data) < HEAD.size:
        return AppendRejection(ErrorCode.INVALID_RECORD, "no whole batch")
    head = read_header(data)
    if head.length < LENGTH_MIN or not 0 <= head.magic <= MAGIC:
        return AppendRejection(ErrorCode.CORRUPT_MESSAGE, f"length {head.length}, magic {head.magic}")
    if head.magic != MAGIC:
        return AppendRejection(ErrorCode.INVALID_RECORD, f"magic {head.magic}")
    if head.size != len(data):
        return AppendRejection(
            ErrorCode.INVALID_RECORD, f"length says {head.size} bytes, {len(data)} came: one batch is taken"
        )
    return head


def _fields(head: BatchHeader, *, zstd: bool) -> AppendRejection | None:
    if head.base_offset != 0:
        return AppendRejection(ErrorCode.INVALID_RECORD, f"base offset {head.base_offset}")
    if head.record_count <= 0 or head.record_count != head.last_offset_delta + 1:
        return AppendRejection(
            ErrorCode.INVALID_RECORD, f"{head.record_count} records, last offset delta {head.last_offset_delta}"
        )
    if head.attributes & CONTROL_BIT:
        return AppendRejection(ErrorCode.INVALID_RECORD, "control batch")
    if head.attributes & TIMESTAMP_TYPE_BIT:
        return AppendRejection(ErrorCode.INVALID_TIMESTAMP, "timestamp type is not create time")
    if head.producer_id < -1 or (head.producer_id >= 0 and (head.base_sequence < 0 or head.producer_epoch < 0)):
        return AppendRejection(ErrorCode.INVALID_RECORD, "a producer id without epoch and sequence")
    if head.attributes & TRANSACTIONAL_BIT and head.producer_id < 0:
        return AppendRejection(ErrorCode.INVALID_RECORD, "in a transaction, and without a producer id")
    codec = head.attributes & 0x07
    if codec > Codec.ZSTD:
        return AppendRejection(ErrorCode.INVALID_RECORD, f"codec {codec}")
    if codec == Codec.ZSTD and not zstd:
        return AppendRejection(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce 7")
    return None


def decode_batch(data: bytes) -> list[RecordSummary]:
    """Return the records of a batch whose shape was checked.

    Raises:
        CodecError: they do not decompress.
        RecordDecodeError: they do not decode.
    """
    head = read_header(data)
    plain = decompress(Codec(head.attributes & 0x07), data[HEAD.size :], UNFOLDED_BYTES_MAX)
    return decode_records(plain, head.record_count)


def _records(head: BatchHeader, data: bytes, rules: TopicRules, wall_ms: int) -> AppendRejection | None:
    try:
        seen = decode_batch(data)
    except CodecError as error:
        return AppendRejection(ErrorCode.INVALID_RECORD, str(error))
    except RecordDecodeError as error:
        # Kafka lists invalid records in its record errors, but not undecodable ones.
        return AppendRejection(ErrorCode.INVALID_RECORD, str(error))
    if seen[0].timestamp_delta != 0:
        return AppendRejection(ErrorCode.INVALID_RECORD, "base timestamp is not the first record's")
    latest = head.base_timestamp + max(record.timestamp_delta for record in seen)
    if latest != head.max_timestamp:
        return AppendRejection(
            ErrorCode.INVALID_RECORD, f"maximum timestamp {head.max_timestamp}, the records have {latest}"
        )
    if rules.compacted:
        keyless = tuple(BadRecord(i, "no key on a compacted topic") for i, r in enumerate(seen) if not r.has_key)
        if keyless:
            return AppendRejection(ErrorCode.INVALID_RECORD, "records without a key on a compacted topic", keyless)
    return _times(head, seen, rules, wall_ms)


def _times(head: BatchHeader, seen: list[RecordSummary], rules: TopicRules, wall_ms: int) -> AppendRejection | None:
    if rules.timestamp_type is TimestampType.LOG_APPEND:
        return None
    oldest = wall_ms - rules.timestamp_before_max_ms
    newest = wall_ms + rules.timestamp_after_max_ms
    times = (head.base_timestamp + record.timestamp_delta for record in seen)
    outside = tuple(
        BadRecord(index, f"timestamp {time} is out of range")
        for index, time in enumerate(times)
        if time != NO_TIMESTAMP and not oldest <= time <= newest
    )
    if not outside:
        return None
    return AppendRejection(ErrorCode.INVALID_TIMESTAMP, f"timestamps outside {oldest} to {newest}", outside)
