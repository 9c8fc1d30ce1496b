"""The producer's thread: keeps a session with the daemon, writes frames, reads answers, and completes futures.

Only this thread uses the socket. It shares the window with the application's threads under one lock. Callbacks run on
this thread, without the lock.
"""

import contextlib
import logging
import math
import os
import random
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..api.errors import PenstockError, SessionError
from ..api.futures import error_for_refused
from ..wire import frames
from ..wire.errors import FrameError
from ..wire.frames import Code, Detail, Type
from .connection import TRANSITIONS, Connection, ConnectionLostError, SessionState
from .core.window import ClientIdInUseError, SettledFrame, Window

log: Final = logging.getLogger("penstock.client")

WRITE_BYTES: Final = 1 << 20
"""Most bytes gathered for one write."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
BYE_TIMEOUT_S: Final = 1.0
BACKOFF_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
STABLE_SESSION_S: Final = 1.0
"""A session longer than this resets the reconnect backoff; shorter ones increase it."""
_IDLE_S: Final = 3600.0

TRANSIENT_CODES: Final = frozenset({Code.TOO_SLOW, Code.ANSWERS_UNREAD, Code.LIMIT, Code.BUSY, Code.DRAINING})
"""Reasons for which the daemon ends a session, but a reconnect may succeed."""


class SessionOptions(NamedTuple):
    """The daemon's socket path, our client id, and the detail we want in answers."""

    path: str
    client_id: str | None
    detail: Detail


class SessionThread:
    """The session thread; see the module docstring.

    `shared` guards the window and is notified when there is room or something has completed. `accepting` means started,
    and neither closing nor failed; read and write it under the lock.
    """

    def __init__(
        self,
        session: SessionOptions,
        window: Window,
        shared: threading.Condition,
        on_error: Callable[[PenstockError], None] | None,
        at_end: Callable[[], object],
    ) -> None:
        self.failure: PenstockError | None = None
        """Set by `_fail`; later calls of the producer raise it."""
        self.ended = False
        self.accepting = False
        self._session: Final = session
        self._window: Final = window
        self._condition: Final = shared
        self._on_error: Final = on_error
        self._on_end: Final = at_end
        self._state = SessionState.DISCONNECTED
        self._connection: Connection | None = None
        self._poll: Final = select.poll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake_fd, select.POLLIN)
        # Closed once no writer can remain, so that `wake` never writes to a reused descriptor number.
        self._close_wake = weakref.finalize(self, os.close, self._wake_fd)
        self._close_wake.atexit = False
        self._polling = False
        """The thread is about to poll or polling, so `wake` must write to the eventfd. Used under the lock."""
        self._closing = False
        self._abandon_reason: str | None = None
        self._deadline = time.monotonic()
        """Next attempt in DISCONNECTED, time limit in HANDSHAKE and CLOSING."""
        self._attempts = 0
        self._opened_at = 0.0
        self._thread: Final = threading.Thread(target=self._run, name="penstock-client", daemon=True)

    # --- called by the application's threads -------------------------------------------------------------------------

    def start(self) -> None:
        self.accepting = True
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, which means in a callback."""
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """Wake the thread because there is work. Call under the lock."""
        if self._polling:
            self._polling = False
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """End the session once everything is answered. Call under the lock."""
        self._closing = True
        self.accepting = False
        self.wake()

    def abandon(self, text: str) -> None:
        """Fail everything unanswered and end. Call under the lock."""
        self._abandon_reason = text
        self.wake()

    def close_unlocked(self) -> None:
        """Close after the producer was garbage-collected. Takes no lock, because that may happen anywhere, even on this
        thread under the lock."""
        self._closing = True
        os.eventfd_write(self._wake_fd, 1)

    def join(self) -> None:
        self._thread.join()

    def after_fork(self) -> None:
        """In a forked child: close the parent's descriptors. The child has no session thread."""
        if self._connection is not None:
            self._connection.close()
        _ = self._close_wake()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._state is not SessionState.ENDED:
                self._run_once()
        finally:
            if self._state is not SessionState.ENDED:
                self._fail("the producer's thread has died", None)
            self._disconnect()
            _ = self._on_end()
            with self._condition:
                self.ended = True
                self._polling = False
                self._condition.notify_all()

    def _run_once(self) -> None:
        now = time.monotonic()
        if self._state is SessionState.DISCONNECTED and now >= self._deadline:
            self._connect(now)
        self._write(now)
        if self._state is SessionState.ENDED:
            return
        for fd, _ in self._poll.poll(self._timeout_ms(now)):
            if fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    _ = os.eventfd_read(self._wake_fd)
            else:
                self._read()
        self._check_deadline(time.monotonic())

    def _timeout_ms(self, now: float) -> int:
        """How long to poll, in milliseconds. From this call until `poll` returns, `wake` interrupts the poll."""
        with self._condition:
            wait_s = max(0.0, self._wait_s(now))
            self._polling = wait_s > 0
        # Rounded up: waking before the deadline would only mean sleeping again.
        return math.ceil(wait_s * 1000)

    def _wait_s(self, now: float) -> float:
        window = self._window
        if self._abandon_reason is not None:
            return 0.0
        if self._closing and self._state is not SessionState.CLOSING and (window.idle or window.has_open):
            return 0.0
        if self._state is not SessionState.OPEN:
            return self._deadline - now
        if window.has_writes and not self._write_blocked:
            return 0.0
        due = window.next_deadline()
        return _IDLE_S if due is None else due - now

    @property
    def _write_blocked(self) -> bool:
        return self._connection is not None and self._connection.unwritten

    def _transition(self, state: SessionState, deadline: float) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} does not lead to {state}"
        self._state = state
        self._deadline = deadline

    def _connect(self, now: float) -> None:
        try:
            self._connection = Connection(self._session.path)
        except OSError as error:
            if self._attempts == 0:
                log.info("daemon_unreachable path=%s error=%s", self._session.path, error)
            self._back_off(now)
            return
        self._poll.register(self._connection, select.POLLIN)
        self._transition(SessionState.HANDSHAKE, now + HANDSHAKE_TIMEOUT_S)
        with self._condition:
            unanswered_from = self._window.unanswered_from()
        client_id = self._session.client_id
        hello = frames.hello(
            client_id, detail=self._session.detail, unanswered_from=None if client_id is None else unanswered_from
        )
        self._send([hello])

    def _back_off(self, now: float) -> None:
        wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self._attempts, 10))
        self._attempts += 1
        self._deadline = now + wait_s * (0.5 + random.random() / 2)  # noqa: S311 - spreads attempts, no secret

    def _write(self, now: float) -> None:
        with self._condition:
            self._polling = False
            window = self._window
            window.seal_due(now=now)
            if self._closing:
                window.seal_all()
            done = self._closing and window.idle
            abandon = self._abandon_reason
            leave = window.draining and self._state is SessionState.OPEN
            pieces = window.take_writes(WRITE_BYTES) if not self._write_blocked else []
        if abandon is not None:
            self._fail(abandon, None)
        elif leave:
            self._connection_lost("the daemon is about to stop", now)
        elif done and self._state is not SessionState.CLOSING:
            self._start_closing(now)
        elif pieces:
            self._send(pieces)

    def _start_closing(self, now: float) -> None:
        if self._state is SessionState.OPEN:
            self._transition(SessionState.CLOSING, now + BYE_TIMEOUT_S)
            self._send([frames.pack((Type.BYE,))])
            self._finish_closing(now)
        else:
            self._transition(SessionState.ENDED, now)

    def _finish_closing(self, now: float) -> None:
        """End once BYE is written: nothing is unanswered, so nothing else is outstanding."""
        if self._state is SessionState.CLOSING and not self._write_blocked:
            self._transition(SessionState.ENDED, now)

    def _send(self, pieces: Sequence[bytes]) -> None:
        connection = self._connection
        assert connection is not None
        try:
            connection.write(pieces)
        except ConnectionLostError as error:
            # Read what the daemon sent before it closed: it may include the reason.
            self._read()
            if self._connection is connection:
                self._connection_lost(str(error), time.monotonic())
            return
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        self._poll.modify(connection, select.POLLIN | (select.POLLOUT if connection.unwritten else 0))

    def _read(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if connection.unwritten:
            # If it fails, the read below finds the reason.
            with contextlib.suppress(ConnectionLostError):
                connection.write()
                self._watch(connection)
        try:
            for body in connection.read():
                self._apply(frames.decode_daemon(body))
                if self._connection is not connection:
                    return
        except (ConnectionLostError, FrameError) as error:
            self._connection_lost(str(error), time.monotonic())

    def _apply(self, message: frames.DaemonMessage) -> None:
        match message:
            case frames.Welcome():
                self._welcome(message)
            case frames.Refused(None, code, text):
                self._refused(code, text)
            case frames.Acks() | frames.Refused() | frames.Done():
                with self._condition:
                    settled = list(self._window.settle(message))
                    self._condition.notify_all()
                self._complete(settled)

    def _welcome(self, message: frames.Welcome) -> None:
        if self._state is not SessionState.HANDSHAKE:
            raise FrameError("WELCOME comes once")
        try:
            with self._condition:
                self._window.welcome(message)
                self._condition.notify_all()
        except ClientIdInUseError as error:
            self._fail(str(error), SessionError(Code.LIMIT, str(error)))
            return
        log.info("session_opened daemon=%s high=%d", message.daemon, message.high)
        self._opened_at = time.monotonic()
        self._transition(SessionState.OPEN, 0.0)

    def _refused(self, code: str, text: str) -> None:
        if code in TRANSIENT_CODES:
            log.warning("session_ended code=%s text=%s", code, text)
            self._connection_lost(text, time.monotonic())
        else:
            self._fail(f"{code}: {text}", SessionError(code, text))

    def _check_deadline(self, now: float) -> None:
        self._finish_closing(now)
        if now < self._deadline:
            return
        if self._state is SessionState.HANDSHAKE:
            self._connection_lost(f"no WELCOME within {HANDSHAKE_TIMEOUT_S} s", now)
        elif self._state is SessionState.CLOSING:
            self._transition(SessionState.ENDED, now)

    def _connection_lost(self, why: str, now: float) -> None:
        """Drop the connection; the next one resends everything unanswered."""
        self._disconnect()
        with self._condition:
            self._window.connection_lost()
        if self._state is SessionState.CLOSING:
            self._transition(SessionState.ENDED, now)
            return
        log.info("connection_lost path=%s error=%s", self._session.path, why)
        if self._state is SessionState.OPEN and now - self._opened_at > STABLE_SESSION_S:
            self._attempts = 0
        self._transition(SessionState.DISCONNECTED, now)
        self._back_off(now)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _fail(self, text: str, cause: PenstockError | None) -> None:
        """End the thread and fail everything unanswered."""
        with self._condition:
            self.failure = cause
            self._closing = True
            self.accepting = False
            settled = self._window.abandon(text, cause)
            self._condition.notify_all()
        if cause is not None:
            log.error("producer_failed error=%s", cause)
            self._report(cause)
        self._disconnect()
        self._transition(SessionState.ENDED, self._deadline)
        self._complete(settled)

    # --- completion --------------------------------------------------------------------------------------------------

    def _complete(self, settled: Sequence[SettledFrame]) -> None:
        """Completion order: run callbacks, wake waiters on the outcomes, then wake waiters for a flush or for room."""
        if not settled:
            return
        for one in settled:
            outcome = one.frame.outcome
            for watcher in outcome.settle(one.answer, one.error):
                self._call(watcher)
            if one.error is not None:
                self._report(one.error)
            elif one.answer is not None and one.answer.refused:
                self._report(error_for_refused(one.answer.refused))
        settled[0].frame.outcome.wake_waiters()
        with self._condition:
            self._window.finish(settled)
            self._condition.notify_all()

    def _report(self, error: PenstockError) -> None:
        if self._on_error is not None:
            self._call(partial(self._on_error, error))

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException:  # `sys.exit` in a callback must not end this thread: no other record would complete
            log.exception("callback_failed")
