"""Record batches, format v2: rows of slices go in, bytes for a Produce request come out.

The records are encoded by the kernel straight into a buffer of the pool, 61 bytes behind its beginning; closing compresses
them in place and writes the header before them, so a batch is one stretch of memory. Layout (big-endian)::

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

from .. import kernel
from .codecs import Compressor

HEADER_BYTES: Final = 61
MAGIC: Final = 2
TRANSACTIONAL: Final = 0x10
_HEAD: Final = struct.Struct(">qiibI")
_TAIL: Final = struct.Struct(">hiqqqhii")
_CRC_FROM: Final = 21
_LENGTH_FROM: Final = 12
_CHECK_VALUE: Final = 0xE3069283
_CHECK_BYTES: Final = 1 << 20
_CHECK_SECONDS_MAX: Final = 0.001

assert _HEAD.size == _CRC_FROM
assert _CRC_FROM + _TAIL.size == HEADER_BYTES

crc32c: Final = cast("Callable[..., int]", _crc32c.crc32c)
"""CRC-32C of bytes-like data; a second argument is the checksum of what came before."""


class Stamp(NamedTuple):
    """What makes a resend harmless; -1 in all three: not idempotent."""

    producer_id: int
    epoch: int
    sequence: int


NO_STAMP: Final = Stamp(-1, -1, -1)


class Taken(NamedTuple):
    """How many rows a batch took, and the position of the first it did not take."""

    records: int
    position: int


class SlowChecksumError(RuntimeError):
    """The checksum library computes wrongly, or without the help of the processor."""


class BatchBuilder:
    """An open batch over `data`, of at most `limit` bytes (header included, before compression).

    It holds records of consecutive ordinals from `first` on; the caller sees to it that they are. One record always fits if
    `data` was made for it (`record_bytes`).
    """

    __slots__ = (
        "_closed",
        "_data",
        "_end",
        "_limit",
        "attributes",
        "base_ts",
        "count",
        "first",
        "max_ts",
        "record_bytes",
    )

    def __init__(self, data: bytearray, first: int, *, limit: int) -> None:
        assert HEADER_BYTES < limit <= len(data), "a batch does not fit in its buffer"
        self.first: Final = first
        self.count = 0
        self.base_ts = -1
        self.max_ts = -1
        self.attributes = 0
        self.record_bytes = 0
        self._data: Final = data
        self._limit: Final = limit
        self._end = HEADER_BYTES
        self._closed: memoryview | None = None

    @property
    def size(self) -> int:
        """Bytes so far, header included; before compression while the batch is open."""
        return self._end if self._closed is None else len(self._closed)

    @property
    def room(self) -> int:
        """Bytes of records that still fit; 0 once closed."""
        return 0 if self._closed is not None else self._limit - self._end

    def append(
        self,
        rows: bytes | bytearray | memoryview,
        position: int,
        end: int,
        records_left: int,
        *,
        own_timestamps: bool,
        slice_ts: int,
    ) -> Taken:
        """Take rows of a slice from `position` on, at most `records_left`, as many as there is room for.

        Raises:
            FrameError: the rows are damaged; the batch must not be sent.
        """
        assert self._closed is None, "a closed batch takes no records"
        done = kernel.append_rows(
            rows,
            position,
            end,
            records_left,
            self._data,
            self._end,
            self._limit,
            base_ts=max(self.base_ts, 0),
            first_delta=self.count,
            has_base=self.count > 0,
            own_timestamps=own_timestamps,
            slice_ts=slice_ts,
        )
        if done.records:
            self.base_ts = done.base_ts
            self.max_ts = max(self.max_ts, done.max_ts)
            self.count += done.records
            self.record_bytes += done.out_position - self._end
            self._end = done.out_position
        return Taken(done.records, done.position)

    def close(self, stamp: Stamp, compressor: Compressor, *, transactional: bool = False) -> memoryview:
        """Compress and write the header; the batch's bytes, which stay valid as long as its buffer is not given back."""
        assert self._closed is None, "a batch is closed once"
        assert self.count > 0, "an empty batch is never sent"
        self.attributes = compressor.attributes | (TRANSACTIONAL if transactional else 0)
        self._closed = self._compressed(compressor)
        return self.restamp(stamp)

    def restamp(self, stamp: Stamp) -> memoryview:
        """Write the header of a closed batch under another stamp; the records stay as they are."""
        assert self._closed is not None, "only a closed batch has a stamp"
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
        view = memoryview(self._data)
        if compressor.compress is None:
            return view[: self._end]
        packed = compressor.compress(view[HEADER_BYTES : self._end])
        end = HEADER_BYTES + len(packed)
        if end > len(self._data):
            # Records that do not compress may grow past the buffer by a little.
            return memoryview(bytearray(HEADER_BYTES) + packed)
        view[HEADER_BYTES:end] = packed
        return view[:end]


def record_bytes(
    rows: bytes | bytearray | memoryview, position: int, end: int, *, own_timestamps: bool, slice_ts: int
) -> int:
    """Size of a batch that holds only the row at `position`, header included, before compression.

    Raises:
        FrameError: there is no whole row.
    """
    return HEADER_BYTES + kernel.row_record_bytes(
        rows, position, end, base_ts=0, first_delta=0, has_base=False, own_timestamps=own_timestamps, slice_ts=slice_ts
    )


def seal_header(
    batch: memoryview | bytearray, *, attributes: int, base_ts: int, max_ts: int, stamp: Stamp, count: int
) -> None:
    """Write the 61 bytes before the records of `batch`, checksum included."""
    _TAIL.pack_into(batch, _CRC_FROM, attributes, count - 1, base_ts, max_ts, *stamp, count)
    checksum = crc32c(memoryview(batch)[_CRC_FROM:])
    _HEAD.pack_into(batch, 0, 0, len(batch) - _LENGTH_FROM, -1, MAGIC, checksum)


def self_check(clock: Callable[[], float]) -> None:
    """Refuse to go on with a checksum that is wrong or slow; `clock` gives seconds.

    Raises:
        SlowChecksumError: says which of the two, and what to do.
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
