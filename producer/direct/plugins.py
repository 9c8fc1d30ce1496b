"""Runs the direct producer's records through interceptors and serializers. Producers without plug-ins do not use it.

The order is Kafka's: interceptors (SND-1), wait for the topic's metadata (SND-3), serializers (SND-5), then
`kernel.append`, which takes bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from ...api.errors import PenstockError
from ...api.futures import Future
from ...api.interceptors import InterceptorChain, unknown_metadata
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.plugins import Plugins
from ...api.records import Header, Headers, Record, reusable_headers
from ..kernel.arguments import check_numbers, column, number_column
from ..kernel.chunks import AccumulatorTopic
from ..kernel.futures import DirectRecordFuture
from .batch_future import ColumnsFuture
from .callbacks import result_of, run_callback
from .completion import FrameCallback, RecordCallback
from .front import Front

GivenHeaders = Iterable[Header] | None


class InterceptedAckCallback:
    """Reports the outcome of one record to the interceptors and then to the application."""

    __slots__ = ("_chain", "_record", "future", "on_ack")

    def __init__(self, chain: InterceptorChain, record: Record, on_ack: RecordCallback | None) -> None:
        self.future: DirectRecordFuture | None = None
        """Set by `DirectPluginPipeline.append` just after the record was appended."""
        self._chain: Final = chain
        self._record: Final = record
        self.on_ack: Final = on_ack

    def __call__(self, metadata: RecordMetadata | None, error: PenstockError | None) -> None:
        record = self._record
        self._chain.on_ack(metadata or unknown_metadata(record.topic, self._partition(error)), error, record.headers)
        if self.on_ack is not None:
            self.on_ack(metadata, error)

    def on_send_error(self, _: None, error: PenstockError) -> None:
        """Report a record that never was in a chunk."""
        self._chain.on_send_error(self._record, error.partition, error)
        if self.on_ack is not None:
            self.on_ack(None, error)

    def _partition(self, error: PenstockError | None) -> int:
        if error is not None and error.partition >= 0:
            return error.partition
        if self.future is not None:
            return self.future.chunk.part.index
        return -1 if self._record.partition is None else self._record.partition


class DirectPluginPipeline:
    """`send` and `send_many` of a producer with serializers or interceptors (`kernel.append.SendPipeline`)."""

    def __init__(self, front: Front, plugins: Plugins) -> None:
        self._front: Final = front
        self._plugins: Final = plugins
        self._chain: Final = plugins.chain

    def send(
        self,
        topic: str,
        value: object,
        key: object,
        headers: GivenHeaders,
        partition: int | None,
        timestamp_ms: int | None,
        on_ack: RecordCallback | None,
        /,
    ) -> Future[RecordMetadata]:
        """See `DirectProducer.send`.

        Raises:
            SerializationError: a serializer failed for the key or value.
            TypeError, ValueError, ClosedError: as without plug-ins.
        """
        turn = self._front.appender.transaction_epoch
        record = self.intercept(Record(topic, value, key, Headers(headers), partition, timestamp_ms))
        try:
            began, missing = self.wait_for_metadata(record.topic, record.partition, record.timestamp_ms)
            told = self.ack_callback(record, on_ack)
            if missing is not None:
                return self._front.completion.failed(
                    record.topic, _partition_or_unknown(record.partition), missing, told
                )
            return self.append(self.serialize(record), told, began, turn)
        except BaseException as error:
            self.notify_send_error(record, error)
            raise

    # --- the steps, used by the asynchronous form too ---------------------------------------------------------------

    def intercept(self, record: Record) -> Record:
        """Run the interceptors, and return the record that they return."""
        return record if self._chain is None else self._chain.on_send(record)

    def ack_callback(self, record: Record, on_ack: RecordCallback | None) -> RecordCallback | None:
        """The callback for the record's outcome: `on_ack`, with the interceptors before it."""
        return on_ack if self._chain is None else InterceptedAckCallback(self._chain, record, on_ack)

    def wait_for_metadata(
        self, topic: str, partition: int | None, timestamp_ms: int | None = None
    ) -> tuple[float | None, PenstockError | None]:
        """Wait for the topic's metadata, unless the producer is closed (SND-2). Returns the time at which the wait
        started, or None without a wait, and the error if there is no metadata.

        Raises:
            TypeError, ValueError, ClosedError: as `send`.
        """
        check_numbers(partition, timestamp_ms)
        front = self._front
        front.appender.check_accepting()
        known = front.topics.by_name.get(topic)
        if known is not None and _partition_or_unknown(partition) < known.count:
            return None, None
        began, found = front.metadata.wait_for_metadata(topic, partition)
        return began, None if isinstance(found, AccumulatorTopic) else found

    def serialize(self, record: Record) -> Record:
        """The record with key and value as bytes (SND-5).

        Raises:
            SerializationError: a serializer failed.
        """
        key, value = record.key, record.value
        if self._plugins.key is not None:
            key = self._plugins.key.serialize(record.topic, key, record.headers)
        if self._plugins.value is not None:
            value = self._plugins.value.serialize(record.topic, value, record.headers)
        return record._replace(key=key, value=value)

    def append(self, record: Record, told: RecordCallback | None, began: float | None, turn: int) -> DirectRecordFuture:
        """Append a record whose key and value are bytes, and freeze its headers (SND-7). `turn` is the transaction
        epoch: see `kernel.append.RecordAppender`."""
        topic, headers, value, key = record.topic, record.headers, _unchecked(record.value), _unchecked(record.key)
        headers.freeze()
        future = self._front.appender.append(
            topic, value, key, headers or None, record.partition, record.timestamp_ms, told, began, turn
        )
        if isinstance(told, InterceptedAckCallback):
            told.future = future
        return future

    def notify_send_error(self, record: Record, error: BaseException) -> None:
        """Report to the interceptors a record for which `send` raises an exception (INT-3)."""
        if self._chain is not None:
            self._chain.on_send_error(record, _partition_or_unknown(record.partition), error)

    # --- columns -----------------------------------------------------------------------------------------------------

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Sequence[GivenHeaders] | None,
        partitions: int | Sequence[int | None] | None,
        timestamps_ms: int | Sequence[int | None] | None,
        on_ack: FrameCallback | None,
        /,
    ) -> Future[FrameMetadata]:
        """See `DirectProducer.send_many`. Serializers run per record; interceptors get each record as a `Record`.

        Raises:
            SerializationError: a serializer failed for one of the keys or values; no record was accepted.
            ValueError: an interceptor gave a record another topic.
            TypeError, ClosedError: as without plug-ins.
        """
        turn = self._front.appender.transaction_epoch
        columns = SendManyArguments(topic, values, keys, headers, partitions, timestamps_ms)
        records = self.intercept_many(columns)
        try:
            if records is not None:
                columns.replace_records(records)
            highest = max((one for one in columns.partitions or () if one is not None), default=None)
            began, missing = self.wait_for_metadata(topic, highest)
            if missing is not None:
                future = self._front.completion.columns_future(topic, [], None, columns.count, missing, None)
            else:
                self.serialize_many(columns)
                future = self.append_many(columns, began, turn)
        except BaseException as error:
            for record in records or ():
                self.notify_send_error(record, error)
            raise
        return self.attach_callbacks(future, records, on_ack)

    def intercept_many(self, columns: "SendManyArguments") -> list[Record] | None:
        """Run the interceptors, and return the records that they return; None without interceptors.

        Raises:
            ValueError: an interceptor changed the topic of a record.
        """
        chain = self._chain
        if chain is None:
            return None
        records = [chain.on_send(record) for record in columns.records()]
        for record in records:
            if record.topic != columns.topic:
                error = ValueError(f"an interceptor gave a record of topic {columns.topic} the topic {record.topic}")
                for one in records:
                    self.notify_send_error(one, error)
                raise error
        return records

    def serialize_many(self, columns: "SendManyArguments") -> None:
        """Replace keys and values by bytes.

        Raises:
            SerializationError: a serializer failed for one of them.
        """
        keys, values = self._plugins.key, self._plugins.value
        if any(role is not None and role.sees_headers for role in (keys, values)):
            columns.headers = [Headers(one) for one in columns.headers or [None] * columns.count]
        if keys is not None and columns.keys is not None:
            columns.keys = [*keys.serialize_column(columns.topic, columns.keys, columns.headers)]
        if values is not None:
            columns.values = [*values.serialize_column(columns.topic, columns.values, columns.headers)]

    def append_many(self, columns: "SendManyArguments", began: float | None, turn: int) -> Future[FrameMetadata]:
        """Append columns of bytes, and freeze their headers."""
        for one in columns.headers or ():
            if isinstance(one, Headers):
                one.freeze()
        values: list[Any] = columns.values
        keys: list[Any] | None = columns.keys
        return self._front.appender.append_many(
            columns.topic, values, keys, columns.headers, columns.partitions, columns.timestamps_ms, None, began, turn
        )

    def attach_callbacks(
        self, future: Future[FrameMetadata], records: Sequence[Record] | None, on_ack: FrameCallback | None
    ) -> Future[FrameMetadata]:
        """When all records have completed, report each to the interceptors, and then the outcome to the application."""
        chain = self._chain
        if chain is not None and records is not None and isinstance(future, ColumnsFuture):
            columns, interceptors, every = future, chain, records
            columns.add_done_callback(lambda _: _notify_interceptors(columns, interceptors, every))
        if on_ack is not None:
            callback = on_ack
            future.add_done_callback(lambda done: run_callback(callback, *result_of(done)))
        return future


class SendManyArguments:
    """The arguments of `send_many`, checked where plug-ins depend on it."""

    def __init__(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Sequence[GivenHeaders] | None,
        partitions: int | Sequence[int | None] | None,
        timestamps_ms: int | Sequence[int | None] | None,
    ) -> None:
        """
        Raises:
            TypeError, ValueError: an argument is not a column, or the lengths differ.
        """
        self.topic: Final = topic
        self.values: list[object] = column(values, "values")
        self.count: Final = len(self.values)
        if self.count == 0:
            raise ValueError("there is no record")
        self.keys: list[object] | None = None if keys is None else column(keys, "keys", self.count)
        self.headers: list[GivenHeaders] | None = (
            None if headers is None else [reusable_headers(one) for one in column(headers, "headers", self.count)]
        )
        self.partitions = None if partitions is None else number_column(partitions, self.count, 0)
        self.timestamps_ms = None if timestamps_ms is None else number_column(timestamps_ms, self.count, 1)

    def without_first(self, count: int) -> "SendManyArguments":
        """The columns without the first `count` records."""
        rest = [
            None if one is None else one[count:]
            for one in (self.values, self.keys, self.headers, self.partitions, self.timestamps_ms)
        ]
        values, keys, headers, partitions, stamps = cast("list[list[Any]]", rest)
        return SendManyArguments(self.topic, values, keys, headers, partitions, stamps)

    def records(self) -> Iterable[Record]:
        """Each row of the columns as a `Record`."""
        for i in range(self.count):
            yield Record(
                self.topic,
                self.values[i],
                None if self.keys is None else self.keys[i],
                Headers(None if self.headers is None else self.headers[i]),
                None if self.partitions is None else self.partitions[i],
                None if self.timestamps_ms is None else self.timestamps_ms[i],
            )

    def replace_records(self, records: Sequence[Record]) -> None:
        """Take the columns from these records.

        Raises:
            TypeError, ValueError: a partition or timestamp is not valid.
        """
        self.values = [record.value for record in records]
        self.keys = [record.key for record in records]
        self.headers = [record.headers for record in records]
        self.partitions = number_column([record.partition for record in records], self.count, 0)
        self.timestamps_ms = number_column([record.timestamp_ms for record in records], self.count, 1)


def _notify_interceptors(future: ColumnsFuture, chain: InterceptorChain, records: Sequence[Record]) -> None:
    for record, (metadata, error, taken) in zip(records, future.records(), strict=True):
        if taken or error is None:
            chain.on_ack(metadata, error, record.headers)
        else:
            chain.on_send_error(record, metadata.partition, error)


def _partition_or_unknown(partition: int | None) -> int:
    return -1 if partition is None else partition


def _unchecked(given: object) -> Any:  # noqa: ANN401  (checked when the record is appended)
    return given
