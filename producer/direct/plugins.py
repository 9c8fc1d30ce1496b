"""Records of the direct producer on their way through serializers and interceptors. Producers without any never come here.

The order is Kafka's: interceptors (SND-1), the topic is waited for (SND-3), serializers (SND-5), and then what `kernel.append` does with bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from ...api.errors import PenstockError
from ...api.futures import Future
from ...api.interceptors import Chain, nowhere
from ...api.metadata import FrameMetadata, RecordMetadata
from ...api.plugins import Plugins
from ...api.records import Header, Headers, Record, kept
from ..kernel.arguments import check_numbers, column, number_column
from ..kernel.chunks import Topic
from ..kernel.futures import RecordFuture
from .batch_future import ColumnsFuture
from .callbacks import call, result_of
from .futures_front import FrameCallback, Front, RecordCallback

GivenHeaders = Iterable[Header] | None


class Told:
    """The end of one record, told to the interceptors and then to the application."""

    __slots__ = ("_chain", "_record", "future", "on_ack")

    def __init__(self, chain: Chain, record: Record, on_ack: RecordCallback | None) -> None:
        self.future: RecordFuture | None = None
        """Known a moment after the record was taken."""
        self._chain: Final = chain
        self._record: Final = record
        self.on_ack: Final = on_ack

    def __call__(self, metadata: RecordMetadata | None, error: PenstockError | None) -> None:
        record = self._record
        self._chain.on_ack(metadata or nowhere(record.topic, self._partition(error)), error, record.headers)
        if self.on_ack is not None:
            self.on_ack(metadata, error)

    def not_taken(self, _: None, error: PenstockError) -> None:
        """The record never was in a chunk."""
        self._chain.on_send_error(self._record, error.partition, error)
        if self.on_ack is not None:
            self.on_ack(None, error)

    def _partition(self, error: PenstockError | None) -> int:
        if error is not None and error.partition >= 0:
            return error.partition
        if self.future is not None:
            return self.future.chunk.part.index
        return -1 if self._record.partition is None else self._record.partition


class Plugged:
    """The calls of a producer that has serializers or interceptors (`kernel.append.Plugged`)."""

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
            SerializationError: a serializer cannot take key or value.
            TypeError, ValueError, ClosedError: as without.
        """
        turn = self._front.turn
        record = self.begin(Record(topic, value, key, Headers(headers), partition, timestamp_ms))
        try:
            began, missing = self.find(record.topic, record.partition, record.timestamp_ms)
            told = self.told(record, on_ack)
            if missing is not None:
                return self._front.failed(record.topic, _number(record.partition), missing, told)
            return self.take(self.serialized(record), told, began, turn)
        except BaseException as error:
            self.not_taken(record, error)
            raise

    # --- the steps, for the asynchronous form too -------------------------------------------------------------------

    def begin(self, record: Record) -> Record:
        """The record as the interceptors leave it."""
        return record if self._chain is None else self._chain.on_send(record)

    def told(self, record: Record, on_ack: RecordCallback | None) -> RecordCallback | None:
        """What is called at the record's end."""
        return on_ack if self._chain is None else Told(self._chain, record, on_ack)

    def find(
        self, topic: str, partition: int | None, timestamp_ms: int | None = None
    ) -> tuple[float | None, PenstockError | None]:
        """Wait for the topic, unless the producer is closed (SND-2). Returns when that began, if it was to be waited for, and why
        there is none.

        Raises:
            TypeError, ValueError, ClosedError: as `send`.
        """
        check_numbers(partition, timestamp_ms)
        front = self._front
        if front.refusal is not None:
            front.refuse()
        known = front.topics.get(topic)
        if known is not None and _number(partition) < known.count:
            return None, None
        began, found = front.find(topic, partition)
        return began, None if isinstance(found, Topic) else found

    def serialized(self, record: Record) -> Record:
        """Key and value as bytes (SND-5).

        Raises:
            SerializationError: a serializer cannot take them.
        """
        key, value = record.key, record.value
        if self._plugins.key is not None:
            key = self._plugins.key.bytes_of(record.topic, key, record.headers)
        if self._plugins.value is not None:
            value = self._plugins.value.bytes_of(record.topic, value, record.headers)
        return record._replace(key=key, value=value)

    def take(self, record: Record, told: RecordCallback | None, began: float | None, turn: int) -> RecordFuture:
        """Put a record whose key and value are bytes; its headers cannot be changed from here on (SND-7). `turn`: see
        `kernel.append.Rows`."""
        topic, headers, value, key = record.topic, record.headers, _bytes(record.value), _bytes(record.key)
        headers.freeze()
        future = self._front.take(
            topic, value, key, headers or None, record.partition, record.timestamp_ms, told, began, turn
        )
        if isinstance(told, Told):
            told.future = future
        return future

    def not_taken(self, record: Record, error: BaseException) -> None:
        """The record was not taken, and its sender is told by an exception (INT-3)."""
        if self._chain is not None:
            self._chain.on_send_error(record, _number(record.partition), error)

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
        """See `DirectProducer.send_many`. Serializers are called for each record; with interceptors each also is a `Record`.

        Raises:
            SerializationError: a serializer cannot take one of the keys or values; no record was taken.
            ValueError: an interceptor gave a record another topic.
            TypeError, ClosedError: as without.
        """
        turn = self._front.turn
        columns = Columns(topic, values, keys, headers, partitions, timestamps_ms)
        records = self.begin_many(columns)
        try:
            if records is not None:
                columns.put_back(records)
            highest = max((one for one in columns.partitions or () if one is not None), default=None)
            began, missing = self.find(topic, highest)
            if missing is not None:
                future = self._front.columns_future(topic, [], None, columns.count, missing, None)
            else:
                self.serialize_many(columns)
                future = self.take_many(columns, began, turn)
        except BaseException as error:
            for record in records or ():
                self.not_taken(record, error)
            raise
        return self.tell_many(future, records, on_ack)

    def begin_many(self, columns: "Columns") -> list[Record] | None:
        """The records as the interceptors leave them; None without interceptors.

        Raises:
            ValueError: one has another topic than the columns.
        """
        chain = self._chain
        if chain is None:
            return None
        records = [chain.on_send(record) for record in columns.records()]
        for record in records:
            if record.topic != columns.topic:
                error = ValueError(f"an interceptor gave a record of topic {columns.topic} the topic {record.topic}")
                for one in records:
                    self.not_taken(one, error)
                raise error
        return records

    def serialize_many(self, columns: "Columns") -> None:
        """Keys and values as bytes.

        Raises:
            SerializationError: a serializer cannot take one of them.
        """
        keys, values = self._plugins.key, self._plugins.value
        if any(role is not None and role.sees_headers for role in (keys, values)):
            columns.headers = [Headers(one) for one in columns.headers or [None] * columns.count]
        if keys is not None and columns.keys is not None:
            columns.keys = [*keys.column_of(columns.topic, columns.keys, columns.headers)]
        if values is not None:
            columns.values = [*values.column_of(columns.topic, columns.values, columns.headers)]

    def take_many(self, columns: "Columns", began: float | None, turn: int) -> Future[FrameMetadata]:
        """Put columns of bytes; headers cannot be changed from here on."""
        for one in columns.headers or ():
            if isinstance(one, Headers):
                one.freeze()
        values: list[Any] = columns.values
        keys: list[Any] | None = columns.keys
        return self._front.take_many(
            columns.topic, values, keys, columns.headers, columns.partitions, columns.timestamps_ms, None, began, turn
        )

    def tell_many(
        self, future: Future[FrameMetadata], records: Sequence[Record] | None, on_ack: FrameCallback | None
    ) -> Future[FrameMetadata]:
        """Have interceptors told of each record when all are settled, and then the application."""
        chain = self._chain
        if chain is not None and records is not None and isinstance(future, ColumnsFuture):
            columns, interceptors, every = future, chain, records
            columns.add_done_callback(lambda _: _tell_each(columns, interceptors, every))
        if on_ack is not None:
            callback = on_ack
            future.add_done_callback(lambda done: call(callback, *result_of(done)))
        return future


class Columns:
    """What is given to `send_many`, checked as far as it concerns plug-ins."""

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
            TypeError, ValueError: they are no columns, or not of the same length.
        """
        self.topic: Final = topic
        self.values: list[object] = column(values, "values")
        self.count: Final = len(self.values)
        if self.count == 0:
            raise ValueError("there is no record")
        self.keys: list[object] | None = None if keys is None else column(keys, "keys", self.count)
        self.headers: list[GivenHeaders] | None = (
            None if headers is None else [kept(one) for one in column(headers, "headers", self.count)]
        )
        self.partitions = None if partitions is None else number_column(partitions, self.count, 0)
        self.timestamps_ms = None if timestamps_ms is None else number_column(timestamps_ms, self.count, 1)

    def behind(self, count: int) -> "Columns":
        """These without the first ones."""
        rest = [
            None if one is None else one[count:]
            for one in (self.values, self.keys, self.headers, self.partitions, self.timestamps_ms)
        ]
        values, keys, headers, partitions, stamps = cast("list[list[Any]]", rest)
        return Columns(self.topic, values, keys, headers, partitions, stamps)

    def records(self) -> Iterable[Record]:
        """One by one."""
        for i in range(self.count):
            yield Record(
                self.topic,
                self.values[i],
                None if self.keys is None else self.keys[i],
                Headers(None if self.headers is None else self.headers[i]),
                None if self.partitions is None else self.partitions[i],
                None if self.timestamps_ms is None else self.timestamps_ms[i],
            )

    def put_back(self, records: Sequence[Record]) -> None:
        """Have the columns be of these records.

        Raises:
            TypeError, ValueError: their partitions or timestamps are none.
        """
        self.values = [record.value for record in records]
        self.keys = [record.key for record in records]
        self.headers = [record.headers for record in records]
        self.partitions = number_column([record.partition for record in records], self.count, 0)
        self.timestamps_ms = number_column([record.timestamp_ms for record in records], self.count, 1)


def _tell_each(future: ColumnsFuture, chain: Chain, records: Sequence[Record]) -> None:
    for record, (metadata, error, taken) in zip(records, future.records(), strict=True):
        if taken or error is None:
            chain.on_ack(metadata, error, record.headers)
        else:
            chain.on_send_error(record, metadata.partition, error)


def _number(partition: int | None) -> int:
    return -1 if partition is None else partition


def _bytes(given: object) -> Any:  # noqa: ANN401  (what it is, is checked where it is written)
    return given
