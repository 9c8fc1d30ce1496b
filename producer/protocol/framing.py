"""Buffers for both directions of a connection: `SendBuffer` for requests, `ResponseReader` for responses."""

import itertools
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

BytesLike = bytes | bytearray | memoryview

_READ_BYTES_MIN: Final = 1 << 16
_GATHER_MAX: Final = 1024
"""IOV_MAX of Linux: the maximum number of buffers in one gather write."""
_LENGTH: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
CORRELATION_BYTES: Final = _CORRELATION.size


class StreamError(Exception):
    """The broker's bytes violate the protocol. The connection cannot be used any more."""


class SendBuffer:
    """Queued buffers that the kernel has not taken yet, in order. They are referenced, not copied."""

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self.pending_bytes = 0

    def append(self, buffers: Sequence[BytesLike]) -> None:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if view.nbytes:
                self._views.append(view)
                self.pending_bytes += view.nbytes

    def gather(self) -> list[memoryview]:
        """The buffers to write next, at most as many as one gather write accepts; empty if nothing is left."""
        return list(itertools.islice(self._views, _GATHER_MAX))

    def piece(self, bytes_max: int) -> BytesLike:
        """The first `bytes_max` bytes or fewer as one buffer; empty if nothing is left. Joins small buffers and cuts
        large ones."""
        if not self._views:
            return b""
        head = self._views[0]
        if head.nbytes >= bytes_max or len(self._views) == 1:
            return head[:bytes_max]
        parts: list[memoryview] = []
        left = bytes_max
        for view in self._views:
            parts.append(view[:left])
            left -= parts[-1].nbytes
            if not left:
                break
        return b"".join(parts)

    def written(self, count: int) -> None:
        """Remove the first `count` bytes, which the kernel has taken."""
        self.pending_bytes -= count
        while count:
            head = self._views[0]
            if count < head.nbytes:
                self._views[0] = head[count:]
                return
            count -= head.nbytes
            _ = self._views.popleft()

    def clear(self) -> None:
        """Drop all buffers."""
        self._views.clear()
        self.pending_bytes = 0


class ResponseReader:
    """Splits a stream into responses. The buffer grows with the bytes received, never with an announced length."""

    def __init__(self, answer_bytes_max: int) -> None:
        self.answer_bytes_max = answer_bytes_max
        self._buffer = bytearray(_READ_BYTES_MIN)
        self._end = 0

    def space(self) -> memoryview:
        """The memory to receive the next bytes into; never empty. Release or drop it before calling `received`."""
        if self._end == len(self._buffer):
            # A new object instead of a resize: a view of the old one may still exist.
            self._buffer = self._buffer + bytes(len(self._buffer))
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> list[bytes]:
        """`count` bytes were written into `space()`. Returns the responses that are now complete, without their
        lengths.

        Raises StreamError for an invalid length.
        """
        self._end += count
        answers: list[bytes] = []
        start = 0
        while self._end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if not _CORRELATION.size <= length <= self.answer_bytes_max:
                raise StreamError(
                    f"an answer of {length} bytes; {_CORRELATION.size} to {self.answer_bytes_max} are allowed"
                )
            stop = start + _LENGTH.size + length
            if stop > self._end:
                break
            answers.append(bytes(memoryview(self._buffer)[start + _LENGTH.size : stop]))
            start = stop
        if start:
            self._compact(start)
        return answers

    def _compact(self, start: int) -> None:
        left = bytes(memoryview(self._buffer)[start : self._end])
        if len(self._buffer) > _READ_BYTES_MIN and len(left) <= _READ_BYTES_MIN // 2:
            # One huge response must not keep its memory for the life of the connection.
            self._buffer = bytearray(_READ_BYTES_MIN)
        self._buffer[: len(left)] = left
        self._end = len(left)


def correlation_id_of(answer: bytes) -> int:
    """The correlation id, the first field of every response; `ResponseReader` has checked that it is present."""
    (correlation_id,) = _CORRELATION.unpack_from(answer)
    assert isinstance(correlation_id, int)
    return correlation_id
