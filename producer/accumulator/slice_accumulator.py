"""Fills batches from slices, in the order in which they lie in the spool, as far as the memory of their nodes goes.

Each partition with something to read stands in line once, by the place of its next slice: neighbours in a segment are read
at once. One that finds no memory leaves the line and comes back when a buffer of its node does; one that has enough batches
comes back when one of them is cut.
"""

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...wire.messages import SliceRef
from ..records.compression import Ratios
from ..records.slice_reader import Damage, Source
from .buffer_pool import BufferPool
from .partition_queue import Fed, PartitionQueue

RUN_BYTES_MAX: Final = 256 << 10
_GAP_BYTES_MAX: Final = 16 << 10
"""Reading over so much that is not ours is cheaper than a second call."""


class Filled(NamedTuple):
    """What a round of filling changed: partitions to look at again, nodes that want memory since, and the bytes read."""

    partitions: set[int]
    starved: set[int]
    nbytes: int


class Accumulator:
    """Owner of the line. `handed` counts, per node, the bytes of all slices that came, `consumed` counts, per node, the bytes of slices that are encoded or dropped: what credit is made
    of (HOP-3)."""

    def __init__(self, pool: BufferPool, source: Source) -> None:
        self.pool: Final = pool
        self.source: Final = source
        self.ratios: Final = Ratios()
        self.handed: dict[int, int] = {}
        self.consumed: dict[int, int] = {}
        self._line: list[tuple[int, int, int, PartitionQueue]] = []
        self._count = 0
        self._starved: dict[int, dict[PartitionQueue, None]] = {}
        """By node: who found no memory, each once, in order."""

    def add(self, entries: Iterable[tuple[PartitionQueue, SliceRef]]) -> None:
        """Slices, those of a partition in ordinal order."""
        for queue, ref in entries:
            self.add_one(queue, ref)

    def add_one(self, queue: PartitionQueue, ref: SliceRef) -> None:
        """The next slice of a partition."""
        self.handed[queue.node] = self.handed.get(queue.node, 0) + ref.length
        if not queue.accept(ref):
            self._consume(queue.node, ref)
        elif not queue.in_line:
            self.resume(queue)

    def resume(self, queue: PartitionQueue) -> None:
        """The partition may have room again, or something to read: it gets in line, if so."""
        if queue.in_line or not queue.wants_more:
            return
        queue.in_line = True
        self._count += 1
        following = queue.unread[0]
        heapq.heappush(self._line, (following.segment, following.offset, self._count, queue))

    def fill(self, bytes_max: int) -> Filled:
        """Read and encode up to about `bytes_max` bytes of slices."""
        filled = Filled(set(), set(), 0)
        nbytes = 0
        while self._line and nbytes < bytes_max:
            run = self._next_run()
            if run:
                nbytes += self._read(run, filled)
        return filled._replace(nbytes=nbytes)

    @property
    def has_line(self) -> bool:
        """There are slices that could be read."""
        return bool(self._line)

    def collect(self, queue: PartitionQueue) -> None:
        """Take back what the partition let go of; others of its node may go on."""
        for buffer in queue.returned:
            node = buffer.node
            self.pool.give(buffer)
            self._wake_starved(node)
        queue.returned.clear()

    def forget(self, queue: PartitionQueue) -> None:
        """The lease is over; what was not read counts as consumed."""
        for ref in queue.unread:
            self._consume(queue.node, ref)
        for waiting in self._starved.values():
            _ = waiting.pop(queue, None)
        queue.drop()
        self.collect(queue)

    def move(self, queue: PartitionQueue, node: int) -> None:
        """The partition belongs to another node. What it was handed so far was charged to the old one, and is paid back."""
        for ref in queue.unread:
            self._consume(queue.node, ref)
            self._consume(node, ref, -1)
        queue.node = node
        self.resume(queue)

    def _consume(self, node: int, ref: SliceRef, sign: int = 1) -> None:
        self.consumed[node] = self.consumed.get(node, 0) + sign * ref.length

    def _next_run(self) -> list[tuple[PartitionQueue, SliceRef]]:
        """The next slices of the partitions at the head of the line, as far as they lie beside each other."""
        run: list[tuple[PartitionQueue, SliceRef]] = []
        start = end = segment = -1
        while self._line:
            queue = self._line[0][3]
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
            queue.in_line = False
            _ = heapq.heappop(self._line)
        return run

    def _read(self, run: list[tuple[PartitionQueue, SliceRef]], filled: Filled) -> int:
        first, last = run[0][1], run[-1][1]
        start = first.offset
        size = last.offset + last.length - start
        data = self.source.read(first.segment, start, size)
        for queue, ref in run:
            filled.partitions.add(queue.partition)
            if isinstance(data, str):
                queue.damage = Damage(ref, data)
                continue
            at = ref.offset - start
            fed = queue.feed(ref, data[at : at + ref.length])
            if queue.returned:
                self.collect(queue)
            if fed is Fed.TAKEN:
                self._consume(queue.node, ref)
                if queue.unread:
                    self.resume(queue)
            elif fed is Fed.NO_MEMORY:
                filled.starved.add(queue.node)
                self._starved.setdefault(queue.node, {})[queue] = None
        return size

    def _wake_starved(self, node: int) -> None:
        """A buffer came back: the next partition in want of one may try."""
        waiting = self._starved.get(node)
        while waiting:
            queue = next(iter(waiting))
            del waiting[queue]
            if queue.wants_more and not queue.in_line:
                self.resume(queue)
                return
