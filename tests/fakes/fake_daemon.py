"""The daemon's end of the local protocol, played by the test itself: it accepts, reads and answers when the test says so."""

import select
import socket
import struct
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgpack
from penstock.wire import frames
from penstock.wire.frames import Ack, Run, Type

WAIT_S = 10.0
LIMITS = {
    "frame_bytes_max": 1 << 20,
    "unanswered_bytes_max": 1 << 24,
    "unanswered_records_max": 1 << 20,
    "header_count_max": 100,
}


class Sent(NamedTuple):
    """A SEND, unpacked."""

    seq: int
    level: int
    topic: str
    partitions: Any
    keys: Any
    values: Any
    headers: Any
    timestamps: Any


class Peer:
    """One connection of a client."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(WAIT_S)
        self._socket = connected
        self._buffer = bytearray()
        self._read: deque[list[Any]] = deque()

    def message(self) -> list[Any]:
        """The next message; fails when the client has closed."""
        while not self._read:
            received = self._socket.recv(1 << 16)
            assert received, "the client has closed the connection"
            self._buffer += received
            while len(self._buffer) >= 4:
                (size,) = struct.unpack_from(">I", self._buffer)
                if len(self._buffer) < 4 + size:
                    break
                self._read.append(msgpack.unpackb(self._buffer[4 : 4 + size]))
                del self._buffer[: 4 + size]
        return self._read.popleft()

    def frame(self) -> Sent:
        message = self.message()
        assert message[0] == Type.SEND, message
        return Sent(*message[1:])

    def quiet(self, seconds: float) -> bool:
        """Whether nothing comes within that time."""
        return not self._read and not select.select([self._socket], [], [], seconds)[0]

    def greet(self, high: int = -1, **limits: int) -> list[Any]:
        """Take HELLO, answer WELCOME; returns the HELLO."""
        hello = self.message()
        assert hello[0] == Type.HELLO, hello
        self.say(frames.welcome(high, {**LIMITS, **limits}, "fake"))
        return hello

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ack(self, seq: int, level: int = 2, **more: Any) -> None:
        self.say(frames.acks([Ack(seq, level, **more)]))

    def deliver(self, sent: Sent, partition: int = 0, offset: int = 100) -> None:
        """Answer a frame as one run of offsets."""
        self.ack(sent.seq, sent.level, runs=[Run(partition, offset, len(sent.values), -1)])

    def is_closed(self) -> bool:
        """Whether the client closes without saying more."""
        return not self._read and self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()


class FakeDaemon:
    """A listening socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "penstock.sock")
        self._listening: socket.socket | None = None
        self._peers: list[Peer] = []
        self.listen()

    def listen(self) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        Path(self.path).unlink(missing_ok=True)
        self._listening.bind(self.path)
        self._listening.listen(16)
        self._listening.settimeout(WAIT_S)

    def stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def accept(self) -> Peer:
        assert self._listening is not None
        connected, _ = self._listening.accept()
        peer = Peer(connected)
        self._peers.append(peer)
        return peer

    def is_quiet(self, seconds: float) -> bool:
        """Whether nobody connects within that time."""
        return not select.select([self._listening], [], [], seconds)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_listening()
        for peer in self._peers:
            peer.close()
