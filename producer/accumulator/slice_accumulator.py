"""Fills batches from slices in spool order, while the memory of their nodes lasts.

Each partition with a slice to read is in the read queue once, ordered by the slice's position: neighbouring slices of a
segment are read in one call. A partition that finds no memory leaves the queue until a buffer of its node returns; one
with enough batches leaves it until one of them is cut.
"""

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...wire.messages import SliceRef
from ..records.compression import CompressionRatios
from ..records.slice_reader import SliceDamage, SliceSource
from .buffer_pool import BufferPool
from .partition_queue import FeedResult, PartitionQueue

RUN_BYTES_MAX: Final = 256 << 10
_GAP_BYTES_MAX: Final = 16 << 10
"""Reading this many unneeded bytes between two slices is cheaper than a second call."""


class FillResult(NamedTuple):
    """Result of `fill`: partitions whose queue changed, nodes that ran out of memory, and the bytes read."""

    partitions: set[int]
    starved: set[int]
    nbytes: int


class SliceAccumulator:
    """Owns the read queue, and counts slice bytes per node for the credit (HOP-3): `received_bytes` of all slices,
    `consumed_bytes` of those encoded or dropped."""

    def __init__(self, pool: BufferPool, source: SliceSource) -> None:
        self.pool: Final = pool
        self.source: Final = source
        self.ratios: Final = CompressionRatios()
        self.received_bytes: dict[int, int] = {}
        self.consumed_bytes: dict[int, int] = {}
        self._read_queue: list[tuple[int, int, int, PartitionQueue]] = []
        self._count = 0
        self._starved: dict[int, dict[PartitionQueue, None]] = {}
        """By node: queues that found no memory, each once, in order."""

    def add(self, entries: Iterable[tuple[PartitionQueue, SliceRef]]) -> None:
        """Add slices; those of one partition must be in ordinal order."""
        for queue, ref in entries:
            self.add_one(queue, ref)

    def add_one(self, queue: PartitionQueue, ref: SliceRef) -> None:
        """Add the next slice of a partition."""
        self.received_bytes[queue.node] = self.received_bytes.get(queue.node, 0) + ref.length
        if not queue.accept(ref):
            self._consume(queue.node, ref)
        elif not queue.scheduled:
            self.resume(queue)

    def resume(self, queue: PartitionQueue) -> None:
        """Put the partition into the read queue if it has a slice to read and room for it."""
        if queue.scheduled or not queue.wants_more:
            return
        queue.scheduled = True
        self._count += 1
        following = queue.unread[0]
        heapq.heappush(self._read_queue, (following.segment, following.offset, self._count, queue))

    def fill(self, bytes_max: int) -> FillResult:
        """Read and encode up to about `bytes_max` bytes of slices."""
        filled = FillResult(set(), set(), 0)
        nbytes = 0
        while self._read_queue and nbytes < bytes_max:
            run = self._next_run()
            if run:
                nbytes += self._read(run, filled)
        return filled._replace(nbytes=nbytes)

    @property
    def has_unread(self) -> bool:
        """Whether there are slices to read."""
        return bool(self._read_queue)

    def collect(self, queue: PartitionQueue) -> None:
        """Return the partition's released buffers to the pool, and resume partitions that wait for them."""
        for buffer in queue.released_buffers:
            node = buffer.node
            self.pool.deallocate(buffer)
            self._wake_starved(node)
        queue.released_buffers.clear()

    def forget(self, queue: PartitionQueue) -> None:
        """Drop the queue of an ended lease. Its unread slices count as consumed."""
        for ref in queue.unread:
            self._consume(queue.node, ref)
        for waiting in self._starved.values():
            _ = waiting.pop(queue, None)
        queue.drop()
        self.collect(queue)

    def move(self, queue: PartitionQueue, node: int) -> None:
        """Move the partition to another node. Give back the credit of the old node that its unread slices used."""
        for ref in queue.unread:
            self._consume(queue.node, ref)
            self._consume(node, ref, -1)
        queue.node = node
        self.resume(queue)

    def _consume(self, node: int, ref: SliceRef, sign: int = 1) -> None:
        self.consumed_bytes[node] = self.consumed_bytes.get(node, 0) + sign * ref.length

    def _next_run(self) -> list[tuple[PartitionQueue, SliceRef]]:
        """Take neighbouring slices from the head of the read queue, at most one per partition."""
        run: list[tuple[PartitionQueue, SliceRef]] = []
        start = end = segment = -1
        while self._read_queue:
            queue = self._read_queue[0][3]
            if queue.wants_more:
                ref = queue.unread[0]
                if not run:
                    start, segment = ref.offset, ref.segment
                elif (
                    ref.segment != segment
                    or not 0 <= ref.offset - end <= _GAP_BYTES_MAX
                    or ref.offset + ref.length - start > RUN_BYTES_MAX
                ):
                    break
                end = ref.offset + ref.length
                run.append((queue, ref))
            queue.scheduled = False
            _ = heapq.heappop(self._read_queue)
        return run

    def _read(self, run: list[tuple[PartitionQueue, SliceRef]], filled: FillResult) -> int:
        first, last = run[0][1], run[-1][1]
        start = first.offset
        size = last.offset + last.length - start
        data = self.source.read(first.segment, start, size)
        for queue, ref in run:
            filled.partitions.add(queue.partition)
            if isinstance(data, str):
                queue.damage = SliceDamage(ref, data)
                continue
            at = ref.offset - start
            fed = queue.feed(ref, data[at : at + ref.length])
            if queue.released_buffers:
                self.collect(queue)
            if fed is FeedResult.TAKEN:
                self._consume(queue.node, ref)
                if queue.unread:
                    self.resume(queue)
            elif fed is FeedResult.NO_MEMORY:
                filled.starved.add(queue.node)
                self._starved.setdefault(queue.node, {})[queue] = None
        return size

    def _wake_starved(self, node: int) -> None:
        """After a buffer of the node returned, resume the next partition that waits for one."""
        waiting = self._starved.get(node)
        while waiting:
            queue = next(iter(waiting))
            del waiting[queue]
            if queue.wants_more and not queue.scheduled:
                self.resume(queue)
                return
