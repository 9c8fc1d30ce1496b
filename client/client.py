"""The client library's synchronous producer."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

from ..api.errors import (
    BufferExhaustedError,
    ClosedError,
    OutcomeUnknownError,
    PenstockError,
    RefusedError,
    WaitTimeoutError,
)
from ..api.futures import FrameFuture, Future, RecordFuture
from ..api.metadata import FrameMetadata, PartitionMetadata, RecordMetadata
from ..api.partitioning import Partitioner
from ..api.plugins import PluginOptions, Plugins
from ..api.records import Headers as RecordHeaders
from ..api.records import Record
from ..wire.errors import FrameError
from ..wire.frames import Code, Detail, PartitionInfo, valid_client_id
from .arguments import LevelName, as_bytes, as_column, call_on_ack, check_numbers, level_number
from .core.columns import (
    FRAME_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Headers,
    flat_bytes,
    flatten,
    new_packer,
    pack_many,
)
from .core.window import PartitionsRequest, Window, WindowLimits, record_count
from .partitions import OnPartitions, PartitionSelector
from .plugins import ClientAckCallback, ClientFrameAckCallback, ClientPluginPipeline, done_callback, log_plugin_failure
from .worker import SessionOptions, SessionThread

log: Final = logging.getLogger("penstock.client")

DEFAULT_SOCKET: Final = "/run/penstock/penstock.sock"
FRAME_BYTES_WANTED: Final = 480 << 10
"""Columns larger than twice this are split into several frames."""
ATEXIT_S: Final = 5.0
"""How long interpreter exit waits for producers that were not closed."""

RecordCallback = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback = Callable[[FrameMetadata | None, PenstockError | None], None]
Bytes = bytes | bytearray | memoryview

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
        self._path: Final = os.fspath(socket or os.environ.get("PENSTOCK_SOCKET") or DEFAULT_SOCKET)
        self._client_id = client_id
        self._level: Final = level_number(level)
        self._limits: Final = WindowLimits(linger_ms / 1000, batch_bytes, buffer_bytes_max)
        self._max_block_s: Final = max_block_ms / 1000
        self._detail: Final = Detail(detail)
        self._on_error: Final = on_error
        self._partitioner: Final = partitioner
        given = PluginOptions(key_serializer, value_serializer, interceptors, partitioner)
        self._plugins: Final = (
            Plugins(given, {"client.id": client_id or ""}, log_plugin_failure) if given.has_any else None
        )
        self._init_process_state()
        _producers.add(self)

    def _init_process_state(self) -> None:
        """Create the state that a forked child must not share with its parent."""
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._condition = self._make_condition(self._lock)
        self._packer_lock = threading.Lock()
        self._packer = new_packer()
        self._window = Window(self._limits, threading.Condition(threading.Lock()), durable=self._client_id is not None)
        session = SessionOptions(self._path, self._client_id, self._detail)
        plugins = self._plugins
        at_end = None if plugins is None else plugins.close
        self._worker = SessionThread(session, self._window, self._condition, self._on_error, at_end)
        self._started = False
        self._partition_selector = None if self._partitioner is None else PartitionSelector(self._partitioner)
        self._plugin_pipeline = (
            None if plugins is None or not plugins.handles_records else ClientPluginPipeline(plugins)
        )
        # When garbage-collected, the producer shuts down after its outstanding records complete.
        self._finalizer = weakref.finalize(self, self._worker.close_unlocked)
        self._finalizer.atexit = False

    def _make_condition(self, lock: threading.Lock) -> threading.Condition:
        """Create the condition that is notified of every change a caller may wait for."""
        return threading.Condition(lock)

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
        if self._plugin_pipeline is not None and type(on_ack) is not ClientAckCallback:
            record = Record(topic, value, key, RecordHeaders(headers), partition, timestamp_ms)
            return self._plugin_pipeline.send(partial(Producer.send, self), record, level, on_ack)
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
            partition = self._partition_selector.select(self, topic, key, value)
            if isinstance(on_ack, ClientAckCallback):
                on_ack.partition = partition
        if partition is not None or timestamp_ms is not None:
            check_numbers(partition, timestamp_ms)
        number = self._level if level is None else level_number(level)
        most = size + FRAME_OVERHEAD_BYTES
        with self._lock:
            window, worker = self._window, self._worker
            if not worker.accepting or window.held_bytes + most > self._limits.buffer_bytes_max:
                self._ensure_room(most)
            if most > window.frame_bytes_max:
                raise RefusedError(Code.TOO_LARGE, f"the record takes more than {window.frame_bytes_max} bytes")
            outcome, index, stir = window.add(
                topic, number, partition, key, value, flat, timestamp_ms, size, time.monotonic()
            )
            if stir:
                worker.wake()
        future = RecordFuture(outcome, index)
        if on_ack is not None:
            future.add_done_callback(lambda done: call_on_ack(done, on_ack))
        return future

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
        if self._plugin_pipeline is not None and not isinstance(on_ack, ClientFrameAckCallback):
            given = [as_column(one) for one in (partitions, keys, values, headers, timestamps_ms)]
            return self._plugin_pipeline.send_many(partial(Producer.send_many, self), topic, given, level, on_ack)
        number = self._level if level is None else level_number(level)
        flat = None if headers is None else [flatten(one) for one in headers]
        columns = [as_column(partitions), as_column(keys), as_column(values), flat, as_column(timestamps_ms)]
        count = record_count(columns)
        if self._partition_selector is not None:
            columns[0] = self._partition_selector.select_many(self, topic, columns, count)
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
        with self._condition:
            self._ensure_room(size)
            outcomes = self._window.put(topic, number, parts, now=time.monotonic())
            self._worker.wake()
        future = FrameFuture(outcomes)
        if on_ack is not None:
            future.add_done_callback(done_callback(on_ack))
        return future

    def _ensure_room(self, size: int) -> None:
        """Start the thread if needed and wait up to `max_block_ms` for room for `size` bytes. Call under the lock."""
        self._check_open()
        if not self._started:
            self._started = True
            self._worker.start()
        window = self._window
        if window.has_room(size) or window.idle:
            return
        if self._worker.is_current:
            raise BufferExhaustedError("the buffer is full, and a callback cannot wait for room")
        window.seal_all()
        self._worker.wake()
        self._await_room(size)
        self._check_open()

    def _await_room(self, size: int) -> None:
        """Block until there is room for `size` bytes or the thread has ended. Call under the lock."""
        if not self._condition.wait_for(lambda: self._has_room_or_ended(size), self._max_block_s):
            raise self._buffer_exhausted(size)

    def _has_room_or_ended(self, size: int) -> bool:
        """Whether a wait for room can stop."""
        return self._window.has_room(size) or self._worker.ended

    def _buffer_exhausted(self, size: int) -> BufferExhaustedError:
        return BufferExhaustedError(
            f"no room for {size} bytes within {self._max_block_s * 1000:.0f} ms:"
            f" {self._window.held_bytes} of {self._limits.buffer_bytes_max} bytes wait for answers"
        )

    def _check_open(self) -> None:
        if self._worker.failure is not None:
            raise self._worker.failure
        if self._closed or self._worker.ended:
            raise ClosedError("the producer is closed")

    # --- waiting -----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send everything buffered and block until each record has succeeded or failed.

        Raises:
            WaitTimeoutError: not within `timeout` seconds; sending continues.
            RuntimeError: called from a callback, where it would deadlock.
        """
        self._forbid_callback("flush")
        with self._condition:
            mark = self._window.flush()
            self._worker.wake()
            if not self._condition.wait_for(lambda: self._window.flushed(mark), timeout):
                raise WaitTimeoutError(f"not everything was answered within {timeout} s")

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """Return the topic's partitions from the daemon. Waits at most `timeout` seconds, by default `max_block_ms`.

        Raises:
            RefusedError: the topic does not exist, or the daemon has no metadata for it.
            WaitTimeoutError: no answer in time.
            ClosedError: the producer is closed or has failed.
            RuntimeError: called from a callback.
        """
        self._forbid_callback("partitions_for")
        answers: list[tuple[Sequence[PartitionInfo] | None, PenstockError | None]] = []
        limit_s = self._max_block_s if timeout is None else timeout

        def answer(found: Sequence[PartitionInfo] | None, error: PenstockError | None) -> None:
            answers.append((found, error))

        with self._condition:
            self._ensure_room(0)
            self._window.request_partitions(PartitionsRequest(topic, answer))
            self._worker.wake()
            if not self._condition.wait_for(lambda: bool(answers), limit_s):
                raise WaitTimeoutError(f"no answer within {limit_s} s")
        found, error = answers[0]
        if error is not None:
            raise error
        return [PartitionMetadata(*row) for row in found or ()]

    def ask_partitions(self, topic: str, learn: OnPartitions) -> None:
        """Like `partitions_for`, without waiting: call `learn` with the answer. A failed request is repeated later."""

        def answer(found: Sequence[PartitionInfo] | None, _: PenstockError | None) -> None:
            if found is not None:
                learn([PartitionMetadata(*row) for row in found])

        with self._condition:
            self._window.request_partitions(PartitionsRequest(topic, answer))
            self._worker.wake()

    def close(self, timeout: float | None = None) -> None:
        """Send everything buffered, wait at most `timeout` seconds for the answers, and end the session.

        Records without an answer by then fail: with ClosedError if they were never written, otherwise
        OutcomeUnknownError. A second call does nothing.

        Raises:
            RuntimeError: called from a callback.
            PenstockError: everything is closed, but closing a serializer, an interceptor or the partitioner raised.
        """
        self._forbid_callback("close")
        with self._condition:
            self._closed = True
            if self._started:
                self._worker.close()
                if not self._condition.wait_for(lambda: self._window.idle or self._worker.ended, timeout):
                    self._worker.abandon(f"the producer was closed after {timeout} s without an answer")
        self._join_thread()

    def _join_thread(self) -> None:
        """Join the thread, if it was started, and close the plug-ins. The thread must be about to end."""
        if self._started:
            self._worker.join(None)
            _producers.discard(self)
        failure = None if self._plugins is None else self._plugins.close()
        if failure is not None:
            raise PenstockError(f"a plug-in could not be closed: {failure}") from failure

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

    def _forbid_callback(self, name: str) -> None:
        if self._worker.is_current:
            raise RuntimeError(f"{name} inside a delivery callback of this producer would deadlock")

    # --- fork --------------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In the child: leave the parent's session alone and prepare to start a new one."""
        worker, window, closed = self._worker, self._window, self._closed
        _ = self._finalizer.detach()
        worker.after_fork()
        if self._client_id is not None:
            name = f"{self._client_id}.{os.getpid()}"
            self._client_id = name if valid_client_id(name) else None
        self._init_process_state()
        self._closed = closed
        _fail_after_fork(window)


def _fail_after_fork(window: Window) -> None:
    """Fail the parent's futures in the child, where no answer arrives. Does not touch other threads' locks."""
    error = OutcomeUnknownError("the record is the parent process's")
    for outcome in window.outcomes():
        outcome.condition = threading.Condition(threading.Lock())
        if not outcome.done:
            outcome.error = error


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer.after_fork()


def _at_exit() -> None:
    deadline = time.monotonic() + ATEXIT_S
    for producer in list(_producers):
        producer.close(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_after_fork_in_child)
_ = atexit.register(_at_exit)
