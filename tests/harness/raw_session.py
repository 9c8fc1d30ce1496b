"""A session of the local protocol spelled out by hand: no code of ours on the client's side.

So a mistake that client library and daemon share still shows. Synchronous, no reconnecting.
"""

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgpack

from .processes import Deadline

LENGTH: Final = struct.Struct(">I")
HELLO, SEND, FLUSH, PARTITIONS, BYE = 1, 2, 3, 4, 6
WELCOME, ACK, REFUSED, DONE = 129, 130, 131, 132


class Acked(NamedTuple):
    """One entry of an ACK."""

    level: int | None
    slices: list[list[int]] | None
    """[partition, first offset, count, timestamp] each."""
    partitions: list[int] | None
    refused: list[list[Any]] | None
    """[first row, count, code, text] each."""
    flags: int

    def places(self) -> list[tuple[int, int]]:
        """(partition, offset) of each record, in record order; for a session with detail `records`."""
        assert self.slices is not None
        assert self.partitions is not None
        runs: dict[int, list[int]] = {}
        for partition, first, count, _ in self.slices:
            runs.setdefault(partition, []).extend(range(first, first + count))
        return [(partition, runs[partition].pop(0)) for partition in self.partitions]


class Refused(NamedTuple):
    """A REFUSED."""

    code: str
    text: str
    retry_ms: int | None


class RawSession:
    """One connection. Every wait has a deadline of `seconds`."""

    def __init__(
        self, path: Path, client_id: str | None = None, *, detail: str = "records", seconds: float = 30
    ) -> None:
        """Connect, say HELLO and take the WELCOME. Raise OSError, or AssertionError when refused."""
        self._seconds = seconds
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(seconds)
        self._socket.connect(str(path))
        self._input = b""
        self._answers: dict[int, Acked | Refused | Any] = {}
        self._next = 0
        # Refused before it could speak: the reason waits to be read.
        with suppress(BrokenPipeError):
            self.write([HELLO, 1, client_id, {"detail": detail}])
        welcome = self.read()
        assert welcome is not None
        assert welcome[0] == WELCOME, welcome
        self.high: int = welcome[2]
        self.limits: dict[str, int] = welcome[3]

    def write(self, message: Sequence[Any]) -> None:
        """One message."""
        body = msgpack.packb(message)
        self.write_bytes(LENGTH.pack(len(body)) + body)

    def write_bytes(self, data: bytes) -> None:
        """Any bytes, also those that are no message."""
        self._socket.sendall(data)

    def read(self) -> list[Any] | None:
        """The next message, None at the end of the connection. Raise TooLateError."""
        deadline = Deadline(self._seconds, "a message from the daemon")
        while len(self._input) < LENGTH.size or len(self._input) < LENGTH.size + LENGTH.unpack_from(self._input)[0]:
            self._socket.settimeout(deadline.left())
            try:
                data = self._socket.recv(1 << 16)
            except (TimeoutError, ConnectionResetError) as error:
                if isinstance(error, ConnectionResetError):
                    return None
                _ = deadline.left()
                continue
            if not data:
                return None
            self._input += data
        end = LENGTH.size + LENGTH.unpack_from(self._input)[0]
        message: list[Any] = msgpack.unpackb(self._input[LENGTH.size : end], strict_map_key=False)
        self._input = self._input[end:]
        return message

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        level: int = 2,
        partitions: int | Sequence[int | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[str | bytes | None] | None] | None = None,
        timestamps: int | Sequence[int] | None = None,
        seq: int | None = None,
    ) -> int:
        """One frame; returns its sequence."""
        if seq is None:
            seq = max(self._next, self.high + 1)
            self._next = seq + 1
        self.write([SEND, seq, level, topic, partitions, keys, values, headers, timestamps])
        return seq

    def answer(self, seq: int) -> Acked | Refused | Any:
        """What became of a frame, or the result of a FLUSH or PARTITIONS. Raise TooLateError, or AssertionError."""
        while seq not in self._answers:
            message = self.read()
            assert message is not None, f"the session ended before {seq} was answered"
            match message:
                case [kind, entries] if kind == ACK:
                    for number, level, slices, partitions, refused, flags in entries:
                        self._answers[number] = Acked(level, slices, partitions, refused, flags)
                case [kind, number, code, text, retry_ms] if kind == REFUSED:
                    assert number is not None, f"the session was refused: {code}: {text}"
                    self._answers[number] = Refused(code, text, retry_ms)
                case [kind, number, result] if kind == DONE:
                    self._answers[number] = result
                case _:
                    raise AssertionError(f"not a message of the daemon: {message!r:.200}")
        return self._answers.pop(seq)

    def acked(self, seq: int) -> Acked:
        """The answer, which must be an ACK of every record."""
        answer = self.answer(seq)
        assert isinstance(answer, Acked), answer
        assert answer.refused is None, answer
        return answer

    def ask(self, kind: int, *fields: Any) -> Any:
        """FLUSH or PARTITIONS, and its result."""
        seq = max(self._next, self.high + 1)
        self._next = seq + 1
        self.write([kind, seq, *fields])
        return self.answer(seq)

    def close(self) -> None:
        """Hang up without BYE."""
        self._socket.close()

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Hang up."""
        self.close()
