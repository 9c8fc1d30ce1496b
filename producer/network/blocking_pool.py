"""Runs blocking work on a few threads and delivers the results on the loop's thread.

The caller enforces deadlines and cancels. A thread that hangs is abandoned, but counts against `threads_max` until it
returns.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from ...runtime.loop import READ, Loop

OutcomeT = TypeVar("OutcomeT")

_WAKING_S: Final = 1.0


class _Task(NamedTuple, Generic[OutcomeT]):
    number: int
    work: Callable[[], OutcomeT]


class _Result(NamedTuple, Generic[OutcomeT]):
    number: int
    outcome: OutcomeT | None
    """None: the work raised an unexpected exception, which the thread has printed to standard error."""


class BlockingPool(Generic[OutcomeT]):
    """Threads for one kind of work. Each thread runs one task and ends, so an idle pool has no threads."""

    def __init__(self, loop: Loop, name: str, threads_max: int) -> None:
        self._loop = loop
        self._name = name
        self._threads_max = threads_max
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callbacks: dict[int, Callable[[OutcomeT], None]] = {}
        self._queued: deque[_Task[OutcomeT]] = deque()
        self._results: deque[_Result[OutcomeT]] = deque()
        self._threads = 0
        self._number = 0
        self._closed = False
        # A thread wakes the loop only while holding this lock: after `close` the descriptor may belong to another file.
        self._waking = threading.Lock()
        loop.add(self._waker, READ, self._deliver)

    def run(self, work: Callable[[], OutcomeT], done: Callable[[OutcomeT], None]) -> int:
        """Call `work` on a thread, then `done` with its result on the loop's thread. Returns the number for `cancel`.

        `done` is not called if `work` raises or returns None.
        """
        self._number += 1
        self._callbacks[self._number] = done
        self._queued.append(_Task(self._number, work))
        self._start()
        return self._number

    def cancel(self, number: int) -> None:
        """Discard the result. No effect if it was already delivered."""
        _ = self._callbacks.pop(number, None)

    def close(self) -> None:
        """Stop all callbacks. Running threads finish without waking the loop. May be called twice."""
        if self._closed:
            return
        self._callbacks.clear()
        self._queued.clear()
        self._loop.remove(self._waker)
        self._closed = True
        # In a forked child, the lock may be held forever by a thread of the parent. The descriptor then stays open.
        if self._waking.acquire(timeout=_WAKING_S):
            os.close(self._waker)
            self._waking.release()

    def _start(self) -> None:
        while self._queued and self._threads < self._threads_max:
            task = self._queued.popleft()
            if task.number not in self._callbacks:
                continue
            self._threads += 1
            threading.Thread(target=self._work, args=(task,), name=self._name, daemon=True).start()

    def _work(self, task: _Task[OutcomeT]) -> None:
        outcome: OutcomeT | None = None
        try:
            outcome = task.work()
        finally:
            with self._waking:
                if not self._closed:
                    self._results.append(_Result(task.number, outcome))
                    os.eventfd_write(self._waker, 1)

    def _deliver(self, _events: int) -> None:
        try:
            _ = os.eventfd_read(self._waker)
        except BlockingIOError:
            return
        while self._results:
            result = self._results.popleft()
            self._threads -= 1
            done = self._callbacks.pop(result.number, None)
            if done is not None and result.outcome is not None:
                done(result.outcome)
        self._start()
