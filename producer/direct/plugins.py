"""Runs the direct producer's records through interceptors and serializers. Producers without plug-ins do not use it.

The order is Kafka's: interceptors (SND-1), wait for the topic's metadata (SND-3), serializers (SND-5), then
`kernel.append`, which takes bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ...api.errors import PenstockError
from ...api.futures import Future, result_of
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.plugins import AckCallback, FrameCallback, Plugins, RecordCallback, RecordColumns
from ...api.records import Header, Headers, Record, reusable_headers
from ..kernel.arguments import check_numbers, column, number_column
from ..kernel.chunks import AccumulatorTopic
from ..kernel.futures import DirectRecordFuture
from .batch_future import ColumnsFuture
from .callbacks import run_callback
from .front import Front

GivenHeaders = Iterable[Header] | None


class DirectPluginPipeline:
    """`send` and `send_many` of a producer with serializers or interceptors (`kernel.append.SendPipeline`)."""

    def __init__(self, front: Front, plugins: Plugins) -> None:
        self._front: Final = front
        self._plugins: Final = plugins

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
        record = self._plugins.intercept(Record(topic, value, key, Headers(headers), partition, timestamp_ms))
        try:
            began, missing = self.wait_for_metadata(record.topic, record.partition, record.timestamp_ms)
            callback = self.ack_callback(record, on_ack)
            if missing is not None:
                return self._front.completion.failed(
                    record.topic, _partition_or_unknown(record.partition), missing, callback
                )
            return self.append(self._plugins.serialize(record), callback, began, turn)
        except BaseException as error:
            self._plugins.notify_send_error([record], error)
            raise

    # --- the steps, used by the asynchronous form too ---------------------------------------------------------------

    def ack_callback(self, record: Record, on_ack: RecordCallback | None) -> RecordCallback | None:
        """The callback for the record's outcome: `on_ack`, with the interceptors before it."""
        chain = self._plugins.chain
        return on_ack if chain is None else AckCallback(chain, record, on_ack)

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

    def append(
        self, record: Record, callback: RecordCallback | None, began: float | None, turn: int
    ) -> DirectRecordFuture:
        """Append a record whose key and value are bytes, and freeze its headers (SND-7). `turn` is the transaction
        epoch: see `kernel.append.RecordAppender`."""
        topic, headers, value, key = record.topic, record.headers, _unchecked(record.value), _unchecked(record.key)
        headers.freeze()
        future = self._front.appender.append(
            topic, value, key, headers or None, record.partition, record.timestamp_ms, callback, began, turn
        )
        if isinstance(callback, AckCallback):
            callback.partition = future.chunk.part.index
        return future

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
        columns = checked_columns(topic, values, keys, headers, partitions, timestamps_ms)
        records = self._plugins.intercept_many(columns)
        try:
            began, missing = self.wait_for_metadata(topic, highest_partition(columns))
            if missing is not None:
                future = as_columns_future(
                    self._front.completion.columns_future(topic, [], None, len(columns), missing, None)
                )
            else:
                self._plugins.serialize_many(columns)
                future = self.append_many(columns, began, turn)
        except BaseException as error:
            self._plugins.notify_send_error(records, error)
            raise
        self._plugins.follow(future, records, on_ack and (lambda _: run_callback(on_ack, *result_of(future))))
        return future

    def append_many(self, columns: RecordColumns, began: float | None, turn: int) -> ColumnsFuture:
        """Append columns of bytes, and freeze their headers."""
        columns.freeze_headers()
        future = self._front.appender.append_many(
            columns.topic,
            columns.values,
            columns.keys,
            columns.headers,
            columns.partitions,
            columns.timestamps_ms,
            None,
            began,
            turn,
        )
        return as_columns_future(future)


def checked_columns(
    topic: str,
    values: Sequence[object],
    keys: Sequence[object] | None,
    headers: Sequence[GivenHeaders] | None,
    partitions: int | Sequence[int | None] | None,
    timestamps_ms: int | Sequence[int | None] | None,
) -> RecordColumns:
    """The columns of a `send_many` as lists of the same length.

    Raises:
        TypeError, ValueError: an argument is not a column, or the lengths differ.
    """
    values = column(values, "values")
    count = len(values)
    if count == 0:
        raise ValueError("there is no record")
    return RecordColumns(
        topic,
        values,
        None if keys is None else column(keys, "keys", count),
        None if headers is None else [reusable_headers(one) for one in column(headers, "headers", count)],
        None if partitions is None else number_column(partitions, count, 0),
        None if timestamps_ms is None else number_column(timestamps_ms, count, 1),
    )


def highest_partition(columns: RecordColumns) -> int | None:
    """The highest partition that a record names. Checks partitions and timestamps, which interceptors may have changed.

    Raises:
        TypeError, ValueError: a partition or timestamp is not valid.
    """
    for which, numbers in enumerate((columns.partitions, columns.timestamps_ms)):
        if numbers is not None:
            _ = number_column(numbers, len(columns), which)
    return max((one for one in columns.partitions or () if one is not None), default=None)


def as_columns_future(future: object) -> ColumnsFuture:
    assert isinstance(future, ColumnsFuture), "the front makes no other futures of columns"
    return future


def _partition_or_unknown(partition: int | None) -> int:
    return -1 if partition is None else partition


def _unchecked(given: object) -> Any:  # noqa: ANN401  (checked when the record is appended)
    return given
