"""Passes records of the client library through serializers and interceptors. Unused by producers without any."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

from ..api.errors import PenstockError
from ..api.futures import FrameFuture
from ..api.interceptors import InterceptorChain, unknown_metadata
from ..api.metadata import FrameMetadata, RecordMetadata
from ..api.plugins import Plugins
from ..api.records import Header, Headers, Record
from .arguments import call_on_ack

log: Final = logging.getLogger("penstock.client")
F = TypeVar("F")
SendCall = Callable[..., F]
"""`Producer.send` or `Producer.send_many` of a producer."""
GivenHeaders = Iterable[Header] | None
RecordCallback = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback = Callable[[FrameMetadata | None, PenstockError | None], None]


def log_plugin_failure(plugin: str, what: str) -> None:
    """Log that a plug-in raised. Call while the exception is being handled."""
    log.exception("plugin_failed plugin=%s call=%s", plugin, what)  # noqa: LOG004


class ClientAckCallback:
    """Delivery callback of one record: calls the interceptors, then the application."""

    __slots__ = ("_chain", "_on_ack", "_record", "partition")

    def __init__(self, chain: InterceptorChain | None, record: Record, on_ack: RecordCallback | None) -> None:
        self.partition = record.partition
        """The record's own partition, or the one that the application's partitioner chose."""
        self._chain: Final = chain
        self._record: Final = record
        self._on_ack: Final = on_ack

    def __call__(self, metadata: RecordMetadata | None, error: PenstockError | None) -> None:
        if self._chain is not None:
            record = self._record
            self._chain.on_ack(metadata or unknown_metadata(record.topic, self.partition), error, record.headers)
        if self._on_ack is not None:
            self._on_ack(metadata, error)


class ClientFrameAckCallback:
    """Delivery callback of whole columns. `records` is None without interceptors."""

    __slots__ = ("_chain", "_on_ack", "records")

    def __init__(
        self, chain: InterceptorChain | None, records: Sequence[Record] | None, on_ack: FrameCallback | None
    ) -> None:
        self._chain: Final = chain
        self.records: Final = records
        self._on_ack: Final = on_ack

    def on_settled(self, done: FrameFuture) -> None:
        """Call back once the last frame is answered."""
        if self._chain is not None and self.records is not None:
            for record, (metadata, error) in zip(self.records, done.records(), strict=True):
                where = metadata or unknown_metadata(record.topic, record.partition)
                self._chain.on_ack(where, error, record.headers)
        if self._on_ack is not None:
            error = done.exception()
            self._on_ack(None if error is not None else done.result(), error)


class ClientPluginPipeline:
    """Send calls of a producer that has serializers or interceptors."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins: Final = plugins
        self._chain: Final = plugins.chain

    def send(self, take: SendCall[F], record: Record, level: str | None, on_ack: RecordCallback | None) -> F:
        """Pass a record through the plug-ins and send the result with `take`.

        Raises:
            SerializationError: a serializer rejects the key or value.
            What `Producer.send` raises.
        """
        record, told = self.prepare(record, on_ack)
        try:
            return send_prepared(take, record, level, told)
        except BaseException as error:
            self.notify_send_error([record], error, told.partition)
            raise

    def prepare(self, record: Record, on_ack: RecordCallback | None) -> tuple[Record, ClientAckCallback]:
        """Return the intercepted and serialized record, and its delivery callback.

        Raises:
            SerializationError: a serializer rejects the key or value.
        """
        if self._chain is not None:
            record = self._chain.on_send(record)
        try:
            record = self._serialize(record)
        except BaseException as error:
            self.notify_send_error([record], error, record.partition)
            raise
        record.headers.freeze()
        return record, ClientAckCallback(self._chain, record, on_ack)

    def _serialize(self, record: Record) -> Record:
        key, value = record.key, record.value
        if self._plugins.key is not None:
            key = self._plugins.key.serialize(record.topic, key, record.headers)
        if self._plugins.value is not None:
            value = self._plugins.value.serialize(record.topic, value, record.headers)
        return record._replace(key=key, value=value)

    def notify_send_error(self, records: Sequence[Record], error: BaseException, partition: int | None = None) -> None:
        """Notify the interceptors of records that were not buffered; the sender gets an exception (INT-3). `partition`:
        the one chosen for a single record, if any."""
        if self._chain is None:
            return
        for record in records:
            where = record.partition if partition is None else partition
            self._chain.on_send_error(record, -1 if where is None else where, error)

    def send_many(
        self, take: SendCall[F], topic: str, columns: Sequence[object], level: str | None, on_ack: FrameCallback | None
    ) -> F:
        """Like `send`, for whole columns: partitions, keys, values, headers, timestamps. Interceptors see single
        records.

        Raises:
            SerializationError: a serializer rejects one of the keys or values; no record was buffered.
            ValueError: an interceptor gave a record another topic.
            What `Producer.send_many` raises.
        """
        columns, told = self.prepare_many(topic, columns, on_ack)
        try:
            return send_many_prepared(take, topic, columns, level, told)
        except BaseException as error:
            self.notify_send_error(told.records or (), error)
            raise

    def prepare_many(
        self, topic: str, columns: Sequence[object], on_ack: FrameCallback | None
    ) -> tuple[Sequence[object], ClientFrameAckCallback]:
        """Return the intercepted and serialized columns, and their delivery callback.

        Raises:
            SerializationError, ValueError: as `send_many`.
        """
        partitions, keys, values, headers, stamps = columns
        records: list[Record] | None = None
        if self._chain is not None:
            chain = self._chain
            records = [chain.on_send(record) for record in _to_records(topic, columns)]
        try:
            if records is not None:
                wrong = next((record.topic for record in records if record.topic != topic), topic)
                if wrong != topic:
                    raise ValueError(f"an interceptor gave a record of topic {topic} the topic {wrong}")
                partitions = [record.partition for record in records]
                keys = [record.key for record in records]
                values = [record.value for record in records]
                headers = [record.headers for record in records]
                stamps = [record.timestamp_ms for record in records]
            keys, values, headers = self._serialize_columns(topic, keys, values, headers)
        except BaseException as error:
            self.notify_send_error(records or (), error)
            raise
        for one in cast("Sequence[object]", headers or ()):
            if isinstance(one, Headers):
                one.freeze()
        return (partitions, keys, values, headers, stamps), ClientFrameAckCallback(self._chain, records, on_ack)

    def _serialize_columns(
        self, topic: str, keys: object, values: object, headers: object
    ) -> tuple[object, object, object]:
        roles = (self._plugins.key, self._plugins.value)
        own = cast("Sequence[Any] | None", headers)
        if any(role is not None and role.sees_headers for role in roles):
            count = len(cast("Sequence[object]", values))
            own = [one if isinstance(one, Headers) else Headers(one) for one in own or [None] * count]
        if self._plugins.key is not None and keys is not None:
            keys = self._plugins.key.serialize_column(topic, cast("Sequence[object]", keys), own)
        if self._plugins.value is not None:
            values = self._plugins.value.serialize_column(topic, cast("Sequence[object]", values), own)
        return keys, values, own


def send_prepared(take: SendCall[F], record: Record, level: str | None, told: ClientAckCallback) -> F:
    """Send a prepared record."""
    return take(
        record.topic,
        record.value,
        record.key,
        headers=record.headers or None,
        partition=record.partition,
        timestamp_ms=record.timestamp_ms,
        level=level,
        on_ack=told,
    )


def send_many_prepared(
    take: SendCall[F], topic: str, columns: Sequence[object], level: str | None, told: ClientFrameAckCallback
) -> F:
    """Send prepared columns."""
    partitions, keys, values, headers, stamps = columns
    more = {"partitions": partitions, "timestamps_ms": stamps, "level": level}
    return take(topic, values, keys, headers=headers, on_ack=told, **more)


def _to_records(topic: str, columns: Sequence[object]) -> Iterable[Record]:
    """Yield the columns as records.

    Raises:
        ValueError: the columns have different lengths.
    """
    count = len(cast("Sequence[object]", columns[2]))
    full = [
        [None] * count if one is None else [one] * count if isinstance(one, int) else cast("Sequence[Any]", one)
        for one in columns
    ]
    if any(len(one) != count for one in full):
        raise ValueError(f"the columns have not {count} items each, as there are values")
    for partition, key, value, headers, stamp in zip(*full, strict=True):
        yield Record(topic, value, key, Headers(headers), partition, stamp)


def done_callback(on_ack: FrameCallback | ClientFrameAckCallback) -> Callable[[Any], None]:
    """Return the done callback for a future of columns."""
    return on_ack.on_settled if isinstance(on_ack, ClientFrameAckCallback) else lambda done: call_on_ack(done, on_ack)
