"""Internals of the asynchronous form: a direct producer whose calls never block, and waits for memory outside it."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from ...api.bridging import Bridge, LoopBinding, settle
from ...api.errors import OutcomeUnknownError, PenstockError
from ...api.futures import Future
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.plugins import Plugins
from ..accumulator.buffer_pool import MemoryWaiter
from ..kernel.chunks import Chunk
from ..kernel.futures import DirectRecordFuture
from .callbacks import result_of
from .environment import Environment, SenderPort
from .front import Front
from .nonblocking import Reservation
from .producer import DirectProducer

T = TypeVar("T")


class DirectCompletion(Protocol):
    """A completion that must be delivered on the loop."""

    def deliver(self) -> None: ...


class ChunkWaiter:
    """The records of one chunk that a loop waits for. The sender thread posts one completion for all of them."""

    __slots__ = ("_chunk", "_futures", "_records", "_waiters", "bridge")

    def __init__(self, watches: "dict[Chunk, ChunkWaiter]", chunk: Chunk, bridge: Bridge[DirectCompletion]) -> None:
        self.bridge: Final = bridge
        self._waiters: Final = watches
        self._chunk: Final = chunk
        self._records: list[DirectRecordFuture] = []
        self._futures: list[asyncio.Future[RecordMetadata]] = []

    def add(self, record: DirectRecordFuture, future: asyncio.Future[RecordMetadata]) -> None:
        """Complete the loop's future when the record completes."""
        self._records.append(record)
        self._futures.append(future)

    def deliver(self) -> None:
        """Complete the futures of finished records. Records that share a chunk may finish at different times."""
        records, futures = self._records, self._futures
        self._records, self._futures = [], []
        for record, future in zip(records, futures, strict=True):
            if record.done():
                settle(future, *result_of(record))
            else:
                self.add(record, future)
        if not self._records:
            _ = self._waiters.pop(self._chunk, None)

    def fail(self, error: PenstockError) -> None:
        """Fail all futures, because no completion will come."""
        for future in self._futures:
            settle(future, None, error)


class SendManyCompletion:
    """The completion of one `send_many`."""

    __slots__ = ("_columns", "future")

    def __init__(self, columns: Future[FrameMetadata], future: asyncio.Future[FrameMetadata]) -> None:
        self._columns: Final = columns
        self.future: Final = future

    def deliver(self) -> None:
        settle(self.future, *result_of(self._columns))


class ChunkWaiters:
    """The waiters of all chunks, for one loop. Only the loop's thread uses it, except for `on_chunks_resolved`."""

    def __init__(self) -> None:
        self._waiters: dict[Chunk, ChunkWaiter] = {}
        self._bridge: Bridge[DirectCompletion] | None = None

    def follow(
        self, bridge: Bridge[DirectCompletion], record: DirectRecordFuture, future: asyncio.Future[RecordMetadata]
    ) -> None:
        """Complete the loop's future when an accepted record completes."""
        if bridge is not self._bridge:
            # The old waiters belong to a loop that has ended.
            self._waiters = {}
            self._bridge = bridge
        chunk = record.chunk
        watch = self._waiters.get(chunk)
        if watch is None:
            watch = self._waiters[chunk] = ChunkWaiter(self._waiters, chunk, bridge)
            watch.add(record, future)
            if record.done():
                # The record completed before the waiter was registered.
                bridge.post(watch)
        else:
            watch.add(record, future)

    def on_chunks_resolved(self, chunks: Iterable[Chunk]) -> None:
        """Post the completions of these chunks, which have resolved records. Called on the sender thread."""
        watches = self._waiters
        for chunk in chunks:
            watch = watches.get(chunk)
            if watch is not None:
                watch.bridge.post(watch)

    def fail(self, error: PenstockError) -> None:
        """Fail the futures of all chunks, because no completion will come."""
        for watch in self._waiters.values():
            watch.fail(error)
        self._waiters = {}


class LoopCondition(threading.Condition):
    """A condition whose `notify_all` also wakes the loop's coroutines."""

    def __init__(self, lock: threading.Lock, ring: Callable[[], None]) -> None:
        super().__init__(lock)
        self._notify_loop: Final = ring

    def notify_all(self) -> None:
        super().notify_all()
        self._notify_loop()


class NonBlockingProducer(DirectProducer):
    """A direct producer whose calls never block."""

    def __init__(
        self,
        config: Mapping[str, object] | None,
        link: LoopBinding[DirectCompletion],
        prepaid: Reservation,
        **given: Any,  # noqa: ANN401
    ) -> None:
        self._link: Final = link
        self._reservation: Final = prepaid
        self.chunk_waiters: Final = ChunkWaiters()
        super().__init__(config, **given)

    def _make_front_and_sender(self, seams: Environment) -> tuple[Front, SenderPort]:
        lock = threading.Lock()
        shared = LoopCondition(lock, self._link.notify_all)
        front, thread = super()._make_front_and_sender(
            seams._replace(condition=shared, new_condition=lambda: threading.Condition(lock))
        )
        front.accumulator.would_block = front.metadata.would_block = self._reservation
        front.completion.on_chunks_resolved = self.chunk_waiters.on_chunks_resolved
        return front, thread

    @property
    def front(self) -> Front:
        """The front that accepts the records."""
        return self._front

    @property
    def thread(self) -> SenderPort:
        """The sender thread."""
        return self._thread

    @property
    def plugins(self) -> Plugins | None:
        """Serializers and interceptors."""
        return self._plugins

    def after_fork(self) -> None:
        error = OutcomeUnknownError("the record is the parent process's")
        self.chunk_waiters.fail(error)
        self._link.detach(error)
        super().after_fork()


class MemoryWait:
    """The memory that one call waits for: a ticket kept between attempts, and cancelled at the end."""

    def __init__(self, front: Front, prepaid: Reservation, began: float) -> None:
        self._front: Final = front
        self._reservation: Final = prepaid
        self._deadline: Final = began + front.settings.max_block_ms / 1000
        self._ticket: MemoryWaiter | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds until the wait times out."""
        return max(0.0, self._deadline - self._front.environment.now())

    def attempt(self, take: Callable[[], T]) -> T:
        """Run `take`, which may use the reserved memory."""
        self._reservation.offer(self._ticket)
        try:
            return take()
        finally:
            self._ticket = self._reservation.reclaim()

    def reserve(self, size: int, node: int, wake: Callable[[], None]) -> Callable[[], bool]:
        """Queue for `size` bytes. Returns a function that is true when they are reserved or the producer is closed.

        Raises:
            BufferExhaustedError: the wait has timed out.
            ClosedError: the producer was closed.
        """
        front = self._front
        with front.condition:
            now = front.environment.now()
            if self._ticket is not None and (self._ticket.size, self._ticket.node) != (size, node):
                self._cancel()
            if self._ticket is None:
                self._ticket = front.pool.reserve(size, node, now=now, max_wait_s=self.remaining_s, wake=wake)
                front.accumulator.wake_sender()
            ticket = self._ticket
            _ = ticket.poll(now)
        return lambda: ticket.granted or front.pool.closed

    def _cancel(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
            self._ticket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._front.condition:
            self._cancel()
