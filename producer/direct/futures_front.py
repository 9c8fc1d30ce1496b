"""The direct producer's front as callers and the sender thread see it: waiting, futures and callbacks, the end.

Callers come from any thread; `settle`, `cluster_changed` and `ended` are the sender thread's. Everything shared changes under one
lock, callbacks run without it. An outcome is told in this order: it is fixed, callbacks run, then who waits may go on (PBT-3).
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
from ..accumulator.partitioners import Keyless
from ..delivery.outcomes import Delivered, Failed, Failure, Outcome, Released
from ..kernel.chunks import Chunk, Part, Span
from ..kernel.futures import RecordFuture, failed_future, run_acks
from ..metadata.cluster import Cluster
from .batch_future import ColumnsFuture
from .callbacks import call, call_apart, result_of
from .environment import Seams
from .errors import error_of
from .metadata_wait import Finding
from .nonblocking import NotYetError
from .partition_load import weigh
from .record_accumulator import WAIT_MAX_S

if TYPE_CHECKING:
    from ..kernel.chunks import Watcher  # a shape that only the declarations have

log: Final = logging.getLogger("penstock.producer")

_ALL: Final = 1 << 62
RecordCallback = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback = Callable[[FrameMetadata | None, PenstockError | None], None]


class Front(Finding):
    """See the module."""

    def __init__(
        self,
        settings: DirectSettings,
        seams: Seams,
        partitioner: Partitioner | None = None,
        keyless: Callable[[], Keyless] | None = None,
    ) -> None:
        super().__init__(settings, seams, partitioner, keyless)
        self.over = False
        """The sender thread has ended."""
        self.dooms: Callable[[PenstockError], None] | None = None
        """Told of every record that was not taken, in a transaction: it can only be aborted (SND-14)."""
        self.heard: Callable[[Iterable[Chunk]], None] | None = None
        """Told of chunks of which something has ended, when all callbacks have run and before who flushes may go on; under the lock."""
        self.plugins: Plugins | None = None
        """Closed when the sender thread has ended."""
        self._telling: dict[Chunk, None] = {}
        self._numbered: Final[dict[int, Part]] = {}
        self._waiters: Final[dict[Chunk, list[threading.Condition]]] = {}
        """Who waits for an outcome in a chunk."""

    def failed(self, topic: str, partition: int, error: PenstockError, on_ack: RecordCallback | None) -> RecordFuture:
        """The future of a record that was not taken; its callback runs here (SND-14)."""
        error.topic, error.partition = topic, partition
        if isinstance(error, NotYetError):
            return failed_future(Part(self, topic, partition), -1, error)
        if self.dooms is not None:
            self.dooms(error)
        self.meters.not_taken(1, self.seams.now())
        future = failed_future(Part(self, topic, partition), -1, error)
        if on_ack is not None:
            # Interceptors are told apart of what never was in a chunk.
            call(getattr(on_ack, "not_taken", on_ack), None, error)
        return future

    def columns_future(
        self,
        topic: str,
        spans: list[Span],
        partitions: bytearray | None,
        count: int,
        error: PenstockError | None,
        on_ack: FrameCallback | None,
    ) -> Future[FrameMetadata]:
        """The future of a `send_many`. `error`: of the records that are in no span."""
        if isinstance(error, NotYetError):
            taken = sum(span.count for span in spans)
            return ColumnsFuture(topic, spans, (partitions or bytearray())[: 4 * taken], self, self.seams.now, error)
        if error is not None:
            error.topic = topic
            if self.dooms is not None:
                self.dooms(error)
            taken = sum(span.count for span in spans)
            self.meters.not_taken(count - taken, self.seams.now())
            rest = Chunk(Part(self, topic, -1))
            rest.count = count - taken
            _ = rest.resolve(0, rest.count, -1, -1, error)
            rest.told = rest.count
            spans = [*spans, Span(rest, 0, rest.count, None)]
            marks = memoryview(partitions or bytearray(4 * count)).cast("i")
            for i in range(taken, count):
                marks[i] = -1
            partitions = bytearray(marks)
        assert partitions is not None
        future = ColumnsFuture(topic, spans, partitions, self, self.seams.now)
        if on_ack is not None:
            callback = on_ack
            future.add_done_callback(lambda done: call(callback, *result_of(done)))
        return future

    def wait(self, chunk: Chunk, index: int, timeout: float | None) -> None:
        """
        Raises:
            WaitTimeoutError: the record's outcome is still open after that time.
            RuntimeError: called by a callback, for a record whose outcome it would hold up.
        """
        if chunk.is_told(index):
            return
        if self._sender is not None and self._sender.is_current:
            raise RuntimeError("a callback would wait for itself: this record is settled after it")
        # Each waits apart: an outcome wakes those whose record it is about.
        woken = self.seams.apart()
        with self.shared:
            waiters = self._waiters.setdefault(chunk, [])
            waiters.append(woken)
            try:
                if not self._wait_until(lambda: chunk.is_told(index), timeout, woken):
                    raise WaitTimeoutError(f"no answer within {timeout} s")
            finally:
                waiters.remove(woken)
                if not waiters:
                    del self._waiters[chunk]

    def _wait_until(self, done: Callable[[], bool], timeout: float | None, woken: threading.Condition) -> bool:
        """Under the lock."""
        deadline = None if timeout is None else self.seams.now() + timeout
        while not done():
            left = WAIT_MAX_S if deadline is None else deadline - self.seams.now()
            if left <= 0:
                return False
            _ = woken.wait(min(WAIT_MAX_S, left))
        return True

    def watch(self, chunk: Chunk, watcher: "Watcher") -> bool:
        """Have a record's outcome told. False: it is known already."""
        with self.shared:
            if chunk.piece(watcher[0].index) is not None:
                return False
            if chunk.watchers is None:
                chunk.watchers = []
            chunk.watchers.append(watcher)
        return True

    def has_told(self, chunk: Chunk) -> bool:
        """Whether callbacks of what is resolved in a chunk have run, as far as the caller is concerned."""
        return chunk not in self._telling or self.sender.is_current

    def flush(self, timeout: float | None) -> None:
        """See `DirectProducer.flush`."""
        with self.shared:
            self.close_all()
            mark = self.last_serial
            began = self.seams.now()
            self.flushes += 1
            try:
                if self.unsettled:
                    self.rouse()
                if not self._wait_until(
                    lambda: not self.unsettled or next(iter(self.unsettled)) > mark, timeout, self.shared
                ):
                    raise WaitTimeoutError(f"not everything was settled within {timeout} s")
            finally:
                self.flushes -= 1
                now = self.seams.now()
                self.meters.flushed(now - began, now)

    def stop(self) -> bool:
        """Take no more records, and release who waits (CLS-5). False: that was done before."""
        with self.shared:
            if self.ending is not None:
                return False
            self.refusal = self.ending = ClosedError("the producer is closed")
            self.close_all()
            self.pool.close()
            _ = self._waits.close()
            self.shared.notify_all()
        return True

    def orphan(self) -> None:
        """In a forked child: nobody will tell what becomes of the parent's records. Its lock may be held by nobody."""
        error = OutcomeUnknownError("the record is the parent process's")
        self.refusal = self.ending = ClosedError("the producer is the parent process's")
        for chunk in list(self.unsettled.values()):
            chunk.fail_open(_ALL, error)
            chunk.told = _ALL
        self._telling = {}

    # --- the sender thread -------------------------------------------------------------------------------------------

    def cluster_changed(self, cluster: Cluster) -> None:
        """Partitions come, leaders move, and who waits for a topic may go on."""
        with self.shared:
            self.cluster = cluster
            for name in list(self.topics):
                view = cluster.topic(name)
                if view is None or not view.partitions:
                    # Nobody asked for it for long: the next record waits for it again.
                    del self.topics[name]
                else:
                    _ = self.place(name, view)
            self.share_out()
            _ = self._waits.updated(self.seams.now())
            self._ask()
            self.shared.notify_all()

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        """No broker can be asked for now. `refused`: for want of belief, which does not pass by waiting."""
        with self.shared:
            self._waits.troubled(reason)
            if refused and self._waits.refused(reason):
                self.shared.notify_all()

    def weigh(self, waited_s: Callable[[int], float]) -> None:
        """See `weighing.weigh`."""
        weigh(self, waited_s)

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Resolve futures, run callbacks, wake who waits, and give back memory."""
        with self.shared:
            # Who looks without the lock must not see an outcome before it is known that callbacks are to come.
            touched: dict[Chunk, None] = {}
            self._telling = touched
            for outcome in outcomes:
                self._apply(outcome, touched)
        self._tell(touched)

    def _apply(self, outcome: Outcome, touched: dict[Chunk, None]) -> None:
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
                    chunk.held -= last - first
                case Failed(released=released):
                    _ = chunk.resolve(first - chunk.first, last - first, -1, -1, error)
                    chunk.held -= last - first if released else 0
                case Released():
                    chunk.held -= last - first

    def _chunks(self, number: int, first: int, end: int) -> list[Chunk]:
        """Those with any of these ordinals."""
        part = self._numbered.get(number)
        if part is None:
            part = self._numbered[number] = self.part_at(*self.sender.topic_of(number))
        found: list[Chunk] = []
        for chunk in part.sealed:
            if chunk.first >= end:
                break
            if chunk.first + chunk.count > first:
                found.append(chunk)
        return found

    def _tell(self, touched: Iterable[Chunk]) -> None:
        for chunk in touched:
            acks, watchers = self._callbacks_of(chunk)
            if acks:
                run_acks(acks, partial(log.exception, "callback_failed"))
            for future, callback, plain in watchers:
                if plain:
                    call_apart(callback, *result_of(future))
                else:
                    call_apart(callback, future)
        with self.shared:
            for chunk in touched:
                chunk.told = chunk.resolved
                for woken in self._waiters.get(chunk, ()):
                    woken.notify()
                if chunk.resolved == chunk.count:
                    _ = self.unsettled.pop(chunk.serial, None)
                if chunk.held == 0 and chunk.charge:
                    self._let_go(chunk)
            self._telling = {}
            if self.heard is not None:
                self.heard(touched)
            if self.flushes:
                self.shared.notify_all()

    def _callbacks_of(self, chunk: Chunk) -> "tuple[Sequence[Any], Sequence[Watcher]]":
        with self.shared:
            return chunk.take_acks(), chunk.take_watchers()

    def _let_go(self, chunk: Chunk) -> None:
        """Nobody reads its bytes any more."""
        part = chunk.part
        if part.sealed[0] is chunk:
            _ = part.sealed.popleft()
        else:
            part.sealed.remove(chunk)
        self.arena.drop(chunk.segment)
        self.pool.release(chunk.charge, chunk.node)
        chunk.charge = 0

    def ended(self, failure: Failure | None) -> None:
        """Nothing is sent any more: what is still open fails."""
        error = ClosedError("the producer was closed before this was sent") if failure is None else error_of(failure)
        unsure = ExpiredMayBeWrittenError(f"{error}; it may have been written")
        fatal = error if isinstance(error, FatalError) else None
        with self.shared:
            if fatal is not None or self.ending is None:
                self.refusal = self.ending = fatal or ClosedError("the producer's thread has ended")
            self.close_all()
            self.pool.close()
            _ = self._waits.close()
            chunks = list(self.unsettled.values())
            self._telling = dict.fromkeys(chunks)
            for chunk in chunks:
                # Nothing was told of what is sealed: the thread ended by a fault, and it may have been on its way.
                chunk.fail_open(chunk.count, unsure if chunk.segment else error)
                chunk.held = 0 if chunk.segment else -1
        if fatal is not None:
            log.error("producer_failed error=%s", error)
        self._tell(chunks)
        if self.plugins is not None:
            _ = self.plugins.close()
        with self.shared:
            self.over = True
            self.shared.notify_all()
