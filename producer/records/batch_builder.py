"""Builds record batches of format v2 from rows of slices, for Produce requests.

The kernel encodes the records directly into a buffer of the pool, starting at byte 61. Closing the batch compresses
them in place and writes the header before them, so a batch is contiguous. Layout (big-endian)::

    0   i64  base offset 0          27  i64  base timestamp
    8   i32  bytes after this       35  i64  max timestamp
    12  i32  leader epoch -1        43  i64  producer id
    16  i8   magic 2                51  i16  producer epoch
    17  u32  CRC-32C from 21 on     53  i32  base sequence
    21  i16  attributes             57  i32  record count
    23  i32  last offset delta      61  records, compressed as one block
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import crc32c as _crc32c

from ...wire.record_ids import ADDED_BYTES_MAX
from ..kernel import frames
from .compression import Compressor

HEADER_BYTES: Final = 61
MAGIC: Final = 2
TRANSACTIONAL: Final = 0x10
_HEAD: Final = struct.Struct(">qiibI")
_TAIL: Final = struct.Struct(">hiqqqhii")
RECORD_OVERHEAD_MAX: Final = 21
"""Maximum bytes of a record besides key, value and headers: its length, attributes and two deltas."""
_RATIO_MARGIN: Final = 1.05
_CRC_FROM: Final = 21
_LENGTH_FROM: Final = 12
_CHECK_VALUE: Final = 0xE3069283
_CHECK_BYTES: Final = 1 << 20
_CHECK_SECONDS_MAX: Final = 0.001

assert _HEAD.size == _CRC_FROM
assert _CRC_FROM + _TAIL.size == HEADER_BYTES

crc32c: Final = cast("Callable[..., int]", _crc32c.crc32c)
"""CRC-32C of bytes-like data. The optional second argument is the checksum of the preceding bytes."""


class Stamp(NamedTuple):
    """Lets the broker detect a resent batch. All three are -1 if not idempotent."""

    producer_id: int
    epoch: int
    sequence: int


NO_STAMP: Final = Stamp(-1, -1, -1)


class BatchAppendResult(NamedTuple):
    """How many rows were appended to a batch, and the position of the next row."""

    records: int
    position: int


class SlowChecksumError(RuntimeError):
    """The checksum library computes wrong results, or runs without hardware support."""


class BatchBuilder:
    """An open batch in `data`, intended to have at most `limit` bytes on the wire, header included.

    The size of an open batch is estimated: bytes of records before compression, times `growth` (1.0 without
    compression). The first record is accepted whatever its size; later records only while estimate plus record stay
    within `limit`. The uncompressed records must also fit into `data`; its owner may extend it when `may_exceed_buffer`
    is true.

    The records have consecutive ordinals from `first` on; the caller must ensure this.
    """

    __slots__ = (
        "_append_limit",
        "_closed",
        "_data",
        "_end",
        "_growth",
        "_length",
        "_limit",
        "attributes",
        "base_ts",
        "count",
        "first",
        "max_ts",
        "record_bytes",
        "record_bytes_max",
    )

    def __init__(self, data: bytearray, first: int, *, limit: int, growth: float = 1.0) -> None:
        assert len(data) > HEADER_BYTES, "a buffer has room for a header and records"
        self.first: Final = first
        self.count = 0
        self.base_ts = -1
        self.max_ts = -1
        self.attributes = 0
        self.record_bytes = 0
        self.record_bytes_max = 0
        self._data: Final = data
        self._length: Final = len(data)
        self._limit: Final = limit
        self._growth: Final = growth
        self._end = HEADER_BYTES
        self._append_limit: Final = min(limit, len(data))
        self._closed: memoryview | None = None

    @property
    def size(self) -> int:
        """Bytes on the wire; an estimate while the batch is open."""
        return self._estimate() if self._closed is None else len(self._closed)

    @property
    def remaining_bytes(self) -> int:
        """Bytes that the limit allows for the next record; 0 once closed. An empty batch accepts any record."""
        return 0 if self._closed is not None else max(0, self._limit - self._estimate())

    @property
    def is_full(self) -> bool:
        """Whether the batch is closed or has reached the limit."""
        if self._growth == 1.0:
            return self._closed is not None or (self._end >= self._limit and self.count > 0)
        return self._closed is not None or (self.count > 0 and self._limit <= self._estimate())

    @property
    def may_exceed_buffer(self) -> bool:
        """Whether the limit allows another record that might not fit into `data`."""
        return self.remaining_bytes > len(self._data) - self._end

    @property
    def missing_buffer_bytes(self) -> int:
        """How many bytes to add to `data` to hold all records that the limit allows, by the estimate. Ignores that an
        empty batch accepts any record."""
        return HEADER_BYTES + int((self._limit - HEADER_BYTES) / self._growth) - len(self._data)

    def _estimate(self) -> int:
        return HEADER_BYTES + (self.record_bytes if self._growth == 1.0 else int(self.record_bytes * self._growth))

    def append(
        self,
        rows: bytes | bytearray | memoryview,
        position: int,
        end: int,
        records_left: int,
        *,
        own_timestamps: bool,
        slice_ts: int,
        id_header: bytes = b"",
    ) -> BatchAppendResult:
        """Append as many rows of a slice from `position` on as fit, at most `records_left`. `id_header`: the last
        header of each record (`wire/record_ids.py`), b"" for none; its ordinal is filled in.

        Raises:
            FrameError: the rows are damaged; the batch must not be sent.
        """
        assert self._closed is None, "a closed batch takes no records"
        if self._growth != 1.0 or not self.count:
            return self._append_step_by_step(rows, position, end, records_left, own_timestamps, slice_ts, id_header)
        done = frames.append_rows(
            rows,
            position,
            end,
            records_left,
            self._data,
            self._end,
            max(self._end, self._append_limit),
            base_ts=self.base_ts,
            first_delta=self.count,
            has_base=True,
            own_timestamps=own_timestamps,
            slice_ts=slice_ts,
            id_header=id_header,
            ordinal=self.first + self.count,
        )
        if done.records:
            self._rows_appended(done)
        return BatchAppendResult(done.records, done.position)

    def _append_step_by_step(
        self,
        rows: bytes | bytearray | memoryview,
        position: int,
        end: int,
        records_left: int,
        own_timestamps: bool,
        slice_ts: int,
        id_header: bytes,
    ) -> BatchAppendResult:
        """Append in steps: for compressed batches, whose records count less than their bytes, and for the first record,
        which is accepted whatever its size."""
        taken = 0
        whole = False
        growth = self._growth
        length = len(self._data)
        while taken < records_left:
            room = max(0, self._limit - self._estimate())
            # With `growth` above 1, `room` bytes on the wire hold only `room / growth` bytes of records.
            # The last record alone may use all of `room`.
            step = room if whole or growth <= 1.0 else int(room / growth)
            done = frames.append_rows(
                rows,
                position,
                end,
                1 if whole else records_left - taken,
                self._data,
                self._end,
                length if whole and not self.count else min(length, self._end + step),
                base_ts=max(self.base_ts, 0),
                first_delta=self.count,
                has_base=self.count > 0,
                own_timestamps=own_timestamps,
                slice_ts=slice_ts,
                id_header=id_header,
                ordinal=self.first + self.count,
            )
            if done.records:
                self._rows_appended(done)
                position = done.position
                taken += done.records
                if growth == 1.0:
                    break
            elif whole or (self.count and growth <= 1.0):
                break
            whole = not done.records
        return BatchAppendResult(taken, position)

    def _rows_appended(self, done: frames.AppendedRows) -> None:
        records, _, end, self.base_ts, max_ts, largest = done
        self.max_ts = max(self.max_ts, max_ts)
        self.record_bytes_max = max(self.record_bytes_max, largest)
        self.count += records
        self.record_bytes += end - self._end
        self._end = end

    def close(self, stamp: Stamp, compressor: Compressor, *, transactional: bool = False) -> memoryview:
        """Compress the records, write the header and return the batch's bytes, valid until its buffer is released. An
        empty batch returns empty bytes. Shrinks an extended `data` to its original length, or to the batch if that is
        longer.

        Raises:
            ValueError: a part of the stamp is missing, or a transactional batch has no stamp.
        """
        assert self._closed is None, "a batch is closed once"
        self.attributes = compressor.attributes | (TRANSACTIONAL if transactional else 0)
        _check_stamp(stamp, transactional=transactional)
        if not self.count:
            self._closed = memoryview(b"")
            return self._closed
        self._closed = self._compressed(compressor)
        return self.restamp(stamp)

    def abort(self) -> None:
        """Discard the records; the buffer may be released."""
        self._closed = memoryview(b"")
        self.count = self.record_bytes = 0
        self._end = HEADER_BYTES

    def restamp(self, stamp: Stamp) -> memoryview:
        """Write the header of a closed batch with another stamp; the records do not change.

        Raises:
            ValueError: as for `close`.
        """
        assert self._closed is not None, "only a closed batch has a stamp"
        assert self.count > 0, "an empty batch has no stamp"
        _check_stamp(stamp, transactional=bool(self.attributes & TRANSACTIONAL))
        seal_header(
            self._closed,
            attributes=self.attributes,
            base_ts=self.base_ts,
            max_ts=self.max_ts,
            stamp=stamp,
            count=self.count,
        )
        return self._closed

    def _compressed(self, compressor: Compressor) -> memoryview:
        if compressor.compress is None:
            return memoryview(self._data)[: self._end]
        with memoryview(self._data) as whole, whole[HEADER_BYTES : self._end] as records:
            packed = compressor.compress(records)
        end = HEADER_BYTES + len(packed)
        if end > len(self._data):
            # Incompressible records may grow slightly beyond the buffer.
            del self._data[self._length :]
            return memoryview(bytearray(HEADER_BYTES) + packed)
        self._data[HEADER_BYTES:end] = packed
        if len(self._data) > self._length:
            del self._data[max(end, self._length) :]
        return memoryview(self._data)[:end]


def growth_of(compressor: Compressor, ratio: float) -> float:
    """Estimated bytes on the wire per byte of records, with a margin of 5 %; 1.0 without compression."""
    return 1.0 if compressor.compress is None else ratio * _RATIO_MARGIN


def bytes_max(body_bytes: int, count: int = 1, *, with_ids: bool = False) -> int:
    """Maximum size of a batch before compression, header included. `body_bytes`: keys, values and headers of all
    records with the varints before them; a null field has one byte. `with_ids`: each record gets an additional id
    header."""
    return HEADER_BYTES + body_bytes + (RECORD_OVERHEAD_MAX + (ADDED_BYTES_MAX if with_ids else 0)) * count


def _check_stamp(stamp: Stamp, *, transactional: bool) -> None:
    if (transactional or stamp != NO_STAMP) and min(stamp) < 0:
        raise ValueError(f"a batch cannot be closed under producer id, epoch and sequence {tuple(stamp)}")


def single_record_batch_size(
    rows: bytes | bytearray | memoryview,
    position: int,
    end: int,
    *,
    own_timestamps: bool,
    slice_ts: int,
    with_id: bool = False,
) -> int:
    """Size before compression, header included, of a batch with only the row at `position`.

    Raises:
        FrameError: the row is incomplete.
    """
    return HEADER_BYTES + frames.row_record_bytes(
        rows,
        position,
        end,
        base_ts=0,
        first_delta=0,
        has_base=False,
        own_timestamps=own_timestamps,
        slice_ts=slice_ts,
        with_id=with_id,
    )


def seal_header(
    batch: memoryview | bytearray, *, attributes: int, base_ts: int, max_ts: int, stamp: Stamp, count: int
) -> None:
    """Write the 61-byte header before the records of `batch`, checksum included."""
    _TAIL.pack_into(batch, _CRC_FROM, attributes, count - 1, base_ts, max_ts, *stamp, count)
    checksum = crc32c(memoryview(batch)[_CRC_FROM:])
    _HEAD.pack_into(batch, 0, 0, len(batch) - _LENGTH_FROM, -1, MAGIC, checksum)


def self_check(clock: Callable[[], float]) -> None:
    """Check that checksums are correct and fast. `clock` returns this thread's CPU time in seconds.

    Raises:
        SlowChecksumError: checksums are wrong or slow; the text explains what to do.
    """
    if crc32c(b"123456789") != _CHECK_VALUE:
        raise SlowChecksumError("the crc32c package computes wrong checksums: install another build of it")
    data = bytes(_CHECK_BYTES)
    best = min(_seconds(clock, data) for _ in range(5))
    if best > _CHECK_SECONDS_MAX:
        raise SlowChecksumError(
            f"CRC-32C of 1 MiB takes {best * 1000:.1f} ms, more than 1 ms: the crc32c package runs without its C code"
        )


def _seconds(clock: Callable[[], float], data: bytes) -> float:
    began = clock()
    _ = crc32c(data)
    return clock() - began
