"""One client connection: bytes in, whole requests out, answers back in order."""

from __future__ import annotations

import socket
import struct
from typing import Final

from .requests.dispatch import ReceivedRequest

READ_BYTES: Final = 262_144
LENGTH: Final = struct.Struct(">i")


class OversizedError(Exception):
    """A request claims a length that is not served."""


class AcceptedConnection:
    """Requests of a client are served strictly one after the other: the next is taken when the last was answered."""

    def __init__(self, sock: socket.socket, node_id: int, request_bytes_max: int, close_at: int | None = None) -> None:
        """Serve `sock` for a node; close it when `close_at` bytes came."""
        self.sock = sock
        self.node_id = node_id
        self.muted_until = 0.0
        """Nothing is read before this (seconds)."""

        self.pending_request: ReceivedRequest | None = None
        """A request that is not answered yet."""

        self.deadline = 0.0
        """When the waiting request must be answered, in seconds."""

        self.peer_closed = False
        """The peer sends nothing more: the request that is served is finished, and one more."""

        self.closing = False
        """Close when all is sent."""

        self._max = request_bytes_max
        self._bytes_left = close_at
        self._inbox = bytearray()
        self._outbox = bytearray()

    @property
    def busy(self) -> bool:
        """Whether the next request must wait."""
        return self.pending_request is not None or bool(self._outbox) or self.closing

    @property
    def unsent(self) -> bool:
        """Whether the socket did not take all of the last answer."""
        return bool(self._outbox)

    def receive(self) -> bool:
        """Take what came; False when the client is gone.

        Raises:
            OSError: the connection broke.
        """
        data = self.sock.recv(READ_BYTES if self._bytes_left is None else min(self._bytes_left, READ_BYTES))
        self._inbox += data
        if self._bytes_left is not None:
            self._bytes_left -= len(data)
        return bool(data)

    @property
    def byte_limit_reached(self) -> bool:
        """Whether as many bytes came as were to come."""
        return self._bytes_left == 0

    def next_request(self) -> bytes | None:
        """Return the next whole request, without its length, or None while none is there.

        Raises:
            OversizedError: the length is negative or above the limit.
        """
        if len(self._inbox) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._inbox)
        if not 0 <= size <= self._max:
            raise OversizedError(f"a request of {size} bytes")
        end = LENGTH.size + size
        if len(self._inbox) < end:
            return None
        data = bytes(memoryview(self._inbox)[LENGTH.size : end])
        del self._inbox[:end]
        return data

    def discard_input(self) -> None:
        """Forget what came and was not served yet."""
        self._inbox.clear()

    def send(self, data: bytes) -> None:
        """Send an answer, or as much of it as fits now.

        Raises:
            OSError: the connection broke.
        """
        self._outbox += data
        self.flush()

    def flush(self) -> None:
        """Send on.

        Raises:
            OSError: the connection broke.
        """
        while self._outbox:
            try:
                sent = self.sock.send(self._outbox)
            except BlockingIOError:
                return
            del self._outbox[:sent]
