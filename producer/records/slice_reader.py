"""Verifies slices of a partition, and reads them again to rebuild or split a batch."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ...wire.errors import FrameError
from ...wire.messages import SliceRef
from ...wire.record_ids import IdRow, RecordId, incarnation_at
from ...wire.slices import CRC_FROM, HEADER, HEADER_BYTES, OWN_TIMESTAMPS, RECORD_IDS, VERSION, crc_prefix, read_header
from .batch_builder import BatchAppendResult, BatchBuilder, bytes_max, crc32c

_ROW_SIZE: Final = struct.Struct("<I")


class SliceRowFormat(NamedTuple):
    """How to convert the rows of a slice to records. `base_ts`: timestamp of rows without one, ms since 1970;
    `own_timestamps`: rows have their own. `id_header`: the last header of each record, given for the first record;
    b"": none."""

    base_ts: int
    own_timestamps: bool
    id_header: bytes


_Take = Callable[[memoryview, int, int, SliceRowFormat], None]
"""Called with data, position, count and the slice's row format."""


class SliceSource(Protocol):
    """Storage that slices are read from."""

    def read(self, segment: int, offset: int, length: int) -> memoryview | str:
        """The bytes, valid until the next call, or the text of an error."""
        ...


class SliceDamage(NamedTuple):
    """A slice that differs from what was spooled. `what`: text of the error."""

    ref: SliceRef
    what: str


class SliceDamageError(Exception):
    """Carries a `SliceDamage`. Internal to the producer."""

    def __init__(self, damage: SliceDamage) -> None:
        super().__init__(damage.what)
        self.damage = damage


class SliceReader:
    """Reads slices of one partition. `id_rows`: the incarnations of the partition's ordinals."""

    def __init__(self, source: SliceSource, topic: str, index: int, id_rows: Sequence[IdRow] = ()) -> None:
        self._source: Final = source
        self._index: Final = index
        self._id_rows: Final = id_rows
        self._prefix_crc: Final = crc32c(crc_prefix(topic, index))

    def verify(self, ref: SliceRef, data: memoryview) -> SliceRowFormat:
        """Verify the slice and return its row format. The checksum covers topic and partition, taken from this lease
        rather than from the slice (MEM-2).

        Raises:
            FrameError: it is a different slice, or a damaged one.
        """
        if len(data) >= HEADER_BYTES:
            crc, version, flags, zero, first, count, rows_bytes, wall_ms, base_ts, _ = HEADER.unpack_from(data)
            whole = version == VERSION and zero == 0 and rows_bytes == len(data) - HEADER_BYTES
            if whole and first == ref.first and count == ref.count:
                if crc32c(data[CRC_FROM:], self._prefix_crc) != crc:
                    raise FrameError("wrong checksum")
                id_header = self._id_header(first, wall_ms) if flags & RECORD_IDS else b""
                return SliceRowFormat(base_ts, bool(flags & OWN_TIMESTAMPS), id_header)
        header = read_header(data)
        raise FrameError(f"slice of {header.count} records at {header.first}, not {ref.count} at {ref.first}")

    def _id_header(self, first: int, wall_ms: int) -> bytes:
        """The id header of the slice's first record. The ordinals of a slice are assigned together, so all have the
        same incarnation. The header depends only on the slice and the lease, so a resend carries the same header."""
        incarnation = incarnation_at(self._id_rows, first)
        assert incarnation is not None, f"record {first} carries an id, and nobody knows of which incarnation"
        return RecordId(incarnation, self._index, first, wall_ms).header()

    def rebuild_batch(self, refs: Iterable[SliceRef], first: int, end: int) -> BatchBuilder:
        """An open batch of records `first` to `end` - 1, in a buffer outside the pool.

        Raises:
            SliceDamageError: a slice cannot be read, or differs from what was spooled.
        """
        overlapping = _overlapping(refs, first, end)
        with_ids = bool(self._id_rows)
        room = bytes_max(
            sum(ref.length for ref in overlapping), sum(ref.count for ref in overlapping), with_ids=with_ids
        )
        builder = BatchBuilder(bytearray(room), first, limit=room)

        def take(data: memoryview, position: int, count: int, rows: SliceRowFormat) -> None:
            took = append_slice_rows(builder, data, position, count, rows)
            assert took.records == count, "a batch made anew does not fit"

        self._each(overlapping, first, end, take)
        assert builder.count == end - first, "a cut whose records are not all there"
        return builder

    def split_counts(
        self, refs: Iterable[SliceRef], first: int, end: int, *, record_bytes: int, limit: int, growth: float
    ) -> list[int]:
        """Record counts of the batches that records `first` to `end` - 1, of `record_bytes` in total, need under
        `limit`.

        Raises:
            SliceDamageError: as for `rebuild_batch`.
        """
        counts: list[int] = []
        # The first record of a batch has other deltas than it had before, but never more bytes than `bytes_max` allows.
        room = bytearray(bytes_max(record_bytes))
        builder = BatchBuilder(room, first, limit=limit, growth=growth)

        def take(data: memoryview, position: int, count: int, rows: SliceRowFormat) -> None:
            nonlocal builder
            while count:
                took = append_slice_rows(builder, data, position, count, rows)
                count -= took.records
                position = took.position
                if count:
                    counts.append(builder.count)
                    builder = BatchBuilder(room, first + sum(counts), limit=limit, growth=growth)

        self._each(_overlapping(refs, first, end), first, end, take)
        return [*counts, builder.count]

    def _each(self, refs: list[SliceRef], first: int, end: int, take: _Take) -> None:
        for ref in refs:
            data = self._source.read(ref.segment, ref.offset, ref.length)
            if isinstance(data, str):
                raise SliceDamageError(SliceDamage(ref, data))
            try:
                rows = self.verify(ref, data)
                skipped = max(0, first - ref.first)
                position = skip_rows(data, HEADER_BYTES, skipped, own_timestamps=rows.own_timestamps)
                take(data, position, min(ref.count - skipped, end - max(ref.first, first)), rows)
            except FrameError as error:
                raise SliceDamageError(SliceDamage(ref, str(error))) from None


def append_slice_rows(
    builder: BatchBuilder, data: memoryview, position: int, count: int, rows: SliceRowFormat
) -> BatchAppendResult:
    """Append as many rows of a verified slice from `position` on as fit, at most `count`.

    Raises:
        FrameError: the rows are damaged; the batch must not be sent.
    """
    base_ts, own, id_header = rows
    return builder.append(data, position, len(data), count, own_timestamps=own, slice_ts=base_ts, id_header=id_header)


def _overlapping(refs: Iterable[SliceRef], first: int, end: int) -> list[SliceRef]:
    return [ref for ref in refs if ref.first < end and first < ref.first + ref.count]


def skip_rows(data: memoryview, position: int, count: int, *, own_timestamps: bool) -> int:
    """Position after `count` rows; only needed if a batch begins inside a slice.

    Raises:
        FrameError: there are fewer rows.
    """
    before = 8 if own_timestamps else 0
    for _ in range(count):
        if position + before + _ROW_SIZE.size > len(data):
            raise FrameError("the rows end inside a row's head")
        (size,) = _ROW_SIZE.unpack_from(data, position + before)
        position += before + _ROW_SIZE.size + size
    if position > len(data):
        raise FrameError("the rows end inside a row's body")
    return position
