"""The producer that applications use."""

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
"""Whole columns larger than twice this are cut into several frames."""
ATEXIT_S: Final = 5.0
"""How long the end of the program waits for producers that were not closed."""

RecordCallback = Callable[[RecordMetadata | None, PenstockError | None], None]
FrameCallback = Callable[[FrameMetadata | None, PenstockError | None], None]
Bytes = bytes | bytearray | memoryview

_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


class Producer:
    """Sends records through the daemon. Any thread may use it; callbacks run on a thread of its own.

    socket: path of the daemon's socket; else `PENSTOCK_SOCKET`, else /run/penstock/penstock.sock.
    client_id: a name that only this program has at a time. With it a resend after a lost connection never doubles a record,
        even where this program or the daemon was killed in between; without it such a resend may.
    level: what an answer means, unless `send` says otherwise: "accepted" (taken over by the daemon), "spooled" (safe on this
        host's disk) or "delivered" (in Kafka).
    linger_ms, batch_bytes: a record waits for company this long, or until this much is there.
    buffer_bytes_max: what may be held here without an answer; at the limit `send` waits, for at most max_block_ms.
    detail: what answers at "delivered" tell: "records" (partition and offset of each), "slices" (runs of offsets) or "none".
    on_error: called with every error of records or of the session, for programs that look at no future.
    key_serializer, value_serializer: make bytes of keys and values (`api.serializers`); without one they are bytes.
    interceptors: objects that see every record before it is serialized, and its end (`api.interceptors`).
    partitioner: chooses the partition of records that name none: `partitioner(topic, key, value, partitions)` answers with a
        number, or None to leave it to the daemon. It is called by `send` and `send_many`, which wait for the topic's partitions
        before its first record, for at most max_block_ms, and raise what it raises.

    The daemon need not run yet: records wait for it here. After a fork the child has a session of its own, begun with its
    first record; what the parent had not got answers for stays the parent's. A client id gets the child's process id appended
    there.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: something is no serializer or interceptor.
        What constructors and `configure` of these raise.
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
        """Everything that belongs to this process."""
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
        # A producer nobody holds any more ends by itself once everything is answered.
        self._finalizer = weakref.finalize(self, self._worker.close_unlocked)
        self._finalizer.atexit = False

    def _make_condition(self, lock: threading.Lock) -> threading.Condition:
        """Told of whatever somebody may wait for."""
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
        """Take one record, key and value bytes or None unless there are serializers. `on_ack` is called with its metadata, or with
        None and the error.

        Raises:
            TypeError, ValueError: the record is not one, or the partitioner chose no partition of the topic.
            SerializationError: a serializer cannot take key or value.
            RefusedError: it is too large for any frame, or a partitioner wants to know a topic that does not exist.
            BufferExhaustedError: the buffer stayed full for `max_block_ms`.
            ClosedError: the producer is closed or cannot go on.
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
        """Take whole columns, at a fraction of the cost of as many `send`s. They are written at once, without linger.

        Columns are lists or tuples of the same length; `partitions` and `timestamps_ms` may be one number for all.

        Raises:
            SerializationError: a serializer cannot take one of the keys or values.
            TypeError, ValueError: the columns are not records, or more than the buffer holds, or the partitioner chose no partition
                of the topic.
            RefusedError: a record is too large for any frame, or a partitioner wants to know a topic that does not exist.
            BufferExhaustedError: the buffer stayed full for `max_block_ms`.
            ClosedError: the producer is closed or cannot go on.
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
        """Under the lock: is the producer fit to take `size` bytes, now or within `max_block_ms`?"""
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
        """Under the lock."""
        if not self._condition.wait_for(lambda: self._has_room_or_ended(size), self._max_block_s):
            raise self._buffer_exhausted(size)

    def _has_room_or_ended(self, size: int) -> bool:
        """Whether nothing is to be waited for any more."""
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
        """Have nothing wait for company any more, and return when everything sent before has ended, well or not.

        Raises:
            WaitTimeoutError: not within `timeout` seconds; the records keep going.
            RuntimeError: called by a callback, which would wait for itself.
        """
        self._forbid_callback("flush")
        with self._condition:
            mark = self._window.flush()
            self._worker.wake()
            if not self._condition.wait_for(lambda: self._window.flushed(mark), timeout):
                raise WaitTimeoutError(f"not everything was answered within {timeout} s")

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """The topic's partitions, as the daemon knows them; waits at most `timeout` seconds, `max_block_ms` by default.

        Raises:
            RefusedError: there is no such topic, or nothing is known of it.
            WaitTimeoutError: no answer in time.
            ClosedError: the producer is closed or cannot go on.
            RuntimeError: called by a callback.
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
        """As `partitions_for`, without waiting; what goes wrong is asked again later."""

        def answer(found: Sequence[PartitionInfo] | None, _: PenstockError | None) -> None:
            if found is not None:
                learn([PartitionMetadata(*row) for row in found])

        with self._condition:
            self._window.request_partitions(PartitionsRequest(topic, answer))
            self._worker.wake()

    def close(self, timeout: float | None = None) -> None:
        """Send what is held, wait for the answers (at most `timeout` seconds), and end the session.

        What has no answer by then fails: with ClosedError if it certainly was never handed over, else OutcomeUnknownError.
        Closing twice does nothing.

        Raises:
            RuntimeError: called by a callback.
            PenstockError: everything is closed, but a serializer, an interceptor or the partitioner raised when it was.
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
        """The thread is about to end, if there is one."""
        if self._started:
            self._worker.join(None)
            _producers.discard(self)
        failure = None if self._plugins is None else self._plugins.close()
        if failure is not None:
            raise PenstockError(f"a plug-in could not be closed: {failure}") from failure

    @property
    def held_bytes(self) -> int:
        """Bytes of records without an answer."""
        return self._window.held_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forbid_callback(self, name: str) -> None:
        if self._worker.is_current:
            raise RuntimeError(f"{name} would wait for itself: it was called by a callback of this producer")

    # --- fork --------------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In the child: leave the parent's session alone and be ready to begin one of its own."""
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
    """Futures of the parent's records are done in the child: nobody will tell it. Other threads' locks are not touched."""
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
