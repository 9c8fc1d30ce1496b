"""An owner of connections over real sockets, with the loop they live on."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from penstock.producer.network.connection import KafkaConnection
from penstock.producer.network.connection_state import ConnectionLimits
from penstock.producer.network.resolver import Resolver
from penstock.producer.network.socket_options import NO_SECURITY, ConnectionOptions, Security, SocketOptions
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.protocol.responses import ResponseOrBytes
from penstock.runtime.loop import Loop

_WAIT_S: Final = 10.0
LIMITS: Final = ConnectionLimits(reconnect=Backoff(0.01, 0.05))
_PLAIN: Final = SocketOptions()


class Client:
    """A loop with one connection, and what was told about it."""

    def __init__(self, loop: Loop, resolver: Resolver) -> None:
        self.loop = loop
        self.resolver = resolver
        self.answers: list[tuple[str, ResponseOrBytes]] = []
        self.lost: list[tuple[list[str], str]] = []
        self.lost_at = 0.0
        """When the last connection ended, by `loop_now`."""
        self.readies = 0
        self.on_answer: Callable[[], None] | None = None
        self.on_ready: Callable[[KafkaConnection[str]], None] | None = None
        self.connections: list[KafkaConnection[str]] = []

    def open(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        limits: ConnectionLimits = LIMITS,
        sockets: SocketOptions = _PLAIN,
        security: Security = NO_SECURITY,
    ) -> KafkaConnection[str]:
        options = ConnectionOptions("a-client", limits, sockets, security=security)
        connection: KafkaConnection[str] = KafkaConnection(
            self.loop, self.resolver, host, port, options=options, owner=self, rng=lambda: 0.5
        )
        self.connections.append(connection)
        connection.connect()
        return connection

    def connection_ready(self, connection: KafkaConnection[str]) -> None:
        self.readies += 1
        if self.on_ready is not None:
            self.on_ready(connection)

    def connection_answered(self, connection: KafkaConnection[str], tag: str, answer: ResponseOrBytes) -> None:
        self.answers.append((tag, answer))
        if self.on_answer is not None:
            self.on_answer()

    def connection_lost(self, connection: KafkaConnection[str], tags: list[str], reason: str) -> None:
        self.lost.append((tags, reason))
        self.lost_at = self.loop_now()

    def loop_now(self) -> float:
        """The clock that connections go by."""
        return monotonic()

    def until(self, true: Callable[[], bool]) -> None:
        """Go round until it holds; fail when it takes too long."""
        end = monotonic() + _WAIT_S
        while not true():
            assert monotonic() < end, f"waited in vain; lost: {self.lost}"
            deadlines = [end]
            for connection in self.connections:
                connection.tick(monotonic())
                deadline = connection.next_deadline()
                if deadline is not None:
                    deadlines.append(deadline)
            if true():
                return
            _ = self.loop.run_once(min(deadlines))


@contextmanager
def network_client() -> Iterator[Client]:
    """A client whose connections and loop are closed at the end."""
    loop = Loop()
    made = Client(loop, Resolver(loop))
    try:
        yield made
    finally:
        for connection in made.connections:
            _ = connection.close()
        made.resolver.close()
        loop.close()


def send_raw(
    connection: KafkaConnection[str], tag: str, *body: bytes | memoryview, expects_answer: bool = True
) -> None:
    """A request of an API that nobody knows, framed by hand."""
    correlation_id = connection.next_correlation_id()
    length = sum(len(part) for part in body)
    head = struct.pack(">ihhi", 8 + length, 999, 0, correlation_id)
    connection.send_raw([head, *body], len(head) + length, correlation_id, tag, expects_answer=expects_answer)
