"""Buffers the direct producer's records per partition until the sender thread drains them.

The kernel writes the rows, and calls this class (as its `ChunkPort`) for rarer events. The sender thread calls `drain`,
which makes slices with ordinals.
"""

import math
import threading
from typing import Final

from ...api.errors import BufferExhaustedError, ClosedError, PenstockError, RecordTooLargeError
from ...config.direct import DirectSettings
from ...runtime.clock import wall_ms
from ...wire.slices import CRC_FROM, HEADER, HEADER_BYTES, OWN_TIMESTAMPS, VERSION, crc_prefix
from ..accumulator.buffer_pool import ANY_NODE, BufferPool
from ..accumulator.chunk_store import ChunkStore, SealedChunk
from ..kernel.append import RecordAppender
from ..kernel.chunks import AccumulatorPartition, AccumulatorTopic, Chunk
from ..records.batch_builder import crc32c
from .accumulator_topics import AccumulatorTopics
from .completion import WAIT_MAX_S, Completion
from .environment import Environment, SenderPort
from .nonblocking import WouldBlock

FIRST_CHUNK_BYTES: Final = 512
"""Initial size of a partition's first chunk. A later chunk starts at the size that the previous one reached."""
TOPIC_USE_INTERVAL_S: Final = 5.0
"""How often a topic is reported to the sender thread as in use."""
MEMORY_RECHECK_S: Final = 0.1
"""How often keyless records that wait for memory check whether another node has some."""


class RecordAccumulator:
    """The owner of open and full chunks; see the module. It also knows whether records are accepted."""

    appender: RecordAppender
    """The kernel's part, which appends the rows; set by `Front`."""
    sender: SenderPort
    """Set by `Front.connect_sender`."""

    def __init__(
        self,
        settings: DirectSettings,
        environment: Environment,
        pool: BufferPool,
        arena: ChunkStore,
        topics: AccumulatorTopics,
        completion: Completion,
    ) -> None:
        self.closed_error: ClosedError | None = None
        """The producer is closed or has failed: final. Until then, the appender's `refusal` comes and goes with
        transactions."""
        self.would_block: WouldBlock | None = None
        """Set in non-blocking mode, asked instead of waiting."""
        self._settings: Final = settings
        self._environment: Final = environment
        self._lock: Final = environment.condition
        self._pool: Final = pool
        self._arena: Final = arena
        self._topics: Final = topics
        self._completion: Final = completion
        self._linger_s: Final = settings.linger_ms / 1000
        self._max_block_s: Final = min(settings.max_block_ms / 1000, threading.TIMEOUT_MAX)
        self._crc_prefixes: Final[dict[AccumulatorPartition, int]] = {}
        self._open: Final[dict[AccumulatorPartition, None]] = {}
        self._full: list[Chunk] = []
        self._sealed_at = -math.inf
        self._steady = False
        """Whether the last chunk opened less than the linger time after the drain before it."""
        self._sender_scheduled = False
        """The sender thread will call `drain` before the linger time of a chunk opened now is over."""

    def set_append_error(self, reason: PenstockError | None) -> None:
        """Reject records with this error, or accept them again (None): a transaction ended or started. An error also
        closes all open chunks, so that their records do not linger. No effect on a closed producer."""
        with self._lock:
            if self.closed_error is None:
                if reason is None and self.appender.refusal is not None:
                    self.appender.transaction_epoch += 1
                self.appender.refusal = reason
                if reason is not None:
                    self.close_all()

    def reject_all(self, error: ClosedError) -> None:
        """Reject all records from now on."""
        self.appender.refusal = self.closed_error = error

    def wake_sender(self) -> None:
        """Wake the sender thread."""
        self.appender.wake_needed = False
        self.sender.wake()

    def too_large(self, size: int) -> RecordTooLargeError:
        """The error for a record that takes up to `size` bytes in a batch of its own, uncompressed (SND-8)."""
        name, limit = "max.request.size", self._settings.max_request_size
        if size <= limit:
            name, limit = "buffer.memory", self._settings.buffer_memory
        return RecordTooLargeError(f"a record of up to {size} bytes before compression is over {name} = {limit}")

    # --- chunks, under the lock --------------------------------------------------------------------------------------

    def open_chunk(
        self, part: AccumulatorPartition, row: int, began: float | None, keyless: AccumulatorTopic | None
    ) -> PenstockError | None:
        """Open a chunk with room for a row; waits for memory if it must, releasing the lock.

        Returns None if the caller should look again: the chunk is open, another thread opened one, or `keyless`
        moved to a partition whose node has memory. Returns an error if memory was not available in time.

        Raises:
            ClosedError: the producer was closed meanwhile.
            TransactionStateError, TransactionAbortableError: the record's transaction ended meanwhile.
        """
        self.appender.check_accepting()
        need = HEADER_BYTES + row
        limit = max(self._settings.batch_size, need)
        size = max(need, min(limit, part.initial_chunk_bytes or FIRST_CHUNK_BYTES))
        node = self._topics.charged_node(part)
        while not self._pool.try_reserve(size, node):
            size = need
            if self._pool.try_reserve(size, node):
                break
            if keyless is not None and self._topics.leave_full_node(keyless, size):
                return None
            began = self._environment.now() if began is None else began
            got = self._wait_for_memory(size, node, began, keyless)
            if got is not True:
                return got or None
            # Other threads may have changed anything during the wait (ACC-4).
            if self.appender.refusal is not None:
                self._pool.release(size, node)
                self.appender.check_accepting()
            if part.chunk is None:
                break
            self._pool.release(size, node)
            if part.chunk.end + row <= part.chunk.capacity or self.grow(part.chunk, row):
                return None
        self._begin(part, size, node, limit)
        return None

    def _begin(self, part: AccumulatorPartition, size: int, node: int, limit: int) -> None:
        chunk = Chunk(part)
        chunk.limit = limit
        chunk.reserved_bytes = size
        chunk.node = node
        chunk.use(self._arena.make(size))
        chunk.created = self._environment.now()
        self._completion.add(chunk)
        part.chunk = chunk
        if not self._open:
            self._steady = chunk.created < self._sealed_at + self._linger_s
            if not self._sender_scheduled:
                self.appender.wake_needed = True
        self._open[part] = None
        topic = self._topics.by_name.get(part.topic)
        if topic is not None and chunk.created - topic.used_at > TOPIC_USE_INTERVAL_S:
            topic.used_at = chunk.created
            self.sender.want_topic(part.topic)

    def _wait_for_memory(
        self, size: int, node: int, began: float | None, keyless: AccumulatorTopic | None
    ) -> PenstockError | bool:
        """True: memory is reserved. False: `keyless` moved to another partition. An error: none was free in time."""
        now = self._environment.now()
        if self.sender.is_current:
            return BufferExhaustedError("the producer's memory is full, and a callback cannot wait for it")
        if self.would_block is not None:
            return self.would_block.on_memory_full(size, node)
        left = self._max_block_s if began is None else max(0.0, began + self._max_block_s - now)
        pause_s = WAIT_MAX_S if keyless is None or not self._pool.has_budget(node) else MEMORY_RECHECK_S
        # One condition per caller: memory for one of them does not wake the others.
        woken = self._environment.new_condition()
        try:
            with self._pool.reserve(size, node, now=now, max_wait_s=left, wake=woken.notify) as ticket:
                self._close_chunks_under_pressure()
                self.wake_sender()
                while not ticket.poll(now):
                    if keyless is not None and self._topics.leave_full_node(keyless, size):
                        ticket.cancel()
                        return False
                    _ = woken.wait(min(pause_s, ticket.deadline - now))
                    now = self._environment.now()
        except BufferExhaustedError as error:
            return error
        return True

    def grow(self, chunk: Chunk, row: int) -> bool:
        """Make room for one more row. False: the chunk was full, or there was no memory; it is closed now."""
        need = chunk.end + row
        if need <= chunk.limit:
            for size in (min(chunk.limit, max(need, 2 * chunk.reserved_bytes)), need):
                if self._pool.try_reserve(size - chunk.reserved_bytes, chunk.node):
                    data = self._arena.make(size)
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
        part.initial_chunk_bytes = min(self._settings.batch_size, max(FIRST_CHUNK_BYTES, 1 << chunk.end.bit_length()))
        chunk.capacity = 0
        del self._open[part]
        self._full.append(chunk)
        self.appender.wake_needed = True

    def close_all(self) -> None:
        """Close every open chunk, so that no record lingers."""
        for part in list(self._open):
            assert part.chunk is not None
            self.close(part.chunk)

    def _close_chunks_under_pressure(self) -> None:
        """Close the chunks whose memory a caller waits for, so that they do not linger."""
        wanting = self._pool.waiting_nodes
        for part in list(self._open):
            assert part.chunk is not None
            if _frees_wanted_memory(part.chunk, wanting):
                self.close(part.chunk)

    # --- the sender thread -------------------------------------------------------------------------------------------

    @property
    def flushing(self) -> bool:
        """Whether no record may linger: a flush or close is running, or a caller waits for the shared reserve."""
        return self._completion.flushes > 0 or self.closed_error is not None or ANY_NODE in self._pool.waiting_nodes

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        """Seal and return the chunks that are full or have lingered long enough; `all_chunks`: every chunk."""
        with self._lock:
            if all_chunks or self.flushing:
                self.close_all()
            elif self._pool.waiting_nodes:
                self._close_chunks_under_pressure()
            for part in list(self._open):
                assert part.chunk is not None
                if part.chunk.created + self._linger_s > now:
                    break
                self.close(part.chunk)
            taken, self._full = self._full, []
            self.appender.wake_needed = False
            self._sender_scheduled = True
            if taken:
                self._sealed_at = now
            for chunk in taken:
                if chunk.count == 0:
                    # The caller was interrupted before it wrote the first record.
                    self._completion.discard(chunk)
        if not taken:
            return []
        wall = wall_ms() if self._environment.wall is None else self._environment.wall()
        return [self._seal(chunk, wall) for chunk in taken if chunk.count]

    def next_deadline(self, now: float) -> float | None:
        """When to call `drain` next; None: not before the next wake-up. The caller must call it by then."""
        with self._lock:
            self._sender_scheduled = True
            if self._full or (self._open and self.flushing):
                return now
            wanting = self._pool.waiting_nodes
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
        prefix = self._crc_prefixes.get(part)
        if prefix is None:
            prefix = self._crc_prefixes[part] = crc32c(crc_prefix(part.topic, part.index))
        crc = crc32c(memoryview(data)[CRC_FROM:end], prefix)
        data[:CRC_FROM] = crc.to_bytes(CRC_FROM, "little")
        part.sealed.append(chunk)
        chunk.segment = self._arena.put(data, end)
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
