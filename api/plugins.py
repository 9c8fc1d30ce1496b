"""The application's plug-ins (serializers, interceptors, the partitioner): their life, and what they do with records.

A producer calls, in this order: `intercept`, `serialize`, and, when a record's outcome is known, its `AckCallback`. Of a
record that was not buffered it calls `notify_send_error` instead. Columns of records have the same steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from .errors import PenstockError
from .futures import RecordOutcome
from .interceptors import InterceptorChain, PluginErrorReporter, unknown_metadata
from .metadata import FrameMetadata, RecordMetadata
from .records import Headers, Record
from .serializers import BoundSerializer

RecordCallback = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback = Callable[[FrameMetadata | None, PenstockError | None], None]


class SentRecords(Protocol):
    """The future of a `send_many`. `records` is called when it is done."""

    def records(self) -> Iterator[RecordOutcome]: ...
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


class RecordColumns:
    """The columns of a `send_many`. `partitions` and `timestamps_ms` may be one number for all records."""

    def __init__(self, topic: str, values: Any, keys: Any, headers: Any, partitions: Any, timestamps_ms: Any) -> None:  # noqa: ANN401
        self.topic: Final = topic
        self.values: Any = values
        self.keys: Any = keys
        self.headers: Any = headers
        self.partitions: Any = partitions
        self.timestamps_ms: Any = timestamps_ms

    def __len__(self) -> int:
        return len(self.values)

    def records(self) -> Iterator[Record]:
        """Yield each row of the columns.

        Raises:
            ValueError: the columns have different lengths.
        """
        count = len(self)
        columns = (self.values, self.keys, self.headers, self.partitions, self.timestamps_ms)
        full = [[one] * count if one is None or isinstance(one, int) else one for one in columns]
        if any(len(one) != count for one in full):
            raise ValueError(f"the columns have not {count} items each, as there are values")
        for value, key, headers, partition, timestamp_ms in zip(*full, strict=True):
            yield Record(self.topic, value, key, Headers(headers), partition, timestamp_ms)

    def replace_records(self, records: Sequence[Record]) -> None:
        """Take the columns from these records."""
        self.values = [record.value for record in records]
        self.keys = [record.key for record in records]
        self.headers = [record.headers for record in records]
        self.partitions = [record.partition for record in records]
        self.timestamps_ms = [record.timestamp_ms for record in records]

    def without_first(self, count: int) -> "RecordColumns":
        """The columns without the first `count` records. No column is one number."""
        columns = (self.values, self.keys, self.headers, self.partitions, self.timestamps_ms)
        return RecordColumns(self.topic, *(None if one is None else one[count:] for one in columns))

    def freeze_headers(self) -> None:
        """Forbid changes of the records' headers (SND-7)."""
        for one in self.headers or ():
            if isinstance(one, Headers):
                one.freeze()


class AckCallback:
    """Reports the outcome of one record to the interceptors, if there are any, and then to the application."""

    __slots__ = ("_chain", "_record", "on_ack", "partition")

    def __init__(self, chain: InterceptorChain | None, record: Record, on_ack: RecordCallback | None) -> None:
        self.partition = record.partition
        """The record's own partition. The producer replaces it by the partition that was chosen."""
        self._chain: Final = chain
        self._record: Final = record
        self.on_ack: Final = on_ack

    def __call__(self, metadata: RecordMetadata | None, error: PenstockError | None) -> None:
        if self._chain is not None:
            record = self._record
            partition = error.partition if error is not None and error.partition >= 0 else self.partition
            self._chain.on_ack(metadata or unknown_metadata(record.topic, partition), error, record.headers)
        if self.on_ack is not None:
            self.on_ack(metadata, error)

    def on_send_error(self, _: None, error: PenstockError) -> None:
        """Report a record that was not buffered, although `send` returned its future."""
        if self._chain is not None:
            self._chain.on_send_error(self._record, error.partition, error)
        if self.on_ack is not None:
            self.on_ack(None, error)


class Plugins:
    """A producer's plug-ins. `key` and `value`: serializers; None leaves bytes as they are. `chain`: None without
    interceptors."""

    def __init__(
        self,
        settings: Mapping[str, object],
        report: PluginErrorReporter,
        *,
        key_serializer: object,
        value_serializer: object,
        interceptors: Sequence[object],
        partitioner: object,
    ) -> None:
        """Create and configure all plug-ins. On an exception, close those created so far and raise it again (CFG-10).

        Raises:
            TypeError, ValueError: an object is not a serializer or interceptor.
        """
        self._report: Final = report
        self._all: list[object] = []
        self._closed = False
        self._failure: Exception | None = None
        try:
            self.key = self._serializer(key_serializer, settings, is_key=True)
            self.value = self._serializer(value_serializer, settings, is_key=False)
            if partitioner is not None:
                self._register(partitioner)
                _configure(partitioner, settings)
            made = [self._interceptor(one, settings) for one in interceptors]
            self.chain = InterceptorChain(made, report) if made else None
        except BaseException:
            _ = self.close()
            raise

    @property
    def handles_records(self) -> bool:
        """Whether any plug-in sees records before they are bytes."""
        return self.key is not None or self.value is not None or self.chain is not None

    def _serializer(self, given: object, settings: Mapping[str, object], *, is_key: bool) -> BoundSerializer | None:
        if given is None:
            return None
        role = BoundSerializer(given, is_key=is_key)
        self._register(role.serializer)
        _configure(role.serializer, settings, is_key)
        return role

    def _interceptor(self, given: object, settings: Mapping[str, object]) -> object:
        made = cast("object", given()) if isinstance(given, type) else given
        if not any(hasattr(made, name) for name in ("on_send", "on_ack", "on_send_error")):
            raise TypeError(f"{made!r} is no interceptor: it has none of on_send, on_ack, on_send_error")
        self._register(made)
        _configure(made, settings)
        return made

    def _register(self, made: object) -> None:
        if not any(made is one for one in self._all):
            self._all.append(made)

    def close(self) -> Exception | None:
        """Close each plug-in once, in reverse order of creation. Exceptions are reported, and every call returns the
        first one (CLS-4, INT-4)."""
        if not self._closed:
            self._closed = True
            for one in reversed(self._all):
                self._close(one)
        return self._failure

    def close_or_raise(self) -> None:
        """Close the plug-ins.

        Raises:
            PenstockError: closing one of them raised.
        """
        failure = self.close()
        if failure is not None:
            raise PenstockError(f"a plug-in could not be closed: {failure}") from failure

    def _close(self, one: object) -> None:
        close: object = None if isinstance(one, type) else getattr(one, "close", None)
        if not callable(close):
            return
        try:
            _ = close()
        except Exception as error:  # noqa: BLE001  (the application's code)
            self._report(type(one).__qualname__, "close")
            self._failure = self._failure or error

    # --- records -----------------------------------------------------------------------------------------------------

    def intercept(self, record: Record) -> Record:
        """Run the interceptors, and return the record that they return."""
        return record if self.chain is None else self.chain.on_send(record)

    def serialize(self, record: Record) -> Record:
        """The record with key and value as bytes (SND-5).

        Raises:
            SerializationError: a serializer rejects the key or value.
        """
        key, value = record.key, record.value
        if self.key is not None:
            key = self.key.serialize(record.topic, key, record.headers)
        if self.value is not None:
            value = self.value.serialize(record.topic, value, record.headers)
        return record._replace(key=key, value=value)

    def prepare(self, record: Record, on_ack: RecordCallback | None) -> tuple[Record, AckCallback]:
        """Return the intercepted and serialized record, and the callback for its outcome.

        Raises:
            SerializationError: a serializer rejects the key or value.
        """
        record = self.intercept(record)
        try:
            record = self.serialize(record)
        except BaseException as error:
            self.notify_send_error([record], error)
            raise
        record.headers.freeze()
        return record, AckCallback(self.chain, record, on_ack)

    def notify_send_error(
        self, records: Iterable[Record] | None, error: BaseException, partition: int | None = None
    ) -> None:
        """Report to the interceptors records for which `send` raises an exception (INT-3). `partition`: the one chosen
        for a single record, if any."""
        if self.chain is not None:
            for record in records or ():
                where = record.partition if partition is None else partition
                self.chain.on_send_error(record, -1 if where is None else where, error)

    def intercept_many(self, columns: RecordColumns) -> list[Record] | None:
        """Run the interceptors and take the columns from the records that they return. Returns these; None without
        interceptors.

        Raises:
            ValueError: an interceptor gave a record another topic.
        """
        chain = self.chain
        if chain is None:
            return None
        records = [chain.on_send(record) for record in columns.records()]
        for record in records:
            if record.topic != columns.topic:
                error = ValueError(f"an interceptor gave a record of topic {columns.topic} the topic {record.topic}")
                self.notify_send_error(records, error)
                raise error
        columns.replace_records(records)
        return records

    def prepare_many(self, columns: RecordColumns) -> list[Record] | None:
        """Intercept and serialize columns. Returns the interceptors' records; None without interceptors.

        Raises:
            SerializationError: a serializer rejects one of the keys or values.
            ValueError: an interceptor gave a record another topic.
        """
        records = self.intercept_many(columns)
        try:
            self.serialize_many(columns)
        except BaseException as error:
            self.notify_send_error(records, error)
            raise
        columns.freeze_headers()
        return records

    def serialize_many(self, columns: RecordColumns) -> None:
        """Replace keys and values by bytes.

        Raises:
            SerializationError: a serializer rejects one of them.
        """
        key, value = self.key, self.value
        if self.chain is None and any(role is not None and role.sees_headers for role in (key, value)):
            columns.headers = [Headers(one) for one in columns.headers or [None] * len(columns)]
        if key is not None and columns.keys is not None:
            columns.keys = key.serialize_column(columns.topic, columns.keys, columns.headers)
        if value is not None:
            columns.values = value.serialize_column(columns.topic, columns.values, columns.headers)

    def follow(
        self, future: SentRecords, records: Sequence[Record] | None, then: Callable[[Any], None] | None = None
    ) -> None:
        """When all records of a `send_many` have completed, report each to the interceptors, and then call `then`."""
        chain = self.chain
        if chain is None or records is None:
            if then is not None:
                future.add_done_callback(then)
            return

        def on_done(_: object) -> None:
            for record, (metadata, error, buffered) in zip(records, future.records(), strict=True):
                where = metadata or unknown_metadata(record.topic, record.partition)
                if buffered or error is None:
                    chain.on_ack(where, error, record.headers)
                else:
                    chain.on_send_error(record, where.partition, error)
            if then is not None:
                then(future)

        future.add_done_callback(on_done)


def _configure(made: object, *arguments: object) -> None:
    configure: object = getattr(made, "configure", None)
    if callable(configure):
        _ = configure(*arguments)
