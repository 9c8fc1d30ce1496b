"""Fills batches from slices, in the order in which they lie in the spool, as far as the memory of their nodes goes.

References wait in one line; neighbours in a segment are read at once. A partition that finds no memory leaves the line and
comes back when a buffer of its node does; one that has enough batches comes back when one of them is cut.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from ...wire.messages import SliceRef
from .buffers import BufferPool
from .queues import Damage, Fed, PartitionQueue, Source

RUN_BYTES_MAX: Final = 256 << 10
_GAP_BYTES_MAX: Final = 4 << 10
"""Reading over so much that is not ours is cheaper than a second call."""


class Filled(NamedTuple):
    """What a round of filling changed: partitions to look at again, and nodes that want memory since."""

    partitions: set[int]
    starved: set[int]


class Accumulator:
    """Owner of the line of references. `consumed` counts, per node, the bytes of slices that are encoded or dropped: what
    credit is made of (HOP-3)."""

    def __init__(self, pool: BufferPool, source: Source) -> None:
        self.pool: Final = pool
        self.source: Final = source
        self.consumed: dict[int, int] = {}
        self._line: deque[tuple[PartitionQueue, SliceRef]] = deque()
        self._starved: dict[int, deque[PartitionQueue]] = {}

    def add(self, entries: Iterable[tuple[PartitionQueue, SliceRef]]) -> None:
        """Slices of one message, in any order of partitions."""
        wanted = [(queue, ref) for queue, ref in entries if self._accept(queue, ref)]
        wanted.sort(key=_place)
        self._line.extend(wanted)

    def _accept(self, queue: PartitionQueue, ref: SliceRef) -> bool:
        if queue.accept(ref):
            return True
        self._consume(queue.node, ref)
        return False

    def resume(self, queue: PartitionQueue) -> None:
        """The partition has room again: its slices go back to the head of the line."""
        if queue.unread and queue.wants(queue.unread[0]):
            self._line.extendleft((queue, ref) for ref in reversed(queue.unread))

    def fill(self, bytes_max: int) -> Filled:
        """Read and encode up to about `bytes_max` bytes of slices."""
        filled = Filled(set(), set())
        while self._line and bytes_max > 0:
            run = self._next_run()
            if run:
                bytes_max -= self._read(run, filled)
        return filled

    @property
    def has_line(self) -> bool:
        """There are slices that could be read."""
        return bool(self._line)

    def collect(self, queue: PartitionQueue) -> bool:
        """Take back what the partition let go of. True: others of its node may go on."""
        if not queue.returned:
            return False
        for buffer in queue.returned:
            node = buffer.node
            self.pool.give(buffer)
            self._wake_starved(node)
        queue.returned.clear()
        return True

    def forget(self, queue: PartitionQueue) -> None:
        """The lease is over; what was not read counts as consumed."""
        for ref in queue.unread:
            self._consume(queue.node, ref)
        queue.drop()
        _ = self.collect(queue)

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
        """Slices at the head of the line that lie beside each other."""
        run: list[tuple[PartitionQueue, SliceRef]] = []
        heads: set[int] = set()
        start = end = segment = -1
        while self._line:
            queue, ref = self._line[0]
            known = queue.tag.partition in heads
            if not known and not queue.wants(ref):
                _ = self._line.popleft()
                continue
            if run:
                near = ref.segment == segment and 0 <= ref.offset - end <= _GAP_BYTES_MAX
                if not near or ref.offset + ref.length - start > RUN_BYTES_MAX:
                    break
            else:
                start, segment = ref.offset, ref.segment
            end = ref.offset + ref.length
            heads.add(queue.tag.partition)
            run.append((queue, ref))
            _ = self._line.popleft()
        return run

    def _read(self, run: list[tuple[PartitionQueue, SliceRef]], filled: Filled) -> int:
        first, last = run[0][1], run[-1][1]
        size = last.offset + last.length - first.offset
        data = self.source.read(first.segment, first.offset, size)
        for queue, ref in run:
            if not queue.wants(ref):
                # An earlier slice of this run stopped its partition.
                continue
            if isinstance(data, str):
                queue.damage = Damage(ref, data)
            else:
                at = ref.offset - first.offset
                self._feed(queue, ref, data[at : at + ref.length], filled)
            filled.partitions.add(queue.tag.partition)
        return size

    def _feed(self, queue: PartitionQueue, ref: SliceRef, data: memoryview, filled: Filled) -> None:
        fed = queue.feed(ref, data)
        if fed is Fed.TAKEN:
            self._consume(queue.node, ref)
        elif fed is Fed.NO_MEMORY:
            filled.starved.add(queue.node)
            self._starved.setdefault(queue.node, deque()).append(queue)
        if queue.returned:
            _ = self.collect(queue)

    def _wake_starved(self, node: int) -> None:
        """A buffer came back: the next partition in want of one may try."""
        waiting = self._starved.get(node)
        while waiting:
            queue = waiting.popleft()
            if queue.unread:
                self.resume(queue)
                return


def _place(entry: tuple[PartitionQueue, SliceRef]) -> tuple[int, int]:
    return entry[1].segment, entry[1].offset
