"""The direct producer for asyncio: `AsyncDirectProducer`.

The loop's thread appends records to the same accumulator as the synchronous form, but never blocks: where the
synchronous form blocks, this form awaits. The sender thread does not depend on the loop. One wake-up of the loop
delivers many outcomes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self
from uuid import UUID

from ...api.bridging import BatchFutures, LoopBinding, settle
from ...api.errors import BufferExhaustedError, PenstockError, WaitTimeoutError
from ...api.futures import poll
from ...api.metadata import FrameMetadata, PartitionMetadata, RecordMetadata
from ...api.metrics import MetricName
from ...api.partitioning import Partitioner
from ...api.plugins import RecordColumns
from ...api.records import Headers, Record, reusable_headers
from ..kernel.chunks import AccumulatorTopic
from ..kernel.futures import DirectRecordFuture
from ..telemetry.sensors import MetricValue
from .aio_bridge import MemoryWait, NonBlockingProducer, Reservation
from .batch_future import ColumnsFuture
from .nonblocking import WouldBlockError
from .plugins import DirectPluginPipeline, GivenHeaders, as_columns_future, checked_columns, highest_partition
from .record_accumulator import MEMORY_RECHECK_S
from .transactions_api import ConsumerGroup, Offsets


class AsyncDirectProducer:
    """`DirectProducer` for asyncio: the same settings, serializers and interceptors, one event loop at a time.

    `await send(…)` returns an `asyncio.Future` of the record's metadata as soon as the record is accepted. It waits
    where the synchronous form waits: for a new topic's metadata and for memory, together at most `max.block.ms`.
    Records of a topic are accepted in the order of the calls. A cancelled `send` has accepted no record. asyncio
    reports an error that is never retrieved ("exception was never retrieved").

    Another loop may use the producer when the first one has ended. The first loop's outstanding records are still sent,
    but their outcomes are not reported. After a fork the child has its own producer, as with the synchronous form.

    Raises:
        ConfigError: with every problem of the settings.
        TypeError, ValueError: an argument is not a serializer or interceptor.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        /,
        *,
        partitioner: Partitioner | Literal["round_robin"] | None = None,
        key_serializer: object = None,
        value_serializer: object = None,
        interceptors: Sequence[object] = (),
        **settings: object,
    ) -> None:
        self._link: Final = LoopBinding[DirectRecordFuture](poll, _post_if_done)
        self._reservation: Final = Reservation()
        self._inner: Final = NonBlockingProducer(
            config,
            self._link,
            self._reservation,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            interceptors=interceptors,
            **settings,
        )

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: object,
        key: object = None,
        *,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Append one record; returns the future of its metadata.

        Raises:
            SerializationError: a serializer failed for the key or value.
            TypeError, ValueError, ClosedError: as `DirectProducer.send`.
        """
        bridge = self._link.bridge()
        future: asyncio.Future[RecordMetadata] = bridge.loop.create_future()
        inner = self._inner
        turn = inner.front.appender.transaction_epoch
        headers = reusable_headers(headers)
        if inner.plugin_pipeline is None and topic not in self._link.send_locks.in_use:
            plain: Any = value
            taken = inner.front.appender.append(
                topic, plain, _unchecked(key), headers, partition, timestamp_ms, None, None, turn
            )
            if taken.was_appended:
                self._link.follow(bridge, taken.chunk, taken, future)
                return future
            error = taken.exception(0)
            if not isinstance(error, WouldBlockError):
                settle(future, None, error)
                return future
        began = inner.front.environment.now()
        record = inner.plugins.intercept(Record(topic, value, key, Headers(headers), partition, timestamp_ms))
        try:
            async with self._link.send_locks.hold(record.topic):
                taken = await self._send(record, began, turn)
        except BaseException as error:
            inner.plugins.notify_send_error([record], error)
            raise
        if taken.was_appended:
            self._link.follow(bridge, taken.chunk, taken, future)
        else:
            settle(future, None, taken.exception(0))
        return future

    async def _send(self, record: Record, began: float, turn: int) -> DirectRecordFuture:
        """Append or fail the next record of the queue. `began`: when `send` was called, so that waiting for earlier calls
        counts towards `max.block.ms`."""
        front, steps = self._inner.front, self._pipeline()
        callback = steps.ack_callback(record, None)
        missing = await self._wait_for_metadata(record.topic, record.partition, record.timestamp_ms, began)
        serialized = record if missing is not None else self._inner.plugins.serialize(record)
        with MemoryWait(front, self._reservation, began) as memory:
            while missing is None:
                taken = memory.attempt(partial(steps.append, serialized, callback, began, turn))
                error = None if taken.was_appended else taken.exception(0)
                if not isinstance(error, WouldBlockError):
                    return taken
                missing = await self._wait(memory, error, serialized.topic, serialized.partition, began)
        return front.completion.failed(
            record.topic, -1 if record.partition is None else record.partition, missing, callback
        )

    async def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        headers: Sequence[GivenHeaders] | None = None,
        partitions: int | Sequence[int | None] | None = None,
        timestamps_ms: int | Sequence[int | None] | None = None,
    ) -> asyncio.Future[FrameMetadata]:
        """Append whole columns; waits until there is memory for the last record.

        If it is cancelled after some records were accepted, the `CancelledError` has two attributes: `taken`, the
        number of accepted records, which are the first ones, and `future`, of their metadata. Else it has neither.

        Raises:
            SerializationError: a serializer failed for one of the keys or values; no record was accepted.
            TypeError, ValueError, ClosedError: as `DirectProducer.send_many`.
        """
        turn = self._inner.front.appender.transaction_epoch
        plugins, began = self._inner.plugins, self._inner.front.environment.now()
        _ = self._link.bridge()
        columns = checked_columns(topic, values, keys, headers, partitions, timestamps_ms)
        records = plugins.intercept_many(columns)
        taken: list[ColumnsFuture] = []
        try:
            highest = highest_partition(columns)
            async with self._link.send_locks.hold(topic):
                await self._send_many(columns, highest, taken, began, turn)
        except BaseException as error:
            count = len(taken[0]) if taken else 0
            plugins.notify_send_error((records or ())[count:], error)
            if count and isinstance(error, asyncio.CancelledError):
                plugins.follow(taken[0], (records or ())[:count] or None)
                error.__dict__.update(taken=count, future=self._link.future_of(taken[0]))
            raise
        plugins.follow(taken[0], records)
        return self._link.future_of(taken[0])

    async def _send_many(
        self, columns: RecordColumns, highest: int | None, taken: list[ColumnsFuture], began: float, turn: int
    ) -> None:
        """Append the next columns of the queue. `taken` always holds one future, of all records accepted so far."""
        front, steps, topic = self._inner.front, self._pipeline(), columns.topic
        missing = await self._wait_for_metadata(topic, highest, None, began)
        if missing is None:
            self._inner.plugins.serialize_many(columns)
        rest = columns
        with MemoryWait(front, self._reservation, began) as memory:
            while missing is None:
                try:
                    more = memory.attempt(partial(steps.append_many, rest, began, turn))
                except PenstockError as error:
                    if not taken:
                        raise
                    missing = error
                    break
                taken[:] = [taken[0].concatenated(more) if taken else more]
                if more.would_block_error is None:
                    return
                rest = rest.without_first(len(more))
                missing = await self._wait(memory, more.would_block_error, topic, highest, began)
        failed = as_columns_future(front.completion.columns_future(topic, [], None, len(rest), missing, None))
        taken[:] = [taken[0].concatenated(failed) if taken else failed]

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def _wait_for_metadata(
        self, topic: str, partition: int | None, timestamp_ms: int | None, began: float, limit_s: float | None = None
    ) -> PenstockError | None:
        """Wait for a topic's metadata. Returns None, or the error if there is none."""
        steps, front = self._pipeline(), self._inner.front
        _, missing = steps.wait_for_metadata(topic, partition, timestamp_ms)
        if not isinstance(missing, WouldBlockError):
            return missing
        with front.metadata.waiting(topic, partition, limit_s, began) as wait:
            left_s = max(0.0, wait.deadline - front.environment.now())
            _ = await self._link.wait_for(front.condition, lambda: wait.outcome is not None, left_s)
        found = front.metadata.result(wait, began)
        return None if isinstance(found, AccumulatorTopic) else found

    async def _wait(
        self, memory: MemoryWait, wanted: WouldBlockError, topic: str, partition: int | None, began: float
    ) -> PenstockError | None:
        """Wait for the metadata or memory that an attempt lacked, for memory at most `MEMORY_RECHECK_S`. Returns None
        to try again, or the error."""
        if wanted.size is None:
            return await self._wait_for_metadata(topic, partition, None, began)
        front = self._inner.front
        try:
            ready = memory.reserve(wanted.size, wanted.node, self._link.notify_all)
            _ = await self._link.wait_for(front.condition, ready, min(MEMORY_RECHECK_S, memory.remaining_s))
        except BufferExhaustedError as error:
            return error
        return None

    def _pipeline(self) -> DirectPluginPipeline:
        return DirectPluginPipeline(self._inner.front, self._inner.plugins)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything buffered and wait until each record sent before has succeeded or failed, and its future is
        done.

        Raises:
            WaitTimeoutError: `timeout` seconds have passed; the records are still being sent.
        """
        bridge, front = self._link.bridge(), self._inner.front
        with front.running_flush() as mark:
            flushed = partial(front.completion.has_settled, mark)
            if not await self._link.wait_for(front.condition, flushed, timeout):
                raise WaitTimeoutError(f"not everything was settled within {timeout} s")
            # The completions may still be queued for the loop.
            bridge.drain()

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """The topic's partitions; waits at most `timeout` seconds, `max.block.ms` by default.

        Raises:
            TypeError: the topic is not a str.
            MetadataTimeoutError, InvalidTopicError, TopicForbiddenError: why there is no metadata.
            ClosedError: the producer is closed or has failed.
        """
        front = self._inner.front
        _ = self._link.bridge()
        missing = await self._wait_for_metadata(topic, None, None, front.environment.now(), timeout)
        if missing is not None:
            missing.topic = topic
            raise missing
        return front.topics.partitions_of(topic)

    async def close(self, timeout: float | None = None) -> None:
        """Reject new records, send the buffered ones, wait for the responses (at most `timeout` seconds), and shut
        down. A second call does nothing. If it is cancelled, records without a response fail.

        Raises:
            ValueError: the timeout is negative.
            PenstockError: everything is closed, but closing a serializer, an interceptor or the partitioner raised.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"a timeout of {timeout} s is negative")
        _ = self._link.bridge()
        inner = self._inner
        front = inner.front
        if not front.stop():
            return
        if front.metadata.started:
            inner.thread.close(timeout)
            try:
                _ = await self._link.wait_for(front.condition, lambda: front.sender_has_ended, timeout)
            finally:
                inner.thread.close(0)
                # Not on the loop's thread: callbacks that are yet to run may wait for the loop.
                _ = await asyncio.to_thread(inner.thread.join)
        inner.plugins.close_or_raise()

    # --- transactions ------------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float | None = None) -> None:
        """As `DirectProducer.init_transactions`. The transaction calls that wait run in the loop's default executor;
        cancelling the await does not cancel the operation, as after a timeout."""
        await asyncio.to_thread(self._inner.init_transactions, timeout)

    def begin_transaction(self) -> None:
        """As `DirectProducer.begin_transaction`; it does not wait, so it is not a coroutine."""
        self._inner.begin_transaction()

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: str | ConsumerGroup, timeout: float | None = None
    ) -> None:
        """As `DirectProducer.send_offsets_to_transaction`."""
        await asyncio.to_thread(self._inner.send_offsets_to_transaction, offsets, group_metadata, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """As `DirectProducer.commit_transaction`."""
        await asyncio.to_thread(self._inner.commit_transaction, timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """As `DirectProducer.abort_transaction`."""
        await asyncio.to_thread(self._inner.abort_transaction, timeout)

    # -----------------------------------------------------------------------------------------------------------------

    async def client_instance_id(self, timeout: float) -> UUID:
        """As `DirectProducer.client_instance_id`; waits in the loop's default executor."""
        return await asyncio.to_thread(self._inner.client_instance_id, timeout)

    def metrics(self) -> dict[MetricName, float]:
        """As `DirectProducer.metrics`."""
        return self._inner.metrics()

    def metric_values(self) -> list[MetricValue]:
        """As `DirectProducer.metric_values`, for `prometheus.Collector`."""
        return self._inner.metric_values()

    @property
    def held_bytes(self) -> int:
        """Bytes of `buffer.memory` that buffered and in-flight records occupy."""
        return self._inner.held_bytes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _post_if_done(batch: BatchFutures[DirectRecordFuture], first: DirectRecordFuture) -> None:
    # The record may have completed before the batch was registered.
    if first.done():
        batch.post()


def _unchecked(given: object) -> Any:  # noqa: ANN401  (checked when the record is appended)
    return given
