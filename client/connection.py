"""The client's end of the Unix socket: connects, writes gathered pieces, reads whole messages; the session's states."""

import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final

from ..wire.frames import LENGTH

READ_BYTES: Final = 256 << 10
ANSWER_BYTES_MAX: Final = 64 << 20
"""Limit for one answer. With details of every record, a frame's answer grows with its number of records."""
SEND_BUFFER_BYTES: Final = 1 << 20
"""Requested from the kernel, which may grant less. It lets each wake-up of the daemon find several frames."""
_CONNECT_WAIT_S: Final = 1
_TIMEVAL: Final = struct.Struct("@ll")
_PIECES_MAX: Final = 512


class SessionState(Enum):
    """State of the session with the daemon."""

    DISCONNECTED = auto()
    """No connection; the next attempt is scheduled."""
    HANDSHAKE = auto()
    """HELLO is sent; waiting for WELCOME."""
    OPEN = auto()
    CLOSING = auto()
    """BYE is sent."""
    ENDED = auto()


TRANSITIONS: Final[dict[SessionState, frozenset[SessionState]]] = {
    SessionState.DISCONNECTED: frozenset({SessionState.HANDSHAKE, SessionState.ENDED}),
    SessionState.HANDSHAKE: frozenset({SessionState.OPEN, SessionState.DISCONNECTED, SessionState.ENDED}),
    SessionState.OPEN: frozenset({SessionState.CLOSING, SessionState.DISCONNECTED, SessionState.ENDED}),
    SessionState.CLOSING: frozenset({SessionState.ENDED}),
    SessionState.ENDED: frozenset(),
}


class ConnectionLostError(Exception):
    """The connection is gone."""


class Connection:
    """A connected socket, for one thread at a time."""

    def __init__(self, path: str) -> None:
        """Connect, for at most a second.

        Raises:
            OSError: no daemon listens, or the listener's queue stayed full.
        """
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # With Python's own timeout, connecting to a full queue fails at once; in blocking mode this option waits.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_CONNECT_WAIT_S, 0))
            made.connect(path)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        self._socket: Final = made
        self._out: deque[memoryview] = deque()
        self._in = bytearray(READ_BYTES)
        self._filled = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unwritten(self) -> bool:
        """Whether bytes are still to be written."""
        return bool(self._out)

    def write(self, pieces: Iterable[bytes] = ()) -> None:
        """Queue `pieces` and write as much as the socket takes.

        Raises:
            ConnectionLostError: the other end closed the connection.
        """
        self._out.extend(memoryview(piece) for piece in pieces)
        while self._out:
            gathered = [self._out[i] for i in range(min(len(self._out), _PIECES_MAX))]
            try:
                written = self._socket.sendmsg(gathered, (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLostError(os.strerror(error.errno or 0)) from error
            self._drop(written)

    def _drop(self, written: int) -> None:
        while written:
            piece = self._out[0]
            if written < len(piece):
                self._out[0] = piece[written:]
                return
            written -= len(piece)
            _ = self._out.popleft()

    def read(self) -> Iterator[memoryview]:
        """Read once and yield the bodies of all complete messages. Each is valid until the next one is requested.

        Raises:
            ConnectionLostError: the other end closed the connection, or sent a message of invalid size.
        """
        if self._filled == len(self._in):
            self._in.extend(bytes(len(self._in)))
        with memoryview(self._in) as view:
            try:
                count = self._socket.recv_into(view[self._filled :])
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLostError(os.strerror(error.errno or 0)) from error
            if count == 0:
                raise ConnectionLostError("the daemon has closed the connection")
            self._filled += count
            start = 0
            while self._filled - start >= LENGTH.size:
                (size,) = LENGTH.unpack_from(view, start)
                if not 0 < size <= ANSWER_BYTES_MAX:
                    raise ConnectionLostError(f"the daemon sends a message of {size} bytes")
                end = start + LENGTH.size + size
                if end > self._filled:
                    break
                yield view[start + LENGTH.size : end]
                start = end
            rest = self._filled - start
            view[:rest] = bytes(view[start : self._filled])
            self._filled = rest

    def close(self) -> None:
        self._socket.close()
