"""The event loop of a process. It waits for descriptors and deadlines and runs callbacks, without knowing their
meaning.

Callbacks run one after another on the loop's thread. After every round each registered upkeep runs once, whatever woke
the loop. It returns the time (CLOCK_MONOTONIC seconds) at which it next wants to run, or None.
"""

import os
import select
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from .clock import monotonic

if TYPE_CHECKING:
    # An application's process runs the loop without ZeroMQ.
    import zmq

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
HANGUP: Final = select.EPOLLHUP | select.EPOLLERR
_WAIT_MAX_S: Final = 1.0
_EVENTS_MAX: Final = 256
# ZeroMQ's constants as plain numbers: pyzmq's flags are enums, whose arithmetic costs more than the query itself.
_POLLIN: Final = 1
_FD: Final = 14
_EVENTS: Final = 15

GAP_S: Final = 0.003
"""Minimum time between rounds while busy. Each round then handles more, and peers are woken less often."""
BUSY_BYTES: Final = 256 << 10
_MUCH_S: Final = 0.01
"""Moving `BUSY_BYTES` within this time makes the loop busy for as long again."""

Callback = Callable[[int], None]
"""Receives the events (READ, WRITE, HANGUP as bits)."""


class Upkeep(Protocol):
    """Runs after every round. Returns when it next wants to run, or None."""

    def __call__(self, now: float) -> float | None: ...


class Loop:
    """An epoll loop.

    A ZeroMQ socket's descriptor is edge-triggered and unreliable as a signal: register the socket with `add_zmq`, whose
    callback runs in every round in which the socket has messages.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._zmq: dict[zmq.Socket[bytes], Callable[[], None]] = {}
        self._zmq_fds: dict[int, zmq.Socket[bytes]] = {}
        self._upkeep: list[Upkeep] = []
        self._stopping = False
        self._round_began = 0.0
        self._moved_bytes = 0
        self._moved_since = 0.0
        self._much_until = 0.0

    def add(self, fd: int, events: int, callback: Callback) -> None:
        """Watch a descriptor (level-triggered)."""
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching. Events of this round that were not yet delivered are dropped."""
        if self._callbacks.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def add_zmq(self, socket: "zmq.Socket[bytes]", callback: Callable[[], None]) -> None:
        """Watch a ZeroMQ socket for messages. The callback reads until EAGAIN or its own limit."""
        fd = socket.getsockopt(_FD)
        assert isinstance(fd, int)
        self._zmq[socket] = callback
        self._zmq_fds[fd] = socket
        self.add(fd, READ, _nothing)

    def remove_zmq(self, socket: "zmq.Socket[bytes]") -> None:
        fd = socket.getsockopt(_FD)
        assert isinstance(fd, int)
        self._zmq.pop(socket, None)
        self._zmq_fds.pop(fd, None)
        self.remove(fd)

    def add_upkeep(self, upkeep: Upkeep) -> None:
        """Run it after every round, in the order added."""
        self._upkeep.append(upkeep)

    def on_signals(self, callback: Callable[[int], None], *numbers: int) -> None:
        """Deliver signals as ordinary events of the loop."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _only_wake)

        def told(_events: int) -> None:
            for number in os.read(reading, 256):
                if number in numbers:
                    callback(number)

        self.add(reading, READ, told)

    def stop(self) -> None:
        """Leave `run` at the end of this round."""
        self._stopping = True

    def run(self) -> None:
        """Run rounds until `stop`."""
        deadline: float | None = monotonic()
        while not self._stopping:
            deadline = self.run_once(deadline)

    def add_moved_bytes(self, nbytes: int) -> None:
        """Add the bytes of records that passed through this process. A process that handles only few at a time is never
        delayed."""
        self._moved_bytes += nbytes

    @property
    def is_busy(self) -> bool:
        """Whether this process moved many bytes recently."""
        return self._round_began < self._much_until

    def run_once(self, deadline: float | None) -> float | None:
        """Run one round: wait until an event or the deadline, run callbacks, then the upkeep. Return the next
        deadline."""
        found, readable = self._wait(deadline)
        callbacks = self._callbacks
        for fd, events in found:
            callback = callbacks.get(fd)
            if callback is not None:
                callback(events)
        for socket in readable:
            read = self._zmq.get(socket)
            if read is not None and not socket.closed:
                read()
        now = monotonic()
        wanted = [at for at in [upkeep(now) for upkeep in self._upkeep] if at is not None]
        self._update_busy(now)
        return min(wanted, default=None)

    def _wait(self, deadline: float | None) -> tuple[list[tuple[int, int]], "list[zmq.Socket[bytes]]"]:
        """Wait; return the events of descriptors, and the ZeroMQ sockets that have messages."""
        now = monotonic()
        rest_s = self._round_began + GAP_S - now
        if rest_s > 0.0 and self.is_busy:
            time.sleep(rest_s)
            now = monotonic()
        timeout = _WAIT_MAX_S if deadline is None else min(_WAIT_MAX_S, max(0.0, deadline - now))
        # A send may have consumed the edge: check the socket itself before sleeping.
        readable = [socket for socket in self._zmq if _has_messages(socket)]
        found = self._epoll.poll(0.0 if readable else timeout, _EVENTS_MAX)
        for fd, _ in found:
            socket = self._zmq_fds.get(fd)
            if socket is not None and socket not in readable and _has_messages(socket):
                readable.append(socket)
        self._round_began = monotonic()
        return found, readable

    def _update_busy(self, now: float) -> None:
        if self._moved_bytes >= BUSY_BYTES:
            self._much_until = now + _MUCH_S
        elif now - self._moved_since < _MUCH_S:
            return
        self._moved_bytes = 0
        self._moved_since = now

    def close_after_fork(self) -> None:
        """Close the loop in a forked child. Registrations stay, because the parent waits on the same epoll object."""
        self._callbacks.clear()
        self._epoll.close()

    def close(self) -> None:
        self._epoll.close()


def _has_messages(socket: "zmq.Socket[bytes]") -> bool:
    if socket.closed:
        return False
    events = socket.getsockopt(_EVENTS)
    assert isinstance(events, int)
    return events & _POLLIN != 0


def _nothing(_events: int) -> None:
    """Do nothing: the loop queries ZeroMQ's own state instead."""


def _only_wake(_number: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor carries the signal number to the loop."""
