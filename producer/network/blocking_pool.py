"""Work that blocks, off the loop: on a few threads, with the outcome told on the loop's thread.

Who asks keeps the deadline and cancels; a thread that hangs is left behind and counts against the bound until it returns.
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
    """None: the work raised what it should not have; the thread has told it on standard error."""


class BlockingPool(Generic[OutcomeT]):
    """Threads for one kind of work. A thread ends with its task: nothing is left of them while there is nothing to do."""

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
        # A thread wakes the loop only while it holds this: once closed, the descriptor's number may be another file's.
        self._waking = threading.Lock()
        loop.add(self._waker, READ, self._deliver)

    def run(self, work: Callable[[], OutcomeT], done: Callable[[OutcomeT], None]) -> int:
        """Call `work` on a thread, then `done` with what it returned, on the loop's thread. Returns the number for `cancel`."""
        self._number += 1
        self._callbacks[self._number] = done
        self._queued.append(_Task(self._number, work))
        self._start()
        return self._number

    def cancel(self, number: int) -> None:
        """The outcome is not wanted any more. Fine for one that was already told."""
        _ = self._callbacks.pop(number, None)

    def close(self) -> None:
        """Nobody is called any more. Threads still at work end by themselves and wake nobody. Fine to call twice."""
        if self._closed:
            return
        self._callbacks.clear()
        self._queued.clear()
        self._loop.remove(self._waker)
        self._closed = True
        # Held for longer only in a forked child, for good, by a thread that is not there: then the descriptor stays.
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
