"""Completes the records: futures, callbacks, the callers that wait for outcomes, and the memory of settled chunks.

Any thread may call it, but only the sender thread calls `settle` and `complete`. Callbacks run without the lock.
Completion order: set the result, run callbacks, wake waiters (PBT-3).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...api.errors import (
    OutcomeUnknownError,
    PenstockError,
    RefusedError,
    TransactionAbortableError,
    TransactionStateError,
    WaitTimeoutError,
)
from ...api.futures import Future, result_of
from ...api.metadata import FrameMetadata
from ...api.plugins import FrameCallback, RecordCallback
from ..accumulator.buffer_pool import BufferPool
from ..accumulator.chunk_store import ChunkStore
from ..delivery.outcomes import Delivered, DeliveryOutcome, Failed, Released
from ..kernel.chunks import AccumulatorPartition, Chunk, ChunkSpan
from ..kernel.futures import DirectRecordFuture, failed_future, run_callbacks
from ..telemetry.metrics import ProducerMetrics
from .batch_future import ColumnsFuture
from .callbacks import run_callback, run_callback_on_sender
from .environment import Environment, SenderPort
from .errors import error_of
from .nonblocking import WouldBlockError

if TYPE_CHECKING:
    from ..kernel.chunks import Watcher  # exists only in the .pyi

log: Final = logging.getLogger("penstock.producer")

WAIT_MAX_S: Final = 3600.0
TRANSACTION_OVER: Final = "transaction_over"
"""Error code for the remaining records of a `send_many` whose transaction ended before they were appended."""
_ALL: Final = 1 << 62


class Completion:
    """The owner of all chunks with records that are not done; see the module."""

    sender: SenderPort
    """Set by `Front.connect_sender`."""

    def __init__(
        self,
        environment: Environment,
        pool: BufferPool,
        arena: ChunkStore,
        meters: ProducerMetrics,
        partition_of: Callable[[int], AccumulatorPartition],
        *,
        single_replica: bool,
    ) -> None:
        """`partition_of`: the partition with this number in an outcome; `single_replica`: no `acks=all`."""
        self.single_replica: Final = single_replica
        self.unsettled: Final[dict[int, Chunk]] = {}
        """Chunks with records whose futures are not done, by serial number, oldest first."""
        self.last_serial = -1
        self.flushes = 0
        """How many flushes are running; changed by `Front`."""
        self.on_send_error: Callable[[PenstockError], None] | None = None
        """Called with the error of every rejected record: its transaction can only be aborted (SND-14)."""
        self.on_chunks_resolved: Callable[[Iterable[Chunk]], None] | None = None
        """Called under the lock with chunks of resolved records, after their callbacks, before `flush` returns."""
        self._environment: Final = environment
        self._lock: Final = environment.condition
        self._pool: Final = pool
        self._arena: Final = arena
        self._meters: Final = meters
        self._partition_of: Final = partition_of
        self._completing: dict[Chunk, None] = {}
        """Chunks with resolved records whose callbacks have not run yet."""
        self._parts_by_number: Final[dict[int, AccumulatorPartition]] = {}
        self._waiters: Final[dict[Chunk, list[threading.Condition]]] = {}
        """The conditions of the callers that wait for an outcome in a chunk."""

    # --- futures -----------------------------------------------------------------------------------------------------

    def failed(
        self, topic: str, partition: int, error: PenstockError, on_ack: RecordCallback | None
    ) -> DirectRecordFuture:
        """The future of a rejected record. Runs the record's callback before it returns (SND-14)."""
        error.topic, error.partition = topic, partition
        future = failed_future(AccumulatorPartition(self, topic, partition), -1, error)
        if isinstance(error, WouldBlockError):
            return future
        self._rejected(1, error)
        if on_ack is not None:
            # Interceptors have a method of their own for records that never were in a chunk.
            run_callback(getattr(on_ack, "on_send_error", on_ack), None, error)
        return future

    def columns_future(
        self,
        topic: str,
        spans: list[ChunkSpan],
        partitions: bytearray | None,
        count: int,
        error: PenstockError | None,
        on_ack: FrameCallback | None,
    ) -> Future[FrameMetadata]:
        """The future of a `send_many`. `error`: the error of the records that are in no span."""
        marks = bytearray(4 * count) if partitions is None else partitions
        taken = sum(span.count for span in spans)
        if isinstance(error, WouldBlockError):
            return ColumnsFuture(topic, spans, marks[: 4 * taken], self, self._environment.now, error)
        if error is not None:
            if isinstance(error, TransactionStateError | TransactionAbortableError):
                # The transaction ended after `send_many` was called: these records certainly are in none.
                error = RefusedError(TRANSACTION_OVER, str(error))
            error.topic = topic
            self._rejected(count - taken, error)
            rest = Chunk(AccumulatorPartition(self, topic, -1))
            rest.count = count - taken
            _ = rest.resolve(0, rest.count, -1, -1, error)
            rest.completed = rest.count
            spans = [*spans, ChunkSpan(rest, 0, rest.count, None)]
            marks = marks[: 4 * taken] + b"\xff" * (4 * rest.count)  # partition -1
        future = ColumnsFuture(topic, spans, marks, self, self._environment.now)
        if on_ack is not None:
            callback = on_ack
            future.add_done_callback(lambda done: run_callback(callback, *result_of(done)))
        return future

    def _rejected(self, count: int, error: PenstockError) -> None:
        if self.on_send_error is not None:
            self.on_send_error(error)
        self._meters.record_rejected(count, self._environment.now())

    # --- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, chunk: Chunk, index: int, timeout: float | None) -> None:
        """Wait until a record has completed.

        Raises:
            WaitTimeoutError: the record has no outcome after `timeout` seconds.
            RuntimeError: called by a callback, which would deadlock: the record completes after it.
        """
        if chunk.is_completed(index):
            return
        if self.sender.is_current:
            raise RuntimeError("result() inside a delivery callback would deadlock")
        # One condition per waiter: an outcome wakes only the waiters of its chunk.
        woken = self._environment.new_condition()
        with self._lock:
            waiters = self._waiters.setdefault(chunk, [])
            waiters.append(woken)
            try:
                if not self._wait_until(lambda: chunk.is_completed(index), timeout, woken):
                    raise WaitTimeoutError(f"no answer within {timeout} s")
            finally:
                waiters.remove(woken)
                if not waiters:
                    del self._waiters[chunk]

    def wait_for_flush(self, mark: int, timeout: float | None) -> bool:
        """Wait until `has_settled(mark)`. False: the timeout came first."""
        with self._lock:
            return self._wait_until(lambda: self.has_settled(mark), timeout, self._lock)

    def has_settled(self, mark: int) -> bool:
        """Whether every chunk up to this serial number is settled; call under the lock."""
        return not self.unsettled or next(iter(self.unsettled)) > mark

    def _wait_until(self, done: Callable[[], bool], timeout: float | None, woken: threading.Condition) -> bool:
        """Wait for `done()`, under the lock. False: the timeout came first."""
        deadline = None if timeout is None else self._environment.now() + timeout
        while not done():
            left = WAIT_MAX_S if deadline is None else deadline - self._environment.now()
            if left <= 0:
                return False
            _ = woken.wait(min(WAIT_MAX_S, left))
        return True

    def watch(self, chunk: Chunk, watcher: "Watcher") -> bool:
        """Register a watcher for a record's outcome. False: the outcome is already known."""
        with self._lock:
            if chunk.outcome_at(watcher[0].index) is not None:
                return False
            if chunk.watchers is None:
                chunk.watchers = []
            chunk.watchers.append(watcher)
        return True

    def callbacks_done(self, chunk: Chunk) -> bool:
        """Whether the callbacks of a chunk's resolved records have run; True on the sender thread, which runs them."""
        return chunk not in self._completing or self.sender.is_current

    # --- chunks, under the lock --------------------------------------------------------------------------------------

    def add(self, chunk: Chunk) -> None:
        """Register a chunk that was opened now, under the next serial number."""
        self.last_serial += 1
        chunk.serial = self.last_serial
        self.unsettled[chunk.serial] = chunk

    def discard(self, chunk: Chunk) -> None:
        """Forget a chunk without records, and release its memory."""
        del self.unsettled[chunk.serial]
        self._pool.release(chunk.reserved_bytes, chunk.node)

    def fail_all(self, error: PenstockError, unsure: PenstockError) -> list[Chunk]:
        """Set the outcome of all unresolved records. `unsure`: the error of those that were sealed: they may have been
        in flight when the thread ended. The caller passes the chunks to `complete`, without the lock."""
        chunks = list(self.unsettled.values())
        self._completing = dict.fromkeys(chunks)
        for chunk in chunks:
            chunk.fail_unresolved(chunk.count, unsure if chunk.segment else error)
            chunk.unreleased = 0 if chunk.segment else -1
        return chunks

    def fail_after_fork(self) -> None:
        """In a forked child: fail the parent's records, whose outcomes the child cannot know. Does not take the lock: a
        thread that the child does not have may hold it."""
        error = OutcomeUnknownError("the record is the parent process's")
        for chunk in list(self.unsettled.values()):
            chunk.fail_unresolved(_ALL, error)
            chunk.completed = _ALL
        self._completing = {}

    # --- the sender thread -------------------------------------------------------------------------------------------

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        """Resolve futures, run callbacks, wake waiters, and release memory."""
        with self._lock:
            # Set before any outcome: a reader without the lock must see that callbacks are pending.
            touched: dict[Chunk, None] = {}
            self._completing = touched
            for outcome in outcomes:
                self._apply(outcome, touched)
        self.complete(touched)

    def _apply(self, outcome: DeliveryOutcome, touched: dict[Chunk, None]) -> None:
        error = error_of(outcome.failure) if isinstance(outcome, Failed) else None
        end = outcome.first + outcome.count
        for chunk in self._chunks(outcome.partition, outcome.first, end):
            if error is not None:
                error.topic, error.partition = chunk.part.topic, chunk.part.index
            first, last = max(outcome.first, chunk.first), min(end, chunk.first + chunk.count)
            touched[chunk] = None
            match outcome:
                case Delivered(_, _, _, base_offset, log_append_ms):
                    offset = base_offset + first - outcome.first if base_offset >= 0 else -1
                    _ = chunk.resolve(first - chunk.first, last - first, offset, log_append_ms, None)
                    chunk.unreleased -= last - first
                case Failed(released=released):
                    _ = chunk.resolve(first - chunk.first, last - first, -1, -1, error)
                    chunk.unreleased -= last - first if released else 0
                case Released():
                    chunk.unreleased -= last - first

    def _chunks(self, number: int, first: int, end: int) -> list[Chunk]:
        """The sealed chunks that contain any of these ordinals."""
        part = self._parts_by_number.get(number)
        if part is None:
            part = self._parts_by_number[number] = self._partition_of(number)
        found: list[Chunk] = []
        for chunk in part.sealed:
            if chunk.first >= end:
                break
            if chunk.first + chunk.count > first:
                found.append(chunk)
        return found

    def complete(self, touched: Iterable[Chunk]) -> None:
        """Run the callbacks of resolved records in these chunks, then wake their waiters."""
        for chunk in touched:
            with self._lock:
                acks, watchers = chunk.take_callbacks(), chunk.take_watchers()
            _run_callbacks(acks, watchers)
        with self._lock:
            for chunk in touched:
                chunk.completed = chunk.resolved
                for woken in self._waiters.get(chunk, ()):
                    woken.notify()
                if chunk.resolved == chunk.count:
                    _ = self.unsettled.pop(chunk.serial, None)
                if chunk.unreleased == 0 and chunk.reserved_bytes:
                    self._release_memory(chunk)
            self._completing = {}
            if self.on_chunks_resolved is not None:
                self.on_chunks_resolved(touched)
            if self.flushes:
                self._lock.notify_all()

    def _release_memory(self, chunk: Chunk) -> None:
        """Release a chunk's memory, whose bytes are no longer read."""
        part = chunk.part
        if part.sealed[0] is chunk:
            _ = part.sealed.popleft()
        else:
            part.sealed.remove(chunk)
        self._arena.drop(chunk.segment)
        self._pool.release(chunk.reserved_bytes, chunk.node)
        chunk.reserved_bytes = 0


def _run_callbacks(acks: Sequence[Any], watchers: "Sequence[Watcher]") -> None:
    if acks:
        run_callbacks(acks, partial(log.exception, "callback_failed"))
    for future, callback, plain in watchers:
        if plain:
            run_callback_on_sender(callback, *result_of(future))
        else:
            run_callback_on_sender(callback, future)
