"""One client connection: splits input into requests and sends responses in order."""

from __future__ import annotations

import socket
import struct
from typing import Final

from .requests.dispatch import ReceivedRequest

READ_BYTES: Final = 262_144
LENGTH: Final = struct.Struct(">i")


class OversizedError(Exception):
    """A request has an unsupported length."""


class AcceptedConnection:
    """A client connection that serves requests one by one: the next starts after the response to the last."""

    def __init__(self, sock: socket.socket, node_id: int, request_bytes_max: int, close_at: int | None = None) -> None:
        """Serve `sock` for a node; stop at `close_at` received bytes, where the server closes it."""
        self.sock = sock
        self.node_id = node_id
        self.muted_until = 0.0
        """No request is served before this (seconds)."""

        self.pending_request: ReceivedRequest | None = None
        """The request without a response yet."""

        self.deadline = 0.0
        """When the pending request must get its response (seconds)."""

        self.peer_closed = False
        """The peer sends no more data; the server finishes the current request and at most one more."""

        self.closing = False
        """Close the connection once all output is sent."""

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
        """Whether part of the last response is still unsent."""
        return bool(self._outbox)

    def receive(self) -> bool:
        """Read available bytes; return False when the client has closed.

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
        """Whether the connection has received `close_at` bytes."""
        return self._bytes_left == 0

    def next_request(self) -> bytes | None:
        """Return the next complete request, without its length, or None if there is none yet.

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
        """Discard received input that was not served yet."""
        self._inbox.clear()

    def send(self, data: bytes) -> None:
        """Send a response, or as much of it as the socket accepts now.

        Raises:
            OSError: the connection broke.
        """
        self._outbox += data
        self.flush()

    def flush(self) -> None:
        """Send more of the unsent output.

        Raises:
            OSError: the connection broke.
        """
        while self._outbox:
            try:
                sent = self.sock.send(self._outbox)
            except BlockingIOError:
                return
            del self._outbox[:sent]
