"""The client library for asyncio: `AsyncProducer`.

It runs on the synchronous producer's session thread, which alone uses the socket. A blocked event loop therefore cannot
delay the daemon's answers or end the session, and a connect never appears to succeed while the listener's queue is
full. Outcomes reach the loop per frame, many with one wake-up.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar

from ..api.bridging import Bridge, LoopBinding, settle
from ..api.errors import OutcomeUnknownError, PenstockError, WaitTimeoutError
from ..api.futures import FrameOutcome, Future, RecordFuture
from ..api.metadata import FrameMetadata, PartitionMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from ..api.plugins import PluginOptions, Plugins
from ..api.records import Header, Headers, Record, reusable_headers
from ..wire.frames import PartitionInfo
from .arguments import LevelName, as_column
from .client import Producer
from .core.window import PartitionsRequest
from .plugins import ClientPluginPipeline, log_plugin_failure, send_many_prepared, send_prepared

F = TypeVar("F")
_NO_PLUGINS: Final = ClientPluginPipeline(Plugins(PluginOptions(), {}, log_plugin_failure))
_SEND_LOCK: Final = "all topics"
"""All topics share the buffer, so they share one lock."""


class BufferFullError(Exception):
    """Internal signal that the buffer is full. It never reaches the application."""

    def __init__(self, size: int) -> None:
        super().__init__(f"no room for {size} bytes")
        self.size: Final = size


class ClientCompletion(Protocol):
    """A completed operation whose result is delivered on the loop."""

    def deliver(self) -> None: ...


class FrameWaiter:
    """The loop's futures for the records of one frame."""

    __slots__ = ("_frames", "_futures", "_outcome", "bridge")

    def __init__(
        self, frames: "dict[FrameOutcome, FrameWaiter]", outcome: FrameOutcome, bridge: Bridge[ClientCompletion]
    ) -> None:
        self.bridge: Final = bridge
        self._frames: Final = frames
        self._outcome: Final = outcome
        self._futures: list[tuple[int, asyncio.Future[RecordMetadata]]] = []

    def add(self, index: int, future: asyncio.Future[RecordMetadata]) -> None:
        """Resolve `future` with the outcome of the record at `index` in the frame."""
        self._futures.append((index, future))

    def on_settled(self) -> None:
        """Post the frame's completion to the loop. Usually called on the session thread."""
        self.bridge.post(self)

    def deliver(self) -> None:
        _ = self._frames.pop(self._outcome, None)
        for index, future in self._futures:
            try:
                metadata = self._outcome.record(index)
            except PenstockError as error:
                settle(future, None, error)
            else:
                settle(future, metadata, None)

    def fail(self, error: PenstockError) -> None:
        """Fail all futures, because no outcome will arrive."""
        for _, future in self._futures:
            settle(future, None, error)


class FutureCompletion:
    """Result of a request that is not a record."""

    __slots__ = ("_error", "_future", "_result")

    def __init__(self, future: asyncio.Future[Any], result: object, error: PenstockError | None) -> None:
        self._future: Final = future
        self._result: Final = result
        self._error: Final = error

    def deliver(self) -> None:
        settle(self._future, self._result, self._error)


class ClientLoopCondition(threading.Condition):
    """A condition that also notifies coroutines waiting on the loop."""

    def __init__(self, lock: threading.Lock, ring: Callable[[], None]) -> None:
        super().__init__(lock)
        self._notify_loop: Final = ring

    def notify_all(self) -> None:
        super().notify_all()
        self._notify_loop()


class NonBlockingClient(Producer):
    """A producer whose calls never block."""

    def __init__(self, path: str | os.PathLike[str] | None, link: LoopBinding[ClientCompletion], **given: Any) -> None:  # noqa: ANN401
        self._link: Final = link
        self.waiters: dict[FrameOutcome, FrameWaiter] = {}
        super().__init__(path, **given)

    def _make_condition(self, lock: threading.Lock) -> threading.Condition:
        return ClientLoopCondition(lock, self._link.notify_all)

    def _await_room(self, size: int) -> None:
        if not self._has_room_or_ended(size):
            raise BufferFullError(size)

    @property
    def plugin_pipeline(self) -> ClientPluginPipeline | None:
        """The pipeline of serializers and interceptors; None if there are none."""
        return self._plugin_pipeline

    @property
    def pipeline(self) -> ClientPluginPipeline:
        """The pipeline for records; one that changes nothing if there are no plug-ins."""
        return self._plugin_pipeline or _NO_PLUGINS

    @property
    def max_block_s(self) -> float:
        """How long a call may wait for buffer space and partitions, in seconds."""
        return self._max_block_s

    def has_room_for(self, size: int) -> bool:
        """Whether waiting for `size` bytes can stop: the buffer has room or is empty, or the producer has ended."""
        with self._condition:
            return self._window.idle or self._has_room_or_ended(size)

    def buffer_exhausted(self, size: int) -> PenstockError:
        return self._buffer_exhausted(size)

    def lacks_partitions(self, topic: str) -> bool:
        """Whether the application's partitioner must wait for the topic's partitions."""
        return self._partition_selector is not None and not self._partition_selector.has_partitions(topic)

    def learn_partitions(self, topic: str, partitions: Sequence[PartitionMetadata]) -> None:
        """Give the partition selector the partitions it needs."""
        if self._partition_selector is not None:
            self._partition_selector.learn(topic, partitions)

    def begin_flush(self) -> int:
        """Start sending everything buffered. Returns the mark to pass to `flushed`."""
        with self._condition:
            mark = self._window.flush()
            self._worker.wake()
        return mark

    def flushed(self, mark: int) -> bool:
        """Whether everything buffered at `begin_flush` has succeeded or failed."""
        with self._condition:
            return self._window.flushed(mark)

    def request_partitions(
        self, topic: str, answer: Callable[[Sequence[PartitionInfo] | None, PenstockError | None], None]
    ) -> None:
        """Queue a request to the daemon for the topic's partitions.

        Raises:
            ClosedError: the producer is closed or has failed.
        """
        with self._condition:
            self._ensure_room(0)
            self._window.request_partitions(PartitionsRequest(topic, answer))
            self._worker.wake()

    def begin_close(self) -> bool:
        """End the session once everything is answered. Returns False if no session was started."""
        with self._condition:
            self._closed = True
            if self._started:
                self._worker.close()
        return self._started

    def ended(self) -> bool:
        with self._condition:
            return self._worker.ended

    def finish_close(self, why: str) -> None:
        """Abandon the remaining records and join the thread."""
        with self._condition:
            if self._started and not (self._window.idle or self._worker.ended):
                self._worker.abandon(why)
        self._join_thread()

    def after_fork(self) -> None:
        error = OutcomeUnknownError("the record is the parent process's")
        for watch in self.waiters.values():
            watch.fail(error)
        self.waiters = {}
        self._link.detach(error)
        super().after_fork()


class AsyncProducer:
    """`Producer` for asyncio: the same arguments, one event loop at a time.

    `await send(…)` waits for buffer space for at most `max_block_ms` and returns an `asyncio.Future` of the metadata.
    Records are buffered in call order; a cancelled `send` or `send_many` has buffered nothing. asyncio reports an error
    that is never retrieved.

    Another loop may use the producer once the first has ended. Records of the first loop are still sent, but their
    outcomes are not delivered. After a fork the child has its own session, as with the synchronous producer.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an object is not a serializer or interceptor.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        client_id: str | None = None,
        level: LevelName = "delivered",
        linger_ms: float = 2,
        batch_bytes: int = 65_536,
        buffer_bytes_max: int = 32 << 20,
        max_block_ms: float = 60_000,
        detail: Literal["records", "slices", "none"] = "records",
        on_error: Callable[[PenstockError], None] | None = None,
        partitioner: Partitioner | None = None,
        key_serializer: object = None,
        value_serializer: object = None,
        interceptors: Sequence[object] = (),
    ) -> None:
        self._link: Final = LoopBinding[ClientCompletion](_deliver)
        self._followed_bridge: Bridge[ClientCompletion] | None = None
        self._inner: Final = NonBlockingClient(
            socket,
            self._link,
            client_id=client_id,
            level=level,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes_max=buffer_bytes_max,
            max_block_ms=max_block_ms,
            detail=detail,
            on_error=on_error,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            interceptors=interceptors,
        )

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: object,
        key: object = None,
        *,
        headers: Iterable[Header] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        level: LevelName | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Buffer one record and return a future of its metadata.

        Raises:
            What `Producer.send` raises.
        """
        bridge, inner, headers = self._link.bridge(), self._inner, reusable_headers(headers)
        if inner.plugin_pipeline is None and not self._link.send_locks.in_use and not inner.lacks_partitions(topic):
            with suppress(BufferFullError):
                return self._loop_future(
                    bridge,
                    inner.send(
                        topic,
                        value,
                        key,
                        headers=headers,
                        partition=partition,
                        timestamp_ms=timestamp_ms,
                        level=level,
                    ),
                )
        record = Record(topic, value, key, Headers(headers), partition, timestamp_ms)
        record, told = inner.pipeline.prepare(record, None)
        try:
            taken = await self._call_when_room(
                record.topic, partial(send_prepared, partial(Producer.send, inner), record, level, told)
            )
        except BaseException as error:
            inner.pipeline.notify_send_error([record], error, told.partition)
            raise
        return self._loop_future(bridge, taken)

    def _loop_future(
        self, bridge: Bridge[ClientCompletion], taken: Future[RecordMetadata]
    ) -> asyncio.Future[RecordMetadata]:
        assert isinstance(taken, RecordFuture), "the producer makes no other futures of records"
        future: asyncio.Future[RecordMetadata] = bridge.loop.create_future()
        if bridge is not self._followed_bridge:
            # The watched frames belong to a loop that has ended.
            self._followed_bridge = bridge
            self._inner.waiters = {}
        watches, outcome = self._inner.waiters, taken.outcome
        watch = watches.get(outcome)
        if watch is None:
            watch = watches[outcome] = FrameWaiter(watches, outcome, bridge)
            watch.add(taken.index, future)
            outcome.watch(watch.on_settled)
        else:
            watch.add(taken.index, future)
        return future

    async def _call_when_room(self, topic: str, take: Callable[[], F]) -> F:
        """Wait for the send lock and for room, then call `take`.

        Raises:
            BufferExhaustedError: there was no room in time.
            What `take` raises.
        """
        inner, loop = self._inner, asyncio.get_running_loop()
        deadline = loop.time() + inner.max_block_s
        async with self._link.send_locks.hold(_SEND_LOCK):
            if inner.lacks_partitions(topic):
                # Time spent waiting for the lock counts towards the deadline.
                left_s = max(0.0, deadline - loop.time())
                inner.learn_partitions(topic, await self.partitions_for(topic, left_s))
            while True:
                try:
                    return take()
                except BufferFullError as lack:
                    size = lack.size
                left_s = deadline - loop.time()
                if not await self._link.waiters().wait_for(partial(inner.has_room_for, size), left_s):
                    raise inner.buffer_exhausted(size)

    async def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None = None,
        partitions: int | Sequence[int | None] | None = None,
        timestamps_ms: int | Sequence[int | None] | None = None,
        level: LevelName | None = None,
    ) -> asyncio.Future[FrameMetadata]:
        """Buffer whole columns, all of them or none.

        Raises:
            What `Producer.send_many` raises.
        """
        bridge, inner = self._link.bridge(), self._inner
        given = [as_column(one) for one in (partitions, keys, values, headers, timestamps_ms)]
        columns, told = inner.pipeline.prepare_many(topic, given, None)
        take = partial(send_many_prepared, partial(Producer.send_many, inner), topic, columns, level, told)
        try:
            taken = await self._call_when_room(topic, take)
        except BaseException as error:
            inner.pipeline.notify_send_error(told.records or (), error)
            raise
        future: asyncio.Future[FrameMetadata] = bridge.loop.create_future()
        self._link.track(future)

        def post(done: Future[FrameMetadata]) -> None:
            error = done.exception()
            bridge.post(FutureCompletion(future, None if error is not None else done.result(), error))

        taken.add_done_callback(post)
        return future

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything buffered and wait until every record, and its future, has succeeded or failed.

        Raises:
            WaitTimeoutError: not within `timeout` seconds; sending continues.
        """
        waiters = self._link.waiters()
        mark = self._inner.begin_flush()
        if not await waiters.wait_for(partial(self._inner.flushed, mark), timeout):
            raise WaitTimeoutError(f"not everything was answered within {timeout} s")
        # The flush may be noticed before the loop has processed the posted completions.
        self._link.bridge().drain()

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the topic's partitions from the daemon. Waits at most `timeout` seconds, by default `max_block_ms`.

        Raises:
            RefusedError: the topic does not exist, or the daemon has no metadata for it.
            WaitTimeoutError: no answer in time.
            ClosedError: the producer is closed or has failed.
        """
        bridge = self._link.bridge()
        answered: asyncio.Future[Sequence[PartitionInfo] | None] = bridge.loop.create_future()
        self._inner.request_partitions(
            topic, lambda found, error: bridge.post(FutureCompletion(answered, found, error))
        )
        limit_s = self._inner.max_block_s if timeout is None else timeout
        done, _ = await asyncio.wait((answered,), timeout=limit_s)
        if not done:
            _ = answered.cancel()
            raise WaitTimeoutError(f"no answer within {limit_s} s")
        return [PartitionMetadata(*row) for row in answered.result() or ()]

    async def close(self, timeout: float | None = None) -> None:
        """Send everything buffered, wait up to `timeout` seconds for the answers, and end the session. A second call
        does nothing. If cancelled, abandon the unanswered records.

        Raises:
            PenstockError: everything is closed, but closing a serializer, an interceptor or the partitioner raised.
        """
        waiters, inner = self._link.waiters(), self._inner
        try:
            if inner.begin_close():
                _ = await waiters.wait_for(inner.ended, timeout)
        finally:
            # In another thread: callbacks still to run may wait for the loop.
            await asyncio.to_thread(inner.finish_close, f"the producer was closed after {timeout} s without an answer")

    @property
    def held_bytes(self) -> int:
        """Bytes of records not answered yet."""
        return self._inner.held_bytes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _deliver(ending: ClientCompletion) -> None:
    ending.deliver()
