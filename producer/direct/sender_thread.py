"""The direct producer's sender thread: its start and end, and the calls from other threads.

The records' callbacks run on this thread; `sender_loop` has what else runs on it.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar
from uuid import UUID

from ...api.errors import PenstockError
from ...config.direct import DirectSettings
from ...runtime.clock import thread_seconds
from ..accumulator.chunk_store import ChunkStore
from ..delivery.outcomes import DeliveryFailure, DeliveryFailureKind
from ..records.batch_builder import self_check
from ..telemetry.metrics import ProducerMetrics
from ..telemetry.push import ClientInstanceId
from .sender_loop import FrontPort, SenderLoop
from .transactions_thread import CrossThreadCalls, Transactions

AnswerT = TypeVar("AnswerT")

_FAULT: Final = DeliveryFailure(
    DeliveryFailureKind.FATAL, -1, "SENDER_FAILED", "the sender thread ended by a fault of its own; see the log"
)


class SenderThread:
    """Starts and controls the thread. The loop's file descriptors are closed before `sender_ended` is called."""

    def __init__(self, settings: DirectSettings, front: FrontPort, arena: ChunkStore, meters: ProducerMetrics) -> None:
        self._settings: Final = settings
        self._front: Final = front
        self._arena: Final = arena
        self._meters: Final = meters
        self._instance: Final = ClientInstanceId()
        self._commands: deque[Callable[[], None]] = deque()
        self._replies: Final = CrossThreadCalls()
        self._loop: SenderLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._awake = False
        """The thread will run all commands before it sleeps, so no write to `_wake_fd` is needed."""

    def start(self) -> None:
        """Start the thread.

        Raises:
            SlowChecksumError: the checksum library is too slow or wrong.
            OSError: no file descriptor was left.
        """
        self_check(thread_seconds)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        commands = self._run_commands
        self._loop = SenderLoop(
            self._settings, self._front, self._arena, self._wake_fd, commands, self._meters, self._instance
        )
        self._thread = threading.Thread(target=self._run, name="penstock-sender", daemon=True)
        self._thread.start()

    # --- any thread --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread, because it has work."""
        if not self._awake:
            self._awake = True
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def want_topic(self, topic: str) -> None:
        """Keep this topic's metadata. Must be repeated from time to time while the topic is in use."""
        self._enqueue_command(lambda loop: loop.metadata.want(topic))

    def request_topic(self, topic: str) -> None:
        """Request metadata of this topic again, because the current metadata is not sufficient."""
        self._enqueue_command(lambda loop: loop.metadata.request(topic))

    def close(self, timeout_s: float | None) -> None:
        """Start the shutdown without waiting. The thread ends when all is resolved, at the latest after `timeout_s`
        (None: no limit; 0: at once)."""
        self._enqueue_command(lambda loop: loop.close(timeout_s))

    def call_transactions(self, question: Callable[[Transactions], AnswerT], timeout_s: float) -> AnswerT:
        """Run `question` with the transactions on the thread, and return its result.

        Raises:
            ClosedError: the thread has ended. Errors of the question are raised too.
            WaitTimeoutError: the thread did not run it in time, and will not.
        """
        loop = self._loop
        assert loop is not None, "not started"
        transactions = loop.transactions
        assert transactions is not None, "a producer without a transactional id"
        return self._replies.call(
            lambda command: self._enqueue_command(lambda _: command()), lambda: question(transactions), timeout_s
        )

    def mark_abortable(self, error: PenstockError) -> None:
        """Report a rejected record: its transaction, if there is one, can only be aborted."""
        self._enqueue_command(
            lambda loop: None if loop.transactions is None else loop.transactions.mark_abortable(error)
        )

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, that is in a callback."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end. False: it still runs."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def instance_id(self, timeout_s: float) -> UUID | None:
        """The client instance id under which brokers collect metrics (KIP-714); None: not known within `timeout_s`."""
        return self._instance.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def after_fork(self) -> None:
        """In a forked child, where the thread does not exist: close its file descriptors."""
        if self._loop is not None:
            self._loop.abandon()
            self._loop = None
        self._thread = None
        self._close_wake()

    def _enqueue_command(self, command: "Callable[[SenderLoop], None]") -> None:
        loop = self._loop
        if loop is not None:
            self._commands.append(lambda: command(loop))
            self.wake()

    # --- the thread --------------------------------------------------------------------------------------------------

    def topic_of(self, number: int) -> tuple[str, int]:
        """Topic and index of a partition number in an outcome."""
        assert self._loop is not None, "not started"
        return self._loop.delivery.topic_of(number)

    def _run(self) -> None:
        assert self._loop is not None
        failure: DeliveryFailure | None = _FAULT
        try:
            failure = self._loop.run()
        finally:
            # `wake` must not write to the descriptor any more: the number may soon belong to another file.
            self._awake = True
            try:
                self._loop.end()
            finally:
                self._front.sender_ended(failure)
                self._replies.close()

    def _run_commands(self) -> None:
        self._awake = False
        while self._commands:
            self._commands.popleft()()

    def _close_wake(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def __del__(self) -> None:
        # Closed only now: until the last reference is gone, another thread may call `wake`.
        self._close_wake()
