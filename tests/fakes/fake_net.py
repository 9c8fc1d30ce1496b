"""A network that moves nothing by itself: sockets, a loop and a name server whose every step a test takes, on its own clock.

Real `KafkaConnection` objects run on it: `FakeNet.system` is where they have their sockets and their time from.
"""

import errno
import socket as real_socket
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from penstock.producer.network.addresses import Address
from penstock.producer.network.connection import KafkaConnection
from penstock.producer.network.connection_state import ConnectionLimits
from penstock.producer.network.socket_options import NO_SECURITY, ConnectionOptions, Security, SocketOptions, System
from penstock.producer.protocol.responses import ResponseOrBytes
from penstock.runtime.loop import READ, WRITE

from .scripted_broker import RANGES, Asked, versions_body

MIDDLE: Final = 0.5


class FakeSocket:
    """One end of a connection, and the wire behind it."""

    def __init__(self, net: "FakeNet", family: int) -> None:
        self.net = net
        self.family = family
        self.number = net.add_socket(self)
        self.address: tuple[str | int | bytes, ...] = ()
        self.error = 0
        self.connected = False
        self.closed = False
        self.sent = bytearray()
        self.taken: list[int] = []
        """How much each write took."""
        self.room: int | None = None
        """What the next writes take, all together; None: everything."""
        self.inbox = bytearray()
        self.ended = False
        self._read = 0

    # --- what a Connection calls -------------------------------------------------------------------------------------

    def setblocking(self, _blocking: bool) -> None:
        return

    def setsockopt(self, *_option: object) -> None:
        return

    def fileno(self) -> int:
        return self.number

    def connect_ex(self, address: tuple[str | int | bytes, ...]) -> int:
        self.address = address
        self.net.connects.append(str(address[0]))
        return errno.EINPROGRESS

    def getsockopt(self, *_option: int) -> int:
        return self.error

    def getpeername(self) -> object:
        if not self.connected:
            raise OSError(errno.ENOTCONN, "not connected")
        return self.address

    def recv_into(self, space: memoryview) -> int:
        if not self.inbox:
            if self.ended:
                return 0
            raise BlockingIOError
        count = min(len(space), len(self.inbox))
        space[:count] = self.inbox[:count]
        del self.inbox[:count]
        return count

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        offered = b"".join(buffers)
        count = len(offered) if self.room is None else min(self.room, len(offered))
        if not count:
            raise BlockingIOError
        if self.room is not None:
            self.room -= count
        self.net.events.append("bytes")
        self.taken.append(count)
        self.sent += offered[:count]
        return count

    def close(self) -> None:
        self.closed = True

    # --- the broker's end --------------------------------------------------------------------------------------------

    def accept(self) -> None:
        self.connected = True
        self._tell(WRITE)

    def refuse(self) -> None:
        self.error = errno.ECONNREFUSED
        self._tell(WRITE)

    def drain(self, room: int | None = None) -> None:
        """The kernel takes so much more; None: all of it."""
        self.room = room
        self._tell(WRITE)

    def read(self) -> Asked:
        """The next request that arrived whole."""
        (length,) = struct.unpack_from(">i", self.sent, self._read)
        body = bytes(self.sent[self._read + 4 : self._read + 4 + length])
        assert len(body) == length, "the request has not come whole yet"
        self._read += 4 + length
        return Asked(*struct.unpack_from(">hhi", body), body)

    def unread(self) -> int:
        """Bytes that came and were not read as requests."""
        return len(self.sent) - self._read

    def answer(self, asked: Asked, body: bytes) -> None:
        self.inbox += struct.pack(">ii", 4 + len(body), asked.correlation_id) + body
        self._tell(READ)

    def hang_up(self) -> None:
        self.ended = True
        self._tell(READ)

    def greet(self, ranges: dict[int, tuple[int, int]] | None = None, throttle_ms: int = 0) -> Asked:
        asked = self.read()
        assert asked.api_key == 18
        self.answer(asked, versions_body(asked.version, ranges or RANGES, throttle_ms=throttle_ms))
        return asked

    def _tell(self, events: int) -> None:
        callback = self.net.loop.callbacks.get(self.number)
        if callback is not None:
            callback(events)


class FakeLoop:
    """Knows who watches what; the test says what happens."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[int], None]] = {}

    def add(self, fd: int, _events: int, callback: Callable[[int], None]) -> None:
        self.callbacks[fd] = callback

    def modify(self, fd: int, _events: int) -> None:
        assert fd in self.callbacks

    def remove(self, fd: int) -> None:
        _ = self.callbacks.pop(fd, None)


class FakeNames:
    """Answers at once, with what the test wrote down; a name nobody wrote down cannot be resolved."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []

    def resolve(self, host: str, port: int, answered: Callable[[list[Address], str], None]) -> int:
        self.asked.append(host)
        found = [Address(int(real_socket.AF_INET), (ip, port)) for ip in self.known.get(host, [])]
        answered(found, "" if found else "unknown name")
        return len(self.asked)

    def cancel(self, _number: int) -> None:
        return

    def close(self) -> None:
        return


class FakeNet:
    """Clock, loop, names and sockets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.loop = FakeLoop()
        self.names = FakeNames()
        self.sockets: list[FakeSocket] = []
        self.connects: list[str] = []
        """Addresses that were tried, in order."""
        self.events: list[str] = []
        """What happened, for tests of order: "bytes" for every write, and what the test adds."""

    def add_socket(self, made: FakeSocket) -> int:
        self.sockets.append(made)
        return 1000 + len(self.sockets)

    @property
    def last(self) -> FakeSocket:
        return self.sockets[-1]

    # --- as `System` -------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    @property
    def system(self) -> System:
        """What connections are given in place of the operating system."""
        return cast("System", SimpleNamespace(now=self.clock, open=lambda family: FakeSocket(self, family)))


class FakeClient:
    """Owner of connections: what it was told, in order."""

    def __init__(self, net: FakeNet) -> None:
        self.net = net
        self.readies = 0
        self.answers: list[tuple[str, ResponseOrBytes]] = []
        self.lost: list[tuple[list[str], str]] = []
        self.told: list[str] = []

    def open(
        self, host: str, limits: ConnectionLimits, *, port: int = 9092, security: Security = NO_SECURITY
    ) -> KafkaConnection[str]:
        options = ConnectionOptions("a-client", limits, SocketOptions(), self.net.system, security)
        made: KafkaConnection[str] = KafkaConnection(
            cast("Any", self.net.loop), cast("Any", self.net.names), host, port, options=options, owner=self,
            rng=lambda: MIDDLE,
        )  # fmt: skip
        made.connect()
        made.tick(self.net.now)
        return made

    def ready(self, host: str, limits: ConnectionLimits, ranges: dict[int, tuple[int, int]] | None = None) -> Any:
        """A connection that has been greeted."""
        self.net.names.known.setdefault(host, [host])
        made = self.open(host, limits)
        self.net.last.accept()
        _ = self.net.last.greet(ranges)
        assert made.ready
        return made

    def send(self, connection: KafkaConnection[str], tag: str, body: bytes = b"x") -> None:
        """A request framed by hand."""
        correlation_id = connection.next_correlation_id()
        head = struct.pack(">ihhi", 8 + len(body), 999, 0, correlation_id)
        connection.send_raw([head, body], len(head) + len(body), correlation_id, tag, now=self.net.now)

    def connection_ready(self, connection: KafkaConnection[str]) -> None:
        self.readies += 1

    def connection_answered(self, connection: KafkaConnection[str], tag: str, answer: ResponseOrBytes) -> None:
        self.answers.append((tag, answer))
        self.told.append(tag)

    def connection_lost(self, connection: KafkaConnection[str], tags: list[str], reason: str) -> None:
        self.lost.append((tags, reason))
        self.told += tags
