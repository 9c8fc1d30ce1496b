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
from typing import Any, Final, Literal, Self, TypeVar

from ..api.bridging import BatchFutures, Bridge, LoopBinding, LoopCondition
from ..api.errors import OutcomeUnknownError, PenstockError, WaitTimeoutError
from ..api.futures import Future, RecordFuture
from ..api.metadata import FrameMetadata, PartitionMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from ..api.plugins import RecordColumns
from ..api.records import Header, Headers, Record, reusable_headers
from .arguments import LevelName, as_column
from .client import Producer
from .session import BufferFullError, ClientSession, PartitionsAnswer, answered_partitions

F = TypeVar("F")
_SEND_LOCK: Final = "all topics"
"""All topics share the buffer, so they share one lock."""


class NonBlockingClient(Producer):
    """A producer whose calls raise `BufferFullError` instead of waiting for room."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        link: LoopBinding[RecordFuture],
        **given: Any,  # noqa: ANN401
    ) -> None:
        self._link: Final = link
        super().__init__(path, **given)

    def _make_session(self, lock: threading.Lock) -> ClientSession:
        return self._new_session(LoopCondition(lock, self._link.notify_all), blocking=False)

    @property
    def session(self) -> ClientSession:
        return self._session

    def after_fork(self) -> None:
        self._link.detach(OutcomeUnknownError("the record is the parent process's"))
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
        self._link: Final = LoopBinding[RecordFuture](_poll, _watch)
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
        self._plugins: Final = self._inner.session.plugins
        self._has_plugins: Final = self._plugins.handles_records
        self._has_partitioner: Final = partitioner is not None

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
        if not (
            self._has_plugins
            or self._link.send_locks.in_use
            or (self._has_partitioner and self._lacks_partitions(topic))
        ):
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
        record, callback = self._plugins.prepare(record, None)
        try:
            buffered = await self._call_when_room(record.topic, partial(inner.send_prepared, record, level, callback))
        except BaseException as error:
            self._plugins.notify_send_error([record], error, callback.partition)
            raise
        return self._loop_future(bridge, buffered)

    def _loop_future(self, bridge: Bridge, buffered: Future[RecordMetadata]) -> asyncio.Future[RecordMetadata]:
        assert isinstance(buffered, RecordFuture), "the producer makes no other futures of records"
        future: asyncio.Future[RecordMetadata] = bridge.loop.create_future()
        self._link.follow(bridge, buffered.outcome, buffered, future)
        return future

    def _lacks_partitions(self, topic: str) -> bool:
        """Whether the application's partitioner must wait for the topic's partitions."""
        selector = self._inner.session.partition_selector
        return selector is not None and not selector.has_partitions(topic)

    async def _call_when_room(self, topic: str, send: Callable[[], F]) -> F:
        """Wait for the send lock and for room, then call `send`.

        Raises:
            BufferExhaustedError: there was no room in time.
            What `send` raises.
        """
        session, loop = self._inner.session, asyncio.get_running_loop()
        deadline = loop.time() + session.max_block_s
        async with self._link.send_locks.hold(_SEND_LOCK):
            selector = session.partition_selector
            if selector is not None and self._lacks_partitions(topic):
                # Time spent waiting for the lock counts towards the deadline.
                selector.learn(topic, await self.partitions_for(topic, max(0.0, deadline - loop.time())))
            while True:
                try:
                    return send()
                except BufferFullError as lack:
                    size = lack.size
                has_room = partial(session.has_room, size)
                if not await self._link.wait_for(session.condition, has_room, deadline - loop.time()):
                    raise session.buffer_exhausted(size)

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
        inner = self._inner
        _ = self._link.bridge()
        columns = RecordColumns(topic, *(as_column(one) for one in (values, keys, headers, partitions, timestamps_ms)))
        records = self._plugins.prepare_many(columns)
        try:
            buffered = await self._call_when_room(topic, partial(inner.send_columns, columns, level))
        except BaseException as error:
            self._plugins.notify_send_error(records, error)
            raise
        self._plugins.follow(buffered, records)
        return self._link.future_of(buffered)

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything buffered and wait until every record, and its future, has succeeded or failed.

        Raises:
            WaitTimeoutError: not within `timeout` seconds; sending continues.
        """
        session, bridge = self._inner.session, self._link.bridge()
        if not await self._link.wait_for(session.condition, session.begin_flush(), timeout):
            raise WaitTimeoutError(f"not everything was answered within {timeout} s")
        # The flush may be noticed before the loop has processed the posted completions.
        bridge.drain()

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the topic's partitions from the daemon. Waits at most `timeout` seconds, by default `max_block_ms`.

        Raises:
            RefusedError: the topic does not exist, or the daemon has no metadata for it.
            WaitTimeoutError: no answer in time.
            ClosedError: the producer is closed or has failed.
        """
        session, answers = self._inner.session, list[PartitionsAnswer]()
        _ = self._link.bridge()
        limit_s = session.max_block_s if timeout is None else timeout
        session.request_partitions(topic, answers.append)
        _ = await self._link.wait_for(session.condition, lambda: bool(answers), limit_s)
        return answered_partitions(answers, limit_s)

    async def close(self, timeout: float | None = None) -> None:
        """Send everything buffered, wait up to `timeout` seconds for the answers, and end the session. A second call
        does nothing. If cancelled, abandon the unanswered records.

        Raises:
            PenstockError: everything is closed, but closing a serializer, an interceptor or the partitioner raised.
        """
        session = self._inner.session
        _ = self._link.bridge()
        session.begin_close()
        try:
            _ = await self._link.wait_for(session.condition, session.has_ended, timeout)
        finally:
            # In another thread: callbacks still to run may wait for the loop.
            await asyncio.to_thread(self._inner.finish_close, timeout)

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


def _poll(record: RecordFuture) -> tuple[RecordMetadata | None, PenstockError | None] | None:
    return record.outcome.poll(record.index)


def _watch(batch: BatchFutures[RecordFuture], first: RecordFuture) -> None:
    first.outcome.watch(batch.post)
