"""Buffers the direct producer's records per partition until the sender thread drains them.

The kernel writes the rows. It calls this class only for rarer events: `open`, `grow`, `close` and `rotate` under the
producer's lock, the rest without it. The sender thread calls `drain`, which makes slices with ordinals.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...api.errors import BufferExhaustedError, ClosedError, PenstockError, RecordTooLargeError
from ...api.metadata import PartitionMetadata
from ...api.partitioning import Partitioner, choose_partition
from ...config.direct import DirectSettings
from ...runtime.clock import wall_ms
from ...wire.slices import CRC_FROM, HEADER, HEADER_BYTES, OWN_TIMESTAMPS, VERSION, crc_prefix
from ..accumulator.budgets import budgets_by_node
from ..accumulator.buffer_pool import ANY_NODE, BufferPool
from ..accumulator.chunk_store import ChunkStore, SealedChunk
from ..accumulator.partitioners import KeylessPartitioner, StickyPartitioner, choices_of, leaders_of
from ..kernel.chunks import AccumulatorPartition, AccumulatorTopic, Chunk
from ..metadata.cluster import Cluster, TopicView
from ..records.batch_builder import crc32c
from .environment import Environment, SenderWaker
from .nonblocking import WouldBlock
from .turns import SendGuard

FIRST_CHUNK_BYTES: Final = 512
"""Initial size of a partition's first chunk. A later chunk starts at the size that the previous one reached."""
TOPIC_USE_INTERVAL_S: Final = 5.0
"""How often a topic is reported to the sender thread as in use."""
WAIT_MAX_S: Final = 3600.0
MEMORY_RECHECK_S: Final = 0.1
"""How often keyless records that wait for memory check whether another node has some."""


class RecordAccumulator(SendGuard):
    """Buffers records per partition until the sender thread drains them; see the module."""

    def __init__(
        self,
        settings: DirectSettings,
        seams: Environment,
        partitioner: Partitioner | None,
        keyless: Callable[[], KeylessPartitioner] | None,
    ) -> None:
        self.settings: Final = settings
        self.environment: Final = seams
        self.condition: Final = seams.condition
        self.topics = {}
        self.acquire, self.release = seams.condition.acquire, seams.condition.release
        self.refusal = None
        self.transaction_epoch = 0
        self.closed_error: ClosedError | None = None
        """The producer is closed or has failed: final. Until then, `refusal` comes and goes with transactions."""
        self.wall_clock = seams.wall
        self.partitioner = partitioner
        self.wake_needed = False
        self.ignore_keys = settings.partitioner_ignore_keys
        self.single_replica = settings.acks != "-1"
        self.record_bytes_max = min(settings.max_request_size, settings.buffer_memory)
        self.pool: Final = BufferPool(max(settings.buffer_memory, settings.batch_size), settings.batch_size)
        self.arena: Final = ChunkStore(settings.batch_size, settings.buffer_memory)
        self.cluster = Cluster()
        self.unsettled: Final[dict[int, Chunk]] = {}
        """Chunks with records whose futures are not done, by serial number, oldest first."""
        self.last_serial = -1
        self.flushes = 0
        self.would_block: WouldBlock | None = None  # set in non-blocking mode, asked instead of waiting
        self._waker: SenderWaker | None = None
        self._make_keyless: Final = keyless or (lambda: StickyPartitioner(max(1, settings.batch_size), seams.random31))
        self._linger_s: Final = settings.linger_ms / 1000
        self._max_block_s: Final = min(settings.max_block_ms / 1000, threading.TIMEOUT_MAX)
        self._parts: Final[dict[tuple[str, int], AccumulatorPartition]] = {}
        self._crc_prefixes: Final[dict[AccumulatorPartition, int]] = {}
        self._open: Final[dict[AccumulatorPartition, None]] = {}
        self._full: list[Chunk] = []
        self._sealed_at = -math.inf
        self._steady = False
        """Whether the last chunk opened less than the linger time after the drain before it."""
        self._sender_scheduled = False
        """The sender thread will call `drain` before the linger time of a chunk opened now is over."""
        self._leader_nodes: set[int] = set()

    @property
    def thread(self) -> SenderWaker:
        """The sender thread."""
        assert self._waker is not None, "the front has no sender thread"
        return self._waker

    def set_append_error(self, reason: PenstockError | None) -> None:
        """Reject records with this error, or accept them again (None): a transaction ended or started. An error also
        closes all open chunks, so that their records do not linger. No effect on a closed producer."""
        with self.condition:
            if self.closed_error is None:
                if reason is None and self.refusal is not None:
                    self.transaction_epoch += 1
                self.refusal = reason
                if reason is not None:
                    self.close_all()

    def set_waker(self, thread: SenderWaker) -> None:
        """Set the sender thread. It needs this object in its constructor, so it can only be set afterwards."""
        self._waker = thread

    def wake_sender(self) -> None:
        """Wake the sender thread."""
        self.wake_needed = False
        self.thread.wake()

    # --- topics ------------------------------------------------------------------------------------------------------

    def update_topic(self, name: str, view: TopicView) -> AccumulatorTopic:
        """Create or update the topic from the metadata snapshot; call under the lock."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = AccumulatorTopic(name, self._make_keyless())
        for index in range(topic.count, view.partition_count):
            topic.parts.append(self._part(name, index))
        topic.count = view.partition_count
        leaders = leaders_of(self.cluster, view)
        led = {leader.partition: leader.node for leader in leaders}
        for part in topic.parts:
            part.node = led.get(part.index, ANY_NODE)
        if not self._leader_nodes.issuperset(led.values()):
            self.update_budgets()
        rack = self.settings.client_rack if self.settings.partitioner_rack_aware else ""
        topic.keyless.update(choices_of(topic.count, leaders, None, rack))
        topic.sticky = topic.keyless.partition
        topic.allowance = topic.keyless.allowance()
        return topic

    def _part(self, name: str, index: int) -> AccumulatorPartition:
        """The partition, created on first use. It keeps its ordinals even if the topic is forgotten."""
        part = self._parts.get((name, index))
        if part is None:
            part = self._parts[name, index] = AccumulatorPartition(self, name, index)
            part.sealed = deque()
            self._crc_prefixes[part] = crc32c(crc_prefix(name, index))
        return part

    def update_budgets(self) -> None:
        """Set a memory budget for each node that leads a partition of a topic in use. Chunks keep their node."""
        leading = {part.node for topic in self.topics.values() for part in topic.parts} - {ANY_NODE}
        if leading != self._leader_nodes:
            self._leader_nodes = leading
            self.pool.share_out(budgets_by_node(self.pool.total_bytes, self.record_bytes_max, leading))

    def _charged_node(self, part: AccumulatorPartition) -> int:
        """The node whose budget pays for a chunk of the partition: the leader if it has one, else `ANY_NODE`."""
        return part.node if self.pool.has_budget(part.node) else ANY_NODE

    def part_at(self, name: str, index: int) -> AccumulatorPartition:
        """The partition, which must have been created before."""
        return self._parts[name, index]

    def rotate(self, topic: AccumulatorTopic, full: bool) -> None:
        """Report `sticky_bytes` to the partitioner, and take its next choice. `full`: no chunk is open."""
        keyless = topic.keyless
        keyless.appended(topic.sticky_bytes, all_batches_full=full)
        topic.sticky_bytes = 0
        topic.sticky = keyless.partition
        topic.allowance = keyless.allowance()

    def ask_partitioner(self, topic: AccumulatorTopic, key: bytes | None, value: bytes | None) -> int:
        """The partition that the application's partitioner chose, -1 if it left the choice to the producer.

        Raises:
            TypeError, ValueError: it did not return a partition of the topic.
        """
        assert self.partitioner is not None
        index = choose_partition(self.partitioner, topic.name, key, value, self.partitions_of(topic.name))
        if index is not None and index >= len(topic.parts):
            with self.condition:  # the topic was recreated with more partitions meanwhile
                topic.parts += [self._part(topic.name, i) for i in range(len(topic.parts), index + 1)]
        return -1 if index is None else index

    def ask_partitioner_for_each(
        self,
        topic: AccumulatorTopic,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        wanted: Sequence[int | None] | None,
    ) -> list[int | None]:
        """The same for columns. Records with an explicit partition keep it."""
        every: list[int | None] = [None] * len(values) if wanted is None else list(wanted)
        for i, index in enumerate(every):
            if index is None:
                answer = self.ask_partitioner(topic, None if keys is None else keys[i], values[i])
                every[i] = None if answer < 0 else answer
        return every

    def partitions_of(self, topic: str) -> list[PartitionMetadata]:
        """The topic's partitions in the metadata snapshot, empty for an unknown topic."""
        view = self.cluster.topic(topic)
        if view is None:
            return []
        return [
            PartitionMetadata(part.index, part.leader, part.replicas, part.isr) for part in view.partitions.values()
        ]

    def too_large(self, size: int) -> RecordTooLargeError:
        """The error for a record that takes up to `size` bytes in a batch of its own, uncompressed (SND-8)."""
        name, limit = "max.request.size", self.settings.max_request_size
        if size <= limit:
            name, limit = "buffer.memory", self.settings.buffer_memory
        return RecordTooLargeError(f"a record of up to {size} bytes before compression is over {name} = {limit}")

    # --- chunks, under the lock --------------------------------------------------------------------------------------

    def open(
        self, part: AccumulatorPartition, row: int, began: float | None, keyless: AccumulatorTopic | None
    ) -> PenstockError | None:
        """Open a chunk with room for a row; waits for memory if it must, releasing the lock.

        Returns None if the caller should look again: the chunk is open, another thread opened one, or `keyless`
        moved to a partition whose node has memory. Returns an error if memory was not available in time.

        Raises:
            ClosedError: the producer was closed meanwhile.
            TransactionStateError, TransactionAbortableError: the record's transaction ended meanwhile.
        """
        if self.refusal is not None:
            self.refuse()
        need = HEADER_BYTES + row
        limit = max(self.settings.batch_size, need)
        size = max(need, min(limit, part.initial_chunk_bytes or FIRST_CHUNK_BYTES))
        node = self._charged_node(part)
        while not self.pool.try_reserve(size, node):
            size = need
            if self.pool.try_reserve(size, node):
                break
            if keyless is not None and self._leave_full_node(keyless, size):
                return None
            began = self.environment.now() if began is None else began
            got = self._wait_for_memory(size, node, began, keyless)
            if got is not True:
                return got or None
            # Other threads may have changed anything during the wait (ACC-4).
            if self.refusal is not None:
                self.pool.release(size, node)
                self.refuse()
            if part.chunk is None:
                break
            self.pool.release(size, node)
            if part.chunk.end + row <= part.chunk.capacity or self.grow(part.chunk, row):
                return None
        self._begin(part, size, node, limit)
        return None

    def _begin(self, part: AccumulatorPartition, size: int, node: int, limit: int) -> None:
        chunk = Chunk(part)
        chunk.limit = limit
        chunk.reserved_bytes = size
        chunk.node = node
        chunk.use(self.arena.make(size))
        chunk.created = self.environment.now()
        self.last_serial += 1
        chunk.serial = self.last_serial
        self.unsettled[chunk.serial] = chunk
        part.chunk = chunk
        if not self._open:
            self._steady = chunk.created < self._sealed_at + self._linger_s
            if not self._sender_scheduled:
                self.wake_needed = True
        self._open[part] = None
        topic = self.topics.get(part.topic)
        if topic is not None and chunk.created - topic.used_at > TOPIC_USE_INTERVAL_S:
            topic.used_at = chunk.created
            self.thread.want_topic(part.topic)

    def _wait_for_memory(
        self, size: int, node: int, began: float | None, keyless: AccumulatorTopic | None
    ) -> PenstockError | bool:
        """True: memory is reserved. False: `keyless` moved to another partition. An error: none was free in time."""
        now = self.environment.now()
        if self.thread.is_current:
            return BufferExhaustedError("the producer's memory is full, and a callback cannot wait for it")
        if self.would_block is not None:
            return self.would_block.on_memory_full(size, node)
        left = self._max_block_s if began is None else max(0.0, began + self._max_block_s - now)
        pause_s = WAIT_MAX_S if keyless is None or not self.pool.has_budget(node) else MEMORY_RECHECK_S
        # One condition per caller: memory for one of them does not wake the others.
        woken = self.environment.new_condition()
        try:
            with self.pool.reserve(size, node, now=now, max_wait_s=left, wake=woken.notify) as ticket:
                self._close_chunks_under_pressure()
                self.wake_sender()
                while not ticket.poll(now):
                    if keyless is not None and self._leave_full_node(keyless, size):
                        ticket.cancel()
                        return False
                    _ = woken.wait(min(pause_s, ticket.deadline - now))
                    now = self.environment.now()
        except BufferExhaustedError as error:
            return error
        return True

    def _leave_full_node(self, topic: AccumulatorTopic, size: int) -> bool:
        """Move keyless records to a node that has memory, until the next load update. False: no node has any."""
        settings, view = self.settings, self.cluster.topic(topic.name)
        adapts = settings.partitioner_adaptive_partitioning_enable and isinstance(topic.keyless, StickyPartitioner)
        adapts = adapts and not self.pool.closed
        if view is None or not adapts or not any(self.pool.reservable_for(node) >= size for node in self._leader_nodes):
            return False
        with_room = [
            leader
            for leader in leaders_of(self.cluster, view)
            if leader.partition < topic.count
            and self.pool.reservable_for(self._charged_node(topic.parts[leader.partition])) >= size
        ]
        if not with_room:
            return False
        rack = settings.client_rack if settings.partitioner_rack_aware else ""
        topic.keyless.update(choices_of(topic.count, with_room, None, rack))
        topic.sticky = topic.keyless.partition
        topic.allowance = topic.keyless.allowance()
        topic.sticky_bytes = 0
        return True

    def grow(self, chunk: Chunk, row: int) -> bool:
        """Make room for one more row. False: the chunk was full, or there was no memory; it is closed now."""
        need = chunk.end + row
        if need <= chunk.limit:
            for size in (min(chunk.limit, max(need, 2 * chunk.reserved_bytes)), need):
                if self.pool.try_reserve(size - chunk.reserved_bytes, chunk.node):
                    data = self.arena.make(size)
                    assert chunk.data is not None
                    data[: chunk.end] = memoryview(chunk.data)[: chunk.end]
                    chunk.reserved_bytes = size
                    chunk.use(data)
                    return True
        self.close(chunk)
        return False

    def close(self, chunk: Chunk) -> None:
        """Stop appending to the chunk. The sender thread seals it."""
        part = chunk.part
        part.chunk = None
        part.initial_chunk_bytes = min(self.settings.batch_size, max(FIRST_CHUNK_BYTES, 1 << chunk.end.bit_length()))
        chunk.capacity = 0
        del self._open[part]
        self._full.append(chunk)
        self.wake_needed = True

    def close_all(self) -> None:
        """Close every open chunk, so that no record lingers."""
        for part in list(self._open):
            assert part.chunk is not None
            self.close(part.chunk)

    def _close_chunks_under_pressure(self) -> None:
        """Close the chunks whose memory a caller waits for, so that they do not linger."""
        wanting = self.pool.waiting_nodes
        for part in list(self._open):
            assert part.chunk is not None
            if _frees_wanted_memory(part.chunk, wanting):
                self.close(part.chunk)

    # --- the sender thread -------------------------------------------------------------------------------------------

    @property
    def flushing(self) -> bool:
        """Whether no record may linger: a flush or close is running, or a caller waits for the shared reserve."""
        return self.flushes > 0 or self.closed_error is not None or ANY_NODE in self.pool.waiting_nodes

    @property
    def nodes_under_pressure(self) -> frozenset[int]:
        """Nodes whose records must not linger because a caller waits for their memory (BUF-14)."""
        return self.pool.waiting_nodes

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        """Seal and return the chunks that are full or have lingered long enough; `all_chunks`: every chunk."""
        with self.condition:
            if all_chunks or self.flushing:
                self.close_all()
            elif self.pool.waiting_nodes:
                self._close_chunks_under_pressure()
            for part in list(self._open):
                assert part.chunk is not None
                if part.chunk.created + self._linger_s > now:
                    break
                self.close(part.chunk)
            taken, self._full = self._full, []
            self.wake_needed = False
            self._sender_scheduled = True
            if taken:
                self._sealed_at = now
            for chunk in taken:
                if chunk.count == 0:
                    # The caller was interrupted before it wrote the first record.
                    del self.unsettled[chunk.serial]
                    self.pool.release(chunk.reserved_bytes, chunk.node)
        if not taken:
            return []
        wall = wall_ms() if self.wall_clock is None else self.wall_clock()
        return [self._seal(chunk, wall) for chunk in taken if chunk.count]

    def next_deadline(self, now: float) -> float | None:
        """When to call `drain` next; None: not before the next wake-up. The caller must call it by then."""
        with self.condition:
            self._sender_scheduled = True
            if self._full or (self._open and self.flushing):
                return now
            wanting = self.pool.waiting_nodes
            for part in self._open if wanting else ():
                assert part.chunk is not None
                if _frees_wanted_memory(part.chunk, wanting):
                    return now
            for part in self._open:
                assert part.chunk is not None
                return part.chunk.created + self._linger_s
            again = self._sealed_at + self._linger_s
            if self._steady and now < again:
                # Records arrive steadily. Draining at `again` in any case spares the next chunk a wake-up.
                return again
            self._sender_scheduled = False
        return None

    def _seal(self, chunk: Chunk, wall: int) -> SealedChunk:
        """Assign ordinals to the records, in the order of `send`, and complete the slice."""
        part = chunk.part
        chunk.first = part.next_ordinal
        chunk.unreleased = chunk.count
        part.next_ordinal += chunk.count
        data, end = chunk.seal(), chunk.end
        fields = (VERSION, OWN_TIMESTAMPS, 0, chunk.first, chunk.count, end - HEADER_BYTES)
        HEADER.pack_into(data, 0, 0, *fields, wall, chunk.base_ts, chunk.max_ts)
        crc = crc32c(memoryview(data)[CRC_FROM:end], self._crc_prefixes[part])
        data[:CRC_FROM] = crc.to_bytes(CRC_FROM, "little")
        part.sealed.append(chunk)
        chunk.segment = self.arena.put(data, end)
        return SealedChunk(
            part.topic,
            part.index,
            chunk.segment,
            end,
            chunk.first,
            chunk.count,
            int(chunk.created * 1000),
            chunk.max_ts,
        )


def _frees_wanted_memory(chunk: Chunk, wanting: frozenset[int]) -> bool:
    """Whether callers waiting for `wanting` can use the chunk's memory; `ANY_NODE` is the shared reserve."""
    return bool(wanting) and (chunk.node in wanting or ANY_NODE in wanting or chunk.node == ANY_NODE)
