"""A client that loses its connection and goes on: everything unanswered is sent again, in order, under the same sequences."""

import select
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack

from .processes import Deadline

_LENGTH: Final = struct.Struct(">I")


class Resender:
    """Frames of one client id to one topic. `answers`: seq -> the ACK item or REFUSED message, as it came."""

    def __init__(self, path: Path, client_id: str, topic: str, *, level: int = 2, window: int = 50) -> None:
        self._path = path
        self.client_id = client_id
        self._topic = topic
        self._level = level
        self._window = window
        self._socket: socket.socket | None = None
        self._input = b""
        self._output = b""
        self._queue: list[tuple[int, bytes]] = []
        self._sent = 0
        self.answers: dict[int, list[Any]] = {}
        self.connects = 0
        self.welcomed = False

    def add(self, seq: int, values: Sequence[bytes], keys: Sequence[bytes] | None = None) -> None:
        """One more frame to send; sequences rise."""
        body = msgpack.packb([2, seq, self._level, self._topic, None, keys, list(values), None, None])
        self._queue.append((seq, _LENGTH.pack(len(body)) + body))

    def run(self, *, seconds: float, step: Callable[[int], None] | None = None) -> None:
        """Until everything is answered; `step` is told how many answers there are, again and again."""
        deadline = Deadline(seconds, f"{len(self._queue)} answers for {self.client_id}")
        while self._queue:
            if step is not None:
                step(len(self.answers))
            self.turn(min(0.2, deadline.left()))

    @property
    def open_count(self) -> int:
        """Frames without an answer."""
        return len(self._queue)

    def turn(self, wait_s: float) -> None:
        """Send and hear what can be; a lost connection is made again at the next turn."""
        if not self._queue:
            return
        try:
            self._turn(wait_s)
        except (ConnectionError, FileNotFoundError, BlockingIOError):
            self._hang_up()
            select.select([], [], [], 0.02)

    def close(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._input = self._output = b""
        self._sent = 0
        self.welcomed = False

    def _turn(self, wait_s: float) -> None:
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        if self.welcomed:
            self._fill()
        readable, writable, _ = select.select([self._socket], [self._socket] if self._output else [], [], wait_s)
        if writable:
            self._output = self._output[self._socket.send(self._output) :]
        if readable:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError
            self._input += data
            self._take()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(self._path))
        self._socket.setblocking(False)
        self.connects += 1
        body = msgpack.packb([1, 1, self.client_id, {"detail": "records", "unanswered_from": self._queue[0][0]}])
        self._output = _LENGTH.pack(len(body)) + body

    def _fill(self) -> None:
        while self._sent < min(self._window, len(self._queue)) and len(self._output) < 1 << 20:
            self._output += self._queue[self._sent][1]
            self._sent += 1

    def _take(self) -> None:
        while len(self._input) >= 4:
            (size,) = _LENGTH.unpack_from(self._input)
            if len(self._input) < 4 + size:
                return
            message = msgpack.unpackb(self._input[4 : 4 + size], strict_map_key=False)
            self._input = self._input[4 + size :]
            match message:
                case [129, *_]:
                    self.welcomed = True
                case [130, items]:
                    for item in items:
                        self._answered(item[0], item)
                case [131, int(seq), *_]:
                    self._answered(seq, message)
                case _:
                    raise AssertionError(f"unexpected: {message!r:.200}")

    def _answered(self, seq: int, answer: list[Any]) -> None:
        assert seq not in self.answers, f"{seq} was answered twice"
        self.answers[seq] = answer
        at = next(place for place, (number, _) in enumerate(self._queue) if number == seq)
        del self._queue[at]
        self._sent -= 1
