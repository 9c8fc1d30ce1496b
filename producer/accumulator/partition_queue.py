"""One partition's part of the accumulator: slice references, the batch being filled, and full batches not yet cut.

References are kept until their records are resolved, to rebuild batches after a change of pace, after a split, and for
the cuts of an earlier lease holder. A batch never crosses the start of a stamp row or a hole (IDN-4).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from ...wire.errors import FrameError
from ...wire.messages import SliceRef
from ...wire.record_ids import IdRow
from ...wire.slices import HEADER_BYTES
from ..records.batch_builder import HEADER_BYTES as BATCH_HEADER_BYTES
from ..records.batch_builder import BatchBuilder, Stamp, growth_of, single_record_batch_size
from ..records.compression import CompressionRatio, Compressor
from ..records.slice_reader import (
    SliceDamage,
    SliceDamageError,
    SliceReader,
    SliceRowFormat,
    SliceSource,
    append_slice_rows,
    skip_rows,
)
from .batch import ProducerBatch
from .buffer_pool import Buffer, BufferOwner, BufferPool

CLOSED_MAX: Final = 5
"""Maximum of full batches not yet cut: a partition that cannot send must not take its node's memory (DRN-4)."""
_ANY_COUNT: Final = (1 << 31) - 1
_UNPACKED_MAX: Final = 8
"""Before compression a batch may use the memory of at most this many batches."""
_GROWTH_BYTES_MIN: Final = 512


class FeedResult(Enum):
    """Result of `PartitionQueue.feed`."""

    TAKEN = auto()
    NO_MEMORY = auto()
    """The node's budget is used up; feed the rest when a buffer of the node is returned."""
    PAUSED = auto()
    """The queue is full, or its `damage` is set."""


class BatchRules(NamedTuple):
    """How batches of a partition are built. `batch_bytes`: estimated compressed size of a batch on the wire.
    `transactional`: batches carry the transactional flag."""

    batch_bytes: int
    linger_s: float
    compressor: Compressor
    transactional: bool = False


class PendingBatch(NamedTuple):
    """An uncut batch. `created`: when its first record arrived, CLOCK_MONOTONIC seconds."""

    builder: BatchBuilder
    buffer: Buffer
    uses: int
    created: float


class PartitionQueue:
    """Builds the batches of one lease from its slices. `cut_to` is the first ordinal not in any cut."""

    def __init__(
        self,
        tag: BufferOwner,
        topic: str,
        index: int,
        *,
        node: int,
        rules: BatchRules,
        pool: BufferPool,
        source: SliceSource,
        ratio: CompressionRatio,
        row_starts: list[int],
        holes: Sequence[tuple[int, int]] = (),
        id_rows: Sequence[IdRow] = (),
    ) -> None:
        """`tag.first` is the first ordinal never cut. `holes` are ordinals [first, end) to leave out, ascending."""
        self.owner: Final = tag
        self.partition: Final = tag.partition
        self.node = node
        self.rules = rules
        self.cut_to = tag.first
        self.flush_to = 0
        self.one_record = False
        self.damage: SliceDamage | None = None
        self.scheduled = False
        """Whether the queue is in the accumulator's read queue; only the accumulator writes it."""
        self.released_buffers: list[Buffer] = []
        """Buffers that nothing reads any more; the accumulator returns them to the pool."""
        self._pool: Final = pool
        self._reader: Final = SliceReader(source, topic, index, id_rows)
        self._ratio: Final = ratio
        self._row_starts: Final = row_starts
        self._holes: Final = holes
        self._breaks: Final = sorted({*row_starts, *(first for first, _ in holes)})
        self._batch_bytes = rules.batch_bytes
        self._refs_end = -1
        self._consumed: deque[SliceRef] = deque()
        self._unread: deque[SliceRef] = deque()
        self._position = 0
        self._taken = 0
        self._open: PendingBatch | None = None
        self._open_count_max = _ANY_COUNT
        self._open_since = 0.0
        self._closed: deque[PendingBatch] = deque()
        self._lent_bytes = 0
        self.splits = 0

    # --- slices in ---------------------------------------------------------------------------------------------------

    def accept(self, ref: SliceRef) -> bool:
        """Add a slice reference. Returns False if all its records are in cuts already, so it need not be read now."""
        follows = ref.first == self._refs_end or self._refs_end < 0 or ref.first in self._row_starts
        # The router does not hand out slices that are entirely in holes.
        follows = follows or self._refs_end < ref.first <= self._behind_hole(self._refs_end)
        assert follows, f"slice at {ref.first} follows {self._refs_end}"
        self._refs_end = ref.first + ref.count
        if self._refs_end <= self.cut_to:
            self._consumed.append(ref)
            return False
        self._unread.append(ref)
        return True

    @property
    def unread(self) -> deque[SliceRef]:
        return self._unread

    @property
    def has_open(self) -> bool:
        """Whether any uncut batch exists; if so, `sendable_at` returns a time."""
        return self._open is not None or bool(self._closed)

    @property
    def open_has_room(self) -> bool:
        """Whether a batch is being filled and has room."""
        return self._open is not None

    @property
    def batch_count(self) -> int:
        """Number of uncut batches, including the one being filled."""
        return len(self._closed) + (self._open is not None)

    @property
    def closed_count(self) -> int:
        return len(self._closed)

    @property
    def wants_more(self) -> bool:
        """Whether there is a slice to read and room for it."""
        return bool(self._unread) and not self._is_full()

    def _is_full(self) -> bool:
        if self.damage is not None:
            return True
        if self._open is not None:
            return False
        return len(self._closed) >= (1 if self.one_record else CLOSED_MAX) or self._exceeds_memory_share()

    def _exceeds_memory_share(self) -> bool:
        """Whether a further batch would give the queue more memory than its node has left. A queue that cannot send
        takes at most half of the rest; one without memory still gets some. It resumes when its buffers return."""
        held = self._lent_bytes
        return held > 0 and held + self._batch_bytes > self._pool.available_for(self.node)

    def feed(self, ref: SliceRef, data: memoryview) -> FeedResult:
        """Encode records of the next slice while there is room. Sets `damage` if the bytes are not those spooled."""
        assert self._unread[0] is ref
        try:
            return self._fill(ref, data, self._reader.verify(ref, data))
        except FrameError as error:
            self.damage = SliceDamage(ref, str(error))
            return FeedResult.PAUSED

    def _fill(self, ref: SliceRef, data: memoryview, rows: SliceRowFormat) -> FeedResult:
        own = rows.own_timestamps
        if self._position == 0:
            self._position = HEADER_BYTES
        self._skip(ref, data, self.cut_to, own=own)
        while self._taken < ref.count:
            if self._holes and self._skip(ref, data, self._behind_hole(ref.first + self._taken), own=own):
                continue
            building = self._open
            if building is None:
                if self._is_full():
                    return FeedResult.PAUSED
                building = self._begin(ref.first + self._taken, self._batch_bytes, ref.created_ms / 1000)
                if building is None:
                    return FeedResult.NO_MEMORY
            builder = building.builder
            left = min(ref.count - self._taken, self._open_count_max - builder.count)
            if builder.first + builder.count != ref.first + self._taken:
                self._close_open()
                continue
            took = append_slice_rows(builder, data, self._position, left, rows)
            if took.records == 0 and builder.count == 0:
                if not self._begin_larger(ref, data, rows):
                    return FeedResult.NO_MEMORY
                continue
            self._position = took.position
            self._taken += took.records
            if took.records < left and self._grow(building):
                continue
            if took.records < left or builder.count == self._open_count_max or builder.is_full:
                self._close_open()
        _ = self._unread.popleft()
        self._consumed.append(ref)
        self._position = self._taken = 0
        return FeedResult.TAKEN

    def _skip(self, ref: SliceRef, data: memoryview, to: int, *, own: bool) -> bool:
        """Skip the rows below ordinal `to`. Returns whether there were any."""
        behind = min(to - ref.first, ref.count) - self._taken
        if behind <= 0:
            return False
        self._position = skip_rows(data, self._position, behind, own_timestamps=own)
        self._taken += behind
        return True

    def _behind_hole(self, ordinal: int) -> int:
        """The first ordinal at or after `ordinal` that is not in a hole."""
        return next((end for first, end in self._holes if first <= ordinal < end), ordinal)

    def _begin(self, first: int, size: int, since: float, *, exactly: bool = False) -> PendingBatch | None:
        buffer = self._pool.allocate(self.node, size, self._owner_at(first))
        if buffer is None:
            return None
        self._lent_bytes += buffer.size
        limit = size if exactly else min(size, self._batch_bytes)
        growth = growth_of(self.rules.compressor, self._ratio.value)
        builder = BatchBuilder(buffer.data, first, limit=limit, growth=growth)
        self._open = PendingBatch(builder, buffer, buffer.uses, since)
        self._open_since = since
        self._open_count_max = self._count_max(first)
        return self._open

    def _owner_at(self, first: int) -> BufferOwner:
        tag = self.owner
        return BufferOwner(tag.partition, tag.generation, first)

    def _grow(self, building: PendingBatch) -> bool:
        """Enlarge the buffer of a batch that compression will shrink enough, if the node has plenty of memory."""
        if not building.builder.may_exceed_buffer:
            return False
        buffer = building.buffer
        length = len(buffer.data)
        wanted = max(_GROWTH_BYTES_MIN, building.builder.missing_buffer_bytes)
        # A batch started before its partition moved is still charged to the old node.
        more = min(wanted, _UNPACKED_MAX * self._batch_bytes - length, self._pool.available_for(buffer.node) // 2)
        if more < _GROWTH_BYTES_MIN:
            return False
        self._pool.grow(buffer, more)
        self._lent_bytes += more
        return True

    def _begin_larger(self, ref: SliceRef, data: memoryview, rows: SliceRowFormat) -> bool:
        """Start a batch of the record's size for a record larger than a batch. Returns False without memory."""
        assert self._open is not None
        self._open.builder.abort()
        self._give(self._open.buffer)
        self._open = None
        base_ts, own, id_header = rows
        at, with_id = self._position, bool(id_header)
        need = single_record_batch_size(data, at, len(data), own_timestamps=own, slice_ts=base_ts, with_id=with_id)
        return self._begin(ref.first + self._taken, need, ref.created_ms / 1000, exactly=True) is not None

    def _count_max(self, first: int) -> int:
        if self.one_record:
            return 1
        place = bisect_right(self._breaks, first)
        return self._breaks[place] - first if place < len(self._breaks) else _ANY_COUNT

    def _close_open(self) -> None:
        assert self._open is not None
        self._closed.append(self._open)
        self._open = None

    # --- batches out -------------------------------------------------------------------------------------------------

    def sendable_at(self, now: float) -> float | None:
        """From when on the next batch may be sent; None: there is none. Linger counts from the arrival of the first
        record at the router; a flush or a node out of memory ends it."""
        if self._closed:
            return now
        if self._open is None:
            return None
        if self._open.builder.first < self.flush_to or self._pool.starved(self.node):
            return now
        return self._open_since + self.rules.linger_s

    def estimated_bytes(self) -> int:
        """Estimated size of the next batch on the wire; 0: there is none."""
        following = self._closed[0] if self._closed else self._open
        if following is None:
            return 0
        growth = growth_of(self.rules.compressor, self._ratio.value)
        return BATCH_HEADER_BYTES + int(following.builder.record_bytes * growth)

    def next_max_ts(self) -> int:
        """Largest record timestamp of the next batch, ms since 1970; -1 without one."""
        following = self._closed[0] if self._closed else self._open
        return -1 if following is None else following.builder.max_ts

    def close_next(self) -> PendingBatch | None:
        """Cut the next batch and return it; pass it to `seal`. None: there is none."""
        if not self._closed:
            if self._open is None:
                return None
            self._close_open()
        closed = self._closed.popleft()
        assert closed.builder.first >= self.cut_to, "records cut twice"
        self.cut_to = closed.builder.first + closed.builder.count
        return closed

    def seal(self, closed: PendingBatch, batch: ProducerBatch) -> None:
        """Compress the batch and write its stamp and header."""
        assert closed.buffer.belongs_to(self._owner_at(batch.first), closed.uses), "a foreign buffer (MEM-3)"
        self._finish(closed.builder, batch)
        self._lent_bytes -= self._pool.shrunk(closed.buffer)
        batch.buffer = closed.buffer
        batch.uses = closed.uses
        batch.created = closed.created

    def _finish(self, builder: BatchBuilder, batch: ProducerBatch) -> None:
        stamp = Stamp(batch.producer_id, batch.epoch, batch.sequence)
        batch.record_bytes = builder.record_bytes
        batch.record_bytes_max = builder.record_bytes_max
        batch.max_ts = builder.max_ts
        batch.data = builder.close(stamp, self.rules.compressor, transactional=self.rules.transactional)
        batch.size = len(batch.data)
        if self.rules.compressor.compress is not None and not self.one_record:
            # A single record is a poor sample of the compression ratio.
            self._ratio.observe((batch.size - BATCH_HEADER_BYTES) / batch.record_bytes)

    def covers(self, batch: ProducerBatch) -> bool:
        """Whether the batch has its bytes, or the slices to rebuild them from are known."""
        return batch.data is not None or batch.end <= self._refs_end

    def build(self, batch: ProducerBatch) -> bool:
        """Rebuild the batch's bytes if it lacks them. Returns False if slices are missing or `damage` is set. The bytes
        are outside the pool: batches behind this one may hold all memory of the pool until it is sent."""
        if batch.data is not None:
            return True
        if not self.covers(batch) or self.damage is not None:
            return False
        refs = (*self._consumed, *self._unread)
        try:
            builder = self._reader.rebuild_batch(refs, batch.first, batch.end)
        except SliceDamageError as error:
            self.damage = error.damage
            return False
        self._finish(builder, batch)
        batch.created = next(ref.created_ms for ref in refs if batch.first < ref.first + ref.count) / 1000
        return True

    def split(self, parent: ProducerBatch) -> list[int]:
        """Record counts of the two or more batches that replace one that the broker refused as too large (PBT-9)."""
        assert parent.count > 1, "one record cannot be split"
        self.splits += 1
        packed = parent.size - BATCH_HEADER_BYTES
        if self.rules.compressor.compress is not None:
            self._ratio.reset(packed / parent.record_bytes)
        if parent.size > self._batch_bytes:
            limit = self._batch_bytes
            growth = growth_of(self.rules.compressor, self._ratio.value)
        else:
            # The topic's limit is below the configured batch size.
            limit, growth = BATCH_HEADER_BYTES + parent.record_bytes // 2, 1.0
            self._batch_bytes = BATCH_HEADER_BYTES + max(packed // 2, 1)
        refs = (*self._consumed, *self._unread)
        try:
            counts = self._reader.split_counts(
                refs, parent.first, parent.end, record_bytes=parent.record_bytes, limit=limit, growth=growth
            )
        except SliceDamageError as error:
            self.damage = error.damage
            counts = [parent.count]
        half = parent.count // 2
        return counts if len(counts) > 1 else [half, parent.count - half]

    def set_one_record(self, *, one_record: bool) -> None:
        """Set whether a batch holds one record only, as at pace FIRST. If so, read uncut records again."""
        if one_record == self.one_record:
            return
        self.one_record = one_record
        if one_record:
            self._rewind()

    def _rewind(self) -> None:
        for filled in (*self._closed, *([self._open] if self._open is not None else [])):
            filled.builder.abort()
            self._give(filled.buffer)
        self._closed.clear()
        self._open = None
        self._position = self._taken = 0
        while self._consumed and self._consumed[-1].first + self._consumed[-1].count > self.cut_to:
            self._unread.appendleft(self._consumed.pop())

    def skip_to(self, end: int) -> None:
        """Never send the records below `end` that are not in a cut."""
        self._rewind()
        self.cut_to = max(self.cut_to, end)
        while self._unread and self._unread[0].first + self._unread[0].count <= self.cut_to:
            self._consumed.append(self._unread.popleft())

    def resolved_to(self, end: int) -> None:
        """Forget slices whose records are all below `end`: they have their outcome."""
        while self._consumed and self._consumed[0].first + self._consumed[0].count <= end:
            _ = self._consumed.popleft()

    def retain(self, batch: ProducerBatch) -> None:
        """Keep the batch's bytes for a transport, until `release`."""
        if batch.buffer is not None:
            assert batch.buffer.belongs_to(self._owner_at(batch.first), batch.uses), "a foreign buffer (MEM-3)"
        batch.transport_refs += 1

    def release(self, batch: ProducerBatch) -> None:
        """A transport no longer reads the batch's bytes (MEM-4)."""
        batch.transport_refs -= 1
        self._free(batch)

    def discard(self, batch: ProducerBatch) -> None:
        """Drop a resolved, replaced or revoked batch. Its buffer is released once no transport reads it."""
        batch.dropped = True
        self._free(batch)

    def _free(self, batch: ProducerBatch) -> None:
        if batch.dropped and not batch.transport_refs and batch.buffer is not None:
            self._give(batch.buffer)
            batch.buffer = None
            batch.data = None

    def _give(self, buffer: Buffer) -> None:
        self._lent_bytes -= buffer.size
        self.released_buffers.append(buffer)

    def drop(self) -> None:
        """Forget all slices, at the end of the lease."""
        self._rewind()
        self._unread.clear()
        self._consumed.clear()
