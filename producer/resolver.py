"""Names to addresses, off the loop: `getaddrinfo` blocks for as long as the name server likes.

Who asks keeps the deadline and cancels; a thread that hangs is left behind and counts against the bound until it returns.
"""

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ..runtime.loop import READ, Loop
from .core.addresses import Address

Resolved = Callable[[list[Address], str], None]
"""Given the addresses in the order to try them, or none and the reason."""

LookUp = Callable[[str, int], tuple[list[Address], str]]
"""Host and port to the same; called on a thread, may block."""

_THREADS_MAX: Final = 8
_WAKING_S: Final = 1.0


class _Question(NamedTuple):
    number: int
    host: str
    port: int


class _Found(NamedTuple):
    number: int
    addresses: list[Address]
    error: str


class Resolver:
    """One per process. Addresses given as numbers are answered at once, from inside `resolve`."""

    def __init__(self, loop: Loop, look_up: LookUp | None = None, *, threads_max: int = _THREADS_MAX) -> None:
        """`look_up` takes the place of the system's resolver, off the loop only."""
        self._loop = loop
        self._look_up = look_up or _ask_system
        self._threads_max = threads_max
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._answered: dict[int, Resolved] = {}
        self._queued: deque[_Question] = deque()
        self._found: deque[_Found] = deque()
        self._threads = 0
        self._number = 0
        self._closed = False
        # A thread wakes the loop only while it holds this: once closed, the descriptor's number may be another file's.
        self._waking = threading.Lock()
        loop.add(self._waker, READ, self._deliver)

    def resolve(self, host: str, port: int, answered: Resolved) -> int:
        """Look a name up and call back on the loop's thread. Returns the number for `cancel`."""
        self._number += 1
        addresses, _ = _get(host, port, socket.AI_NUMERICHOST)
        if addresses:
            answered(addresses, "")
            return self._number
        self._answered[self._number] = answered
        self._queued.append(_Question(self._number, host, port))
        self._start()
        return self._number

    def cancel(self, number: int) -> None:
        """The answer is not wanted any more. Fine for one that was already given."""
        _ = self._answered.pop(number, None)

    def close(self) -> None:
        """Nobody is called any more. Threads still at work end by themselves and wake nobody. Fine to call twice."""
        if self._closed:
            return
        self._answered.clear()
        self._queued.clear()
        self._loop.remove(self._waker)
        self._closed = True
        # Held for longer only in a forked child, for good, by a thread that is not there: then the descriptor stays.
        if self._waking.acquire(timeout=_WAKING_S):
            os.close(self._waker)
            self._waking.release()

    def _start(self) -> None:
        while self._queued and self._threads < self._threads_max:
            question = self._queued.popleft()
            if question.number not in self._answered:
                continue
            self._threads += 1
            threading.Thread(target=self._work, args=(question,), name="resolver", daemon=True).start()

    def _work(self, question: _Question) -> None:
        addresses, error = self._look_up(question.host, question.port)
        with self._waking:
            if not self._closed:
                self._found.append(_Found(question.number, addresses, error))
                os.eventfd_write(self._waker, 1)

    def _deliver(self, _events: int) -> None:
        try:
            _ = os.eventfd_read(self._waker)
        except BlockingIOError:
            return
        while self._found:
            found = self._found.popleft()
            self._threads -= 1
            answered = self._answered.pop(found.number, None)
            if answered is not None:
                answered(found.addresses, found.error)
        self._start()


def _ask_system(host: str, port: int) -> tuple[list[Address], str]:
    return _get(host, port, 0)


def _get(host: str, port: int, flags: int) -> tuple[list[Address], str]:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        return [], text or str(error)
    return list(dict.fromkeys(Address(int(family), sockaddr) for family, _, _, _, sockaddr in rows)), ""
