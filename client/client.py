"""The client library's synchronous producer."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from ..api.errors import PenstockError, RefusedError, WaitTimeoutError
from ..api.futures import FrameFuture, Future, RecordFuture, result_of
from ..api.metadata import FrameMetadata, PartitionMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from ..api.plugins import AckCallback, FrameCallback, Plugins, RecordCallback, RecordColumns
from ..api.records import Headers as RecordHeaders
from ..api.records import Record
from ..wire.errors import FrameError
from ..wire.frames import Code, Detail, valid_client_id
from .arguments import LevelName, as_bytes, as_column, check_numbers, level_number
from .core.columns import (
    FRAME_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Headers,
    flat_bytes,
    flatten,
    new_packer,
    pack_many,
    record_count,
)
from .core.window import WindowLimits
from .session import ClientSession
from .worker import SessionOptions, log

DEFAULT_SOCKET: Final = "/run/penstock/penstock.sock"
FRAME_BYTES_WANTED: Final = 480 << 10
"""Columns larger than twice this are split into several frames."""
ATEXIT_S: Final = 5.0
"""How long interpreter exit waits for producers that were not closed."""

_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


class Producer:
    """Sends records through the daemon. Any thread may use it; callbacks run on a thread of its own.

    socket: path of the daemon's socket. Defaults to `PENSTOCK_SOCKET`, then /run/penstock/penstock.sock.
    client_id: a name that only one running program uses at a time. With it, resending after a lost connection never
        duplicates a record, even if this program or the daemon was killed in between. Without it, a resend may.
    level: what an answer means, unless `send` overrides it: "accepted" (the daemon has the record), "spooled" (safe on
        this host's disk) or "delivered" (in Kafka).
    linger_ms, batch_bytes: how long a record may wait for its batch to fill, and the size at which a batch is full.
    buffer_bytes_max: limit for unanswered records; at the limit `send` blocks, for at most max_block_ms.
    detail: content of "delivered" answers: "records" (partition and offset of each), "slices" (offset runs) or "none".
    on_error: called with every error of a record or of the session, for programs that ignore futures.
    key_serializer, value_serializer: convert keys and values to bytes (`api.serializers`); without one they are bytes.
    interceptors: objects called with every record before it is serialized, and with its outcome (`api.interceptors`).
    partitioner: `partitioner(topic, key, value, partitions)` returns the partition of a record without one, or None to
        let the daemon choose. `send` and `send_many` call it and raise what it raises. Before a topic's first record
        they wait for its partitions, for at most max_block_ms.

    The daemon need not be running yet: records wait in the buffer. After a fork the child starts its own session with
    its first record and appends its process id to the client id; the parent keeps its unanswered records.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an object is not a serializer or interceptor.
        What plug-in constructors and `configure` raise.
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
        if client_id is not None and not valid_client_id(client_id):
            raise ValueError(f"client_id {client_id!r} is not 1 to 128 characters of A-Z a-z 0-9 . _ -")
        if linger_ms < 0 or max_block_ms < 0 or not 1 <= batch_bytes <= buffer_bytes_max:
            raise ValueError("times are not negative, and 1 <= batch_bytes <= buffer_bytes_max")
        path = os.fspath(socket or os.environ.get("PENSTOCK_SOCKET") or DEFAULT_SOCKET)
        self._options = SessionOptions(path, client_id, Detail(detail))
        self._level: Final = level_number(level)
        self._limits: Final = WindowLimits(linger_ms / 1000, batch_bytes, buffer_bytes_max)
        self._max_block_s: Final = max_block_ms / 1000
        self._on_error: Final = on_error
        self._partitioner: Final = partitioner
        self._plugins: Final = Plugins(
            {"client.id": client_id or ""},
            lambda plugin, call: log.exception("plugin_failed plugin=%s call=%s", plugin, call),
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            interceptors=interceptors,
            partitioner=partitioner,
        )
        self._has_plugins: Final = self._plugins.handles_records
        self._init_process_state()
        _producers.add(self)

    def _init_process_state(self) -> None:
        """Create the state that a forked child must not share with its parent."""
        self._lock = threading.Lock()
        self._session = self._make_session(self._lock)
        self._window = self._session.window
        self._worker = self._session.worker
        self._packer_lock = threading.Lock()
        self._packer = new_packer()
        self._partition_selector = self._session.partition_selector
        # When garbage-collected, the producer shuts down after its outstanding records complete.
        self._finalizer = weakref.finalize(self, self._worker.close_unlocked)
        self._finalizer.atexit = False

    def _make_session(self, lock: threading.Lock) -> ClientSession:
        return self._new_session(threading.Condition(lock), blocking=True)

    def _new_session(self, condition: threading.Condition, *, blocking: bool) -> ClientSession:
        return ClientSession(
            self._options,
            self._limits,
            self._max_block_s,
            condition,
            blocking=blocking,
            plugins=self._plugins,
            partitioner=self._partitioner,
            on_error=self._on_error,
        )

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object,
        key: object = None,
        *,
        headers: Headers = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        level: LevelName | None = None,
        on_ack: RecordCallback | None = None,
    ) -> Future[RecordMetadata]:
        """Buffer one record. Without serializers, key and value are bytes or None. `on_ack` gets the metadata or error.

        Raises:
            TypeError, ValueError: the record is invalid, or the topic lacks the partition that the partitioner chose.
            SerializationError: a serializer rejects the key or value.
            RefusedError: the record is too large for any frame, or the partitioner's topic does not exist.
            BufferExhaustedError: the buffer stayed full for `max_block_ms`.
            ClosedError: the producer is closed or has failed.
        """
        if self._has_plugins and type(on_ack) is not AckCallback:
            record = Record(topic, value, key, RecordHeaders(headers), partition, timestamp_ms)
            return self._send_with_plugins(record, level, on_ack)
        size, flat = RECORD_OVERHEAD_BYTES, None
        if value is not None:
            if type(value) is not bytes:
                value = as_bytes(value, "value")
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                key = as_bytes(key, "key")
            size += len(key)
        if headers is not None:
            flat = flatten(headers)
            size += flat_bytes(flat)
        if partition is None and self._partition_selector is not None:
            partition = self._partition_selector.select(self._session, topic, key, value)
            if isinstance(on_ack, AckCallback):
                on_ack.partition = partition
        if partition is not None or timestamp_ms is not None:
            check_numbers(partition, timestamp_ms)
        number = self._level if level is None else level_number(level)
        most = size + FRAME_OVERHEAD_BYTES
        with self._lock:
            window, worker = self._window, self._worker
            if not worker.accepting or window.held_bytes + most > self._limits.buffer_bytes_max:
                self._session.ensure_room(most)
            if most > window.frame_bytes_max:
                raise RefusedError(Code.TOO_LARGE, f"the record takes more than {window.frame_bytes_max} bytes")
            outcome, index, stir = window.add(
                topic, number, partition, key, value, flat, timestamp_ms, size, time.monotonic()
            )
            if stir:
                worker.wake()
        future = RecordFuture(outcome, index)
        if on_ack is not None:
            future.add_done_callback(lambda done: on_ack(*result_of(done)))
        return future

    def _send_with_plugins(
        self, record: Record, level: LevelName | None, on_ack: RecordCallback | None
    ) -> Future[RecordMetadata]:
        record, callback = self._plugins.prepare(record, on_ack)
        try:
            return self.send_prepared(record, level, callback)
        except BaseException as error:
            self._plugins.notify_send_error([record], error, callback.partition)
            raise

    def send_prepared(self, record: Record, level: LevelName | None, callback: AckCallback) -> Future[RecordMetadata]:
        """Buffer a record that the plug-ins have seen; `send` recognises it by its callback."""
        return self.send(
            record.topic,
            record.value,
            record.key,
            headers=record.headers or None,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            level=level,
            on_ack=callback,
        )

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None = None,
        partitions: int | Sequence[int | None] | None = None,
        timestamps_ms: int | Sequence[int | None] | None = None,
        level: LevelName | None = None,
        on_ack: FrameCallback | None = None,
    ) -> Future[FrameMetadata]:
        """Buffer whole columns, at a fraction of the cost of as many `send`s. They are written at once, without linger.

        Columns are lists or tuples of the same length; `partitions` and `timestamps_ms` may be one number for all.

        Raises:
            SerializationError: a serializer rejects one of the keys or values.
            TypeError, ValueError: the columns are invalid or exceed the buffer, or the topic lacks a chosen partition.
            RefusedError: a record is too large for any frame, or the partitioner's topic does not exist.
            BufferExhaustedError: the buffer stayed full for `max_block_ms`.
            ClosedError: the producer is closed or has failed.
        """
        columns = RecordColumns(topic, *(as_column(one) for one in (values, keys, headers, partitions, timestamps_ms)))
        records = self._plugins.prepare_many(columns) if self._has_plugins else None
        try:
            future = self.send_columns(columns, level)
        except BaseException as error:
            self._plugins.notify_send_error(records, error)
            raise
        self._plugins.follow(future, records, on_ack and (lambda _: on_ack(*result_of(future))))
        return future

    def send_columns(self, given: RecordColumns, level: LevelName | None) -> FrameFuture:
        """Buffer columns that the plug-ins have seen. Raises what `send_many` raises."""
        topic, headers = given.topic, given.headers
        number = self._level if level is None else level_number(level)
        flat = None if headers is None else [flatten(one) for one in headers]
        columns = [given.partitions, given.keys, given.values, flat, given.timestamps_ms]
        count = record_count(columns)
        if self._partition_selector is not None:
            columns[0] = self._partition_selector.select_many(self._session, topic, columns, count)
        try:
            with self._packer_lock:
                parts = pack_many(
                    self._packer,
                    topic,
                    columns,
                    count,
                    bytes_max=self._window.frame_bytes_max,
                    bytes_wanted=FRAME_BYTES_WANTED,
                )
        except FrameError as error:
            raise RefusedError(error.code, str(error)) from error
        size = sum(len(rest) for _, rest in parts)
        if size > self._limits.buffer_bytes_max:
            raise ValueError(
                f"{size} bytes are more than the buffer's {self._limits.buffer_bytes_max}: send them in pieces"
            )
        with self._lock:
            self._session.ensure_room(size)
            outcomes = self._window.put(topic, number, parts, now=time.monotonic())
            self._worker.wake()
        return FrameFuture(outcomes)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send everything buffered and block until each record has succeeded or failed.

        Raises:
            WaitTimeoutError: not within `timeout` seconds; sending continues.
            RuntimeError: called from a callback, where it would deadlock.
        """
        session = self._session
        session.forbid_callback("flush")
        flushed = session.begin_flush()
        with session.condition:
            if not session.condition.wait_for(flushed, timeout):
                raise WaitTimeoutError(f"not everything was answered within {timeout} s")

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the topic's partitions from the daemon. Waits at most `timeout` seconds, by default `max_block_ms`.

        Raises:
            RefusedError: the topic does not exist, or the daemon has no metadata for it.
            WaitTimeoutError: no answer in time.
            ClosedError: the producer is closed or has failed.
            RuntimeError: called from a callback.
        """
        return self._session.partitions_for(topic, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send everything buffered, wait at most `timeout` seconds for the answers, and end the session.

        Records without an answer by then fail: with ClosedError if they were never written, otherwise
        OutcomeUnknownError. A second call does nothing.

        Raises:
            RuntimeError: called from a callback.
            PenstockError: everything is closed, but closing a serializer, an interceptor or the partitioner raised.
        """
        session = self._session
        session.forbid_callback("close")
        session.begin_close()
        with session.condition:
            _ = session.condition.wait_for(session.has_ended, timeout)
        self.finish_close(timeout)

    def finish_close(self, timeout: float | None) -> None:
        """The end of `close`, after the wait for answers."""
        _producers.discard(self)
        self._session.finish_close(timeout)

    @property
    def held_bytes(self) -> int:
        """Bytes of records not answered yet."""
        return self._window.held_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- fork --------------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In the child: leave the parent's session alone and prepare to start a new one."""
        session, options = self._session, self._options
        _ = self._finalizer.detach()
        if options.client_id is not None:
            name = f"{options.client_id}.{os.getpid()}"
            self._options = options._replace(client_id=name if valid_client_id(name) else None)
        self._init_process_state()
        self._session.closed = session.closed
        session.fail_after_fork()


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer.after_fork()


def _at_exit() -> None:
    deadline = time.monotonic() + ATEXIT_S
    for producer in list(_producers):
        producer.close(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_after_fork_in_child)
_ = atexit.register(_at_exit)
