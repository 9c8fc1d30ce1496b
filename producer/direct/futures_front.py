"""The direct producer's front, between callers and the sender thread: futures, callbacks, waiting, and shutdown.

Any thread may call it, but only the sender thread calls `settle`, `cluster_changed` and `sender_ended`. Shared state
changes under one lock; callbacks run without it. Completion order: set the result, run callbacks, wake waiters (PBT-3).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...api.errors import (
    ClosedError,
    ExpiredMayBeWrittenError,
    FatalError,
    OutcomeUnknownError,
    PenstockError,
    WaitTimeoutError,
)
from ...api.futures import Future
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.partitioning import Partitioner
from ...api.plugins import Plugins
from ...config.direct import DirectSettings
from ..accumulator.partitioners import KeylessPartitioner
from ..delivery.outcomes import Delivered, DeliveryFailure, DeliveryOutcome, Failed, Released
from ..kernel.chunks import AccumulatorPartition, Chunk, ChunkSpan
from ..kernel.futures import DirectRecordFuture, failed_future, run_callbacks
from ..metadata.cluster import Cluster
from .batch_future import ColumnsFuture
from .callbacks import result_of, run_callback, run_callback_on_sender
from .environment import Environment
from .errors import error_of
from .metadata_wait import MetadataWait
from .nonblocking import WouldBlockError
from .partition_load import update_partition_load
from .record_accumulator import WAIT_MAX_S

if TYPE_CHECKING:
    from ..kernel.chunks import Watcher  # exists only in the .pyi

log: Final = logging.getLogger("penstock.producer")

_ALL: Final = 1 << 62
RecordCallback = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback = Callable[[FrameMetadata | None, PenstockError | None], None]


class Front(MetadataWait):
    """Resolves futures, runs callbacks and wakes waiters; see the module."""

    def __init__(
        self,
        settings: DirectSettings,
        seams: Environment,
        partitioner: Partitioner | None = None,
        keyless: Callable[[], KeylessPartitioner] | None = None,
    ) -> None:
        super().__init__(settings, seams, partitioner, keyless)
        self.sender_has_ended = False
        """Set by `sender_ended`, when all records have completed and the plug-ins are closed."""
        self.on_send_error: Callable[[PenstockError], None] | None = None
        """Called with the error of every rejected record: its transaction can only be aborted (SND-14)."""
        self.on_chunks_resolved: Callable[[Iterable[Chunk]], None] | None = None
        """Called under the lock with chunks of resolved records, after their callbacks, before `flush` returns."""
        self.plugins: Plugins | None = None
        """Set by the producer; closed when the sender thread has ended."""
        self._completing: dict[Chunk, None] = {}
        self._parts_by_number: Final[dict[int, AccumulatorPartition]] = {}
        self._waiters: Final[dict[Chunk, list[threading.Condition]]] = {}
        """The conditions of the callers that wait for an outcome in a chunk."""

    def failed(
        self, topic: str, partition: int, error: PenstockError, on_ack: RecordCallback | None
    ) -> DirectRecordFuture:
        """The future of a rejected record. Runs the record's callback before it returns (SND-14)."""
        error.topic, error.partition = topic, partition
        if isinstance(error, WouldBlockError):
            return failed_future(AccumulatorPartition(self, topic, partition), -1, error)
        if self.on_send_error is not None:
            self.on_send_error(error)
        self.meters.record_rejected(1, self.environment.now())
        future = failed_future(AccumulatorPartition(self, topic, partition), -1, error)
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
        if isinstance(error, WouldBlockError):
            taken = sum(span.count for span in spans)
            return ColumnsFuture(
                topic, spans, (partitions or bytearray())[: 4 * taken], self, self.environment.now, error
            )
        if error is not None:
            error.topic = topic
            if self.on_send_error is not None:
                self.on_send_error(error)
            taken = sum(span.count for span in spans)
            self.meters.record_rejected(count - taken, self.environment.now())
            rest = Chunk(AccumulatorPartition(self, topic, -1))
            rest.count = count - taken
            _ = rest.resolve(0, rest.count, -1, -1, error)
            rest.completed = rest.count
            spans = [*spans, ChunkSpan(rest, 0, rest.count, None)]
            marks = memoryview(partitions or bytearray(4 * count)).cast("i")
            for i in range(taken, count):
                marks[i] = -1
            partitions = bytearray(marks)
        assert partitions is not None
        future = ColumnsFuture(topic, spans, partitions, self, self.environment.now)
        if on_ack is not None:
            callback = on_ack
            future.add_done_callback(lambda done: run_callback(callback, *result_of(done)))
        return future

    def wait(self, chunk: Chunk, index: int, timeout: float | None) -> None:
        """Wait until a record has completed.

        Raises:
            WaitTimeoutError: the record has no outcome after `timeout` seconds.
            RuntimeError: called by a callback, which would deadlock: the record completes after it.
        """
        if chunk.is_completed(index):
            return
        if self._sender is not None and self._sender.is_current:
            raise RuntimeError("result() inside a delivery callback would deadlock")
        # One condition per waiter: an outcome wakes only the waiters of its chunk.
        woken = self.environment.new_condition()
        with self.condition:
            waiters = self._waiters.setdefault(chunk, [])
            waiters.append(woken)
            try:
                if not self._wait_until(lambda: chunk.is_completed(index), timeout, woken):
                    raise WaitTimeoutError(f"no answer within {timeout} s")
            finally:
                waiters.remove(woken)
                if not waiters:
                    del self._waiters[chunk]

    def _wait_until(self, done: Callable[[], bool], timeout: float | None, woken: threading.Condition) -> bool:
        """Wait for `done()`, under the lock. False: the timeout came first."""
        deadline = None if timeout is None else self.environment.now() + timeout
        while not done():
            left = WAIT_MAX_S if deadline is None else deadline - self.environment.now()
            if left <= 0:
                return False
            _ = woken.wait(min(WAIT_MAX_S, left))
        return True

    def watch(self, chunk: Chunk, watcher: "Watcher") -> bool:
        """Register a watcher for a record's outcome. False: the outcome is already known."""
        with self.condition:
            if chunk.outcome_at(watcher[0].index) is not None:
                return False
            if chunk.watchers is None:
                chunk.watchers = []
            chunk.watchers.append(watcher)
        return True

    def callbacks_done(self, chunk: Chunk) -> bool:
        """Whether the callbacks of a chunk's resolved records have run; True on the sender thread, which runs them."""
        return chunk not in self._completing or self.sender.is_current

    def flush(self, timeout: float | None) -> None:
        """See `DirectProducer.flush`."""
        with self.condition:
            self.close_all()
            mark = self.last_serial
            began = self.environment.now()
            self.flushes += 1
            try:
                if self.unsettled:
                    self.wake_sender()
                if not self._wait_until(
                    lambda: not self.unsettled or next(iter(self.unsettled)) > mark, timeout, self.condition
                ):
                    raise WaitTimeoutError(f"not everything was settled within {timeout} s")
            finally:
                self.flushes -= 1
                now = self.environment.now()
                self.meters.flushed(now - began, now)

    def stop(self) -> bool:
        """Reject new records and wake all waiters (CLS-5). False: it was already stopped."""
        with self.condition:
            if self.closed_error is not None:
                return False
            self.refusal = self.closed_error = ClosedError("the producer is closed")
            self.close_all()
            self.pool.close()
            _ = self._waits.close()
            self.condition.notify_all()
        return True

    def fail_after_fork(self) -> None:
        """In a forked child: fail the parent's records, whose outcomes the child cannot know. Does not take the lock: a
        thread that the child does not have may hold it."""
        error = OutcomeUnknownError("the record is the parent process's")
        self.refusal = self.closed_error = ClosedError("the producer is the parent process's")
        for chunk in list(self.unsettled.values()):
            chunk.fail_unresolved(_ALL, error)
            chunk.completed = _ALL
        self._completing = {}

    # --- the sender thread -------------------------------------------------------------------------------------------

    def cluster_changed(self, cluster: Cluster) -> None:
        """Apply a new metadata snapshot to the topics, and wake callers that wait for a topic."""
        with self.condition:
            self.cluster = cluster
            for name in list(self.topics):
                view = cluster.topic(name)
                if view is None or not view.partitions:
                    # Its metadata expired after a long time without use: the next record waits for it again.
                    del self.topics[name]
                else:
                    _ = self.update_topic(name, view)
            self.update_budgets()
            _ = self._waits.metadata_updated(self.environment.now())
            self._send_metadata_requests()
            self.condition.notify_all()

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """The metadata connection has ended. `refused`: no broker accepts the login, so waiting will not help."""
        with self.condition:
            self._waits.connection_failed(reason)
            if refused and self._waits.authentication_failed(reason):
                self.condition.notify_all()

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        """See `partition_load.update_partition_load`."""
        update_partition_load(self, waited_s)

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        """Resolve futures, run callbacks, wake waiters, and release memory."""
        with self.condition:
            # Set before any outcome: a reader without the lock must see that callbacks are pending.
            touched: dict[Chunk, None] = {}
            self._completing = touched
            for outcome in outcomes:
                self._apply(outcome, touched)
        self._run_callbacks(touched)

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
            part = self._parts_by_number[number] = self.part_at(*self.sender.topic_of(number))
        found: list[Chunk] = []
        for chunk in part.sealed:
            if chunk.first >= end:
                break
            if chunk.first + chunk.count > first:
                found.append(chunk)
        return found

    def _run_callbacks(self, touched: Iterable[Chunk]) -> None:
        for chunk in touched:
            acks, watchers = self._take_callbacks(chunk)
            if acks:
                run_callbacks(acks, partial(log.exception, "callback_failed"))
            for future, callback, plain in watchers:
                if plain:
                    run_callback_on_sender(callback, *result_of(future))
                else:
                    run_callback_on_sender(callback, future)
        with self.condition:
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
                self.condition.notify_all()

    def _take_callbacks(self, chunk: Chunk) -> "tuple[Sequence[Any], Sequence[Watcher]]":
        with self.condition:
            return chunk.take_callbacks(), chunk.take_watchers()

    def _release_memory(self, chunk: Chunk) -> None:
        """Release a chunk's memory, whose bytes are no longer read."""
        part = chunk.part
        if part.sealed[0] is chunk:
            _ = part.sealed.popleft()
        else:
            part.sealed.remove(chunk)
        self.arena.drop(chunk.segment)
        self.pool.release(chunk.reserved_bytes, chunk.node)
        chunk.reserved_bytes = 0

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        """The sender thread has ended: fail all unresolved records."""
        error = ClosedError("the producer was closed before this was sent") if failure is None else error_of(failure)
        unsure = ExpiredMayBeWrittenError(f"{error}; it may have been written")
        fatal = error if isinstance(error, FatalError) else None
        with self.condition:
            if fatal is not None or self.closed_error is None:
                self.refusal = self.closed_error = fatal or ClosedError("the producer's thread has ended")
            self.close_all()
            self.pool.close()
            _ = self._waits.close()
            chunks = list(self.unsettled.values())
            self._completing = dict.fromkeys(chunks)
            for chunk in chunks:
                # A sealed chunk without outcome: the thread crashed, and it may have been in flight.
                chunk.fail_unresolved(chunk.count, unsure if chunk.segment else error)
                chunk.unreleased = 0 if chunk.segment else -1
        if fatal is not None:
            log.error("producer_failed error=%s", error)
        self._run_callbacks(chunks)
        if self.plugins is not None:
            _ = self.plugins.close()
        with self.condition:
            self.sender_has_ended = True
            self.condition.notify_all()
