"""A producer's session in one process, as the application's threads use it: the records held, and the session thread."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from ..api.errors import BufferExhaustedError, ClosedError, OutcomeUnknownError, PenstockError, WaitTimeoutError
from ..api.metadata import PartitionMetadata
from ..api.partitioning import Partitioner
from ..api.plugins import Plugins
from ..wire.frames import PartitionInfo
from .core.window import PartitionsRequest, Window, WindowLimits
from .partitions import PartitionSelector
from .worker import SessionOptions, SessionThread

PartitionsAnswer = tuple[Sequence[PartitionInfo] | None, PenstockError | None]


class BufferFullError(Exception):
    """Internal signal that a record of `size` bytes must wait for room. It never reaches the application."""

    def __init__(self, size: int) -> None:
        super().__init__(f"no room for {size} bytes")
        self.size: Final = size


class ClientSession:
    """See the module docstring. A forked child makes its own.

    Hold `condition` to use `window`, and to call a method whose docstring says so. It is notified after every change
    that a caller may wait for. `blocking`: whether `ensure_room` waits; else it raises `BufferFullError`.
    """

    def __init__(
        self,
        options: SessionOptions,
        limits: WindowLimits,
        max_block_s: float,
        condition: threading.Condition,
        *,
        blocking: bool,
        plugins: Plugins,
        partitioner: Partitioner | None,
        on_error: Callable[[PenstockError], None] | None,
    ) -> None:
        self.condition: Final = condition
        self.window: Final = Window(
            limits, threading.Condition(threading.Lock()), durable=options.client_id is not None
        )
        self.worker: Final = SessionThread(options, self.window, condition, on_error, plugins.close)
        self.max_block_s: Final = max_block_s
        """How long a call may wait for room and partitions."""
        self.plugins: Final = plugins
        self.partition_selector: Final = None if partitioner is None else PartitionSelector(partitioner)
        self.started = False
        self.closed = False
        self._blocking: Final = blocking

    def _check_open(self) -> None:
        if self.worker.failure is not None:
            raise self.worker.failure
        if self.closed or self.worker.ended:
            raise ClosedError("the producer is closed")

    # --- room for records --------------------------------------------------------------------------------------------

    def ensure_room(self, size: int) -> None:
        """Start the thread if needed and wait up to `max_block_s` for room for `size` bytes. Call under the lock."""
        self._check_open()
        if not self.started:
            self.started = True
            self.worker.start()
        window = self.window
        if window.has_room(size) or window.idle:
            return
        if self.worker.is_current:
            raise BufferExhaustedError("the buffer is full, and a callback cannot wait for room")
        window.seal_all()
        self.worker.wake()
        if not self._blocking:
            raise BufferFullError(size)
        if not self.condition.wait_for(lambda: self.has_room(size), self.max_block_s):
            raise self.buffer_exhausted(size)
        self._check_open()

    def has_room(self, size: int) -> bool:
        """Whether a wait for room for `size` bytes can stop. Call under the lock."""
        return self.window.has_room(size) or self.window.idle or self.worker.ended

    def buffer_exhausted(self, size: int) -> BufferExhaustedError:
        return BufferExhaustedError(
            f"no room for {size} bytes within {self.max_block_s * 1000:.0f} ms:"
            f" {self.window.held_bytes} of {self.window.limits.buffer_bytes_max} bytes wait for answers"
        )

    # --- waiting -----------------------------------------------------------------------------------------------------

    def forbid_callback(self, name: str) -> None:
        if self.worker.is_current:
            raise RuntimeError(f"{name} inside a delivery callback of this producer would deadlock")

    def begin_flush(self) -> Callable[[], bool]:
        """Start sending everything buffered. Returns the condition to wait for under the lock."""
        with self.condition:
            mark = self.window.flush()
            self.worker.wake()
        return lambda: self.window.flushed(mark)

    def request_partitions(self, topic: str, answer: Callable[[PartitionsAnswer], None]) -> None:
        """Request the topic's partitions from the daemon. `answer` is called under the lock.

        Raises:
            ClosedError: the producer is closed or has failed.
        """

        def answered(found: Sequence[PartitionInfo] | None, error: PenstockError | None) -> None:
            answer((found, error))

        with self.condition:
            self.ensure_room(0)
            self.window.request_partitions(PartitionsRequest(topic, answered))
            self.worker.wake()

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        """See `Producer.partitions_for`."""
        self.forbid_callback("partitions_for")
        answers: list[PartitionsAnswer] = []
        limit_s = self.max_block_s if timeout is None else timeout
        self.request_partitions(topic, answers.append)
        with self.condition:
            _ = self.condition.wait_for(lambda: bool(answers), limit_s)
        return answered_partitions(answers, limit_s)

    def ask_partitions(self, topic: str, learn: Callable[[Sequence[PartitionMetadata]], None]) -> None:
        """Request the partitions without waiting; `learn` is called with the answer. A failed request is repeated
        later."""

        def answer(found: Sequence[PartitionInfo] | None, _: PenstockError | None) -> None:
            if found is not None:
                learn([PartitionMetadata(*row) for row in found])

        with self.condition:
            self.window.request_partitions(PartitionsRequest(topic, answer))
            self.worker.wake()

    # --- end ---------------------------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Reject new records, and end the session once everything is answered."""
        with self.condition:
            self.closed = True
            if self.started:
                self.worker.close()

    def has_ended(self) -> bool:
        """Whether nothing more will happen: everything is answered, or the thread has ended. Call under the lock."""
        return not self.started or self.window.idle or self.worker.ended

    def finish_close(self, timeout: float | None) -> None:
        """Abandon the records still unanswered after `timeout` seconds, wait for the thread's end, and close the
        plug-ins. Raises the error of a plug-in."""
        with self.condition:
            if not self.has_ended():
                self.worker.abandon(f"the producer was closed after {timeout} s without an answer")
        if self.started:
            self.worker.join()
        self.plugins.close_or_raise()

    def fail_after_fork(self) -> None:
        """In a forked child: close the parent's descriptors, and fail its futures, whose answers arrive in the parent.
        Does not touch other threads' locks."""
        self.worker.after_fork()
        error = OutcomeUnknownError("the record is the parent process's")
        for outcome in self.window.outcomes():
            outcome.condition = threading.Condition(threading.Lock())
            if not outcome.done:
                outcome.error = error


def answered_partitions(answers: Sequence[PartitionsAnswer], limit_s: float) -> list[PartitionMetadata]:
    """The partitions in the daemon's answer.

    Raises:
        WaitTimeoutError: there is no answer.
        PenstockError: why there are no partitions.
    """
    if not answers:
        raise WaitTimeoutError(f"no answer within {limit_s} s")
    found, error = answers[0]
    if error is not None:
        raise error
    return [PartitionMetadata(*row) for row in found or ()]
