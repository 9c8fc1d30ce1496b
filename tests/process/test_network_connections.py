"""Connections over real sockets, against a broker that is told what to say."""

import socket
import struct
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from penstock.producer.core.backoff import Backoff
from penstock.producer.core.connections import ConnectionLimits, State
from penstock.producer.network import Answer, Connection
from penstock.producer.resolver import Resolver
from penstock.producer.sockets import ConnectionOptions, SocketOptions
from penstock.runtime.loop import Loop

from tests.fakes.scripted_broker import RANGES, Peer, ScriptedBroker, versions_body

_WAIT_S: Final = 10.0


class Client:
    """A loop with one connection, and what was told about it."""

    def __init__(self, loop: Loop, resolver: Resolver) -> None:
        self.loop = loop
        self.resolver = resolver
        self.answers: list[tuple[str, Answer]] = []
        self.lost: list[tuple[list[str], str]] = []
        self.readies = 0
        self.on_ready: Callable[[Connection[str]], None] | None = None
        self.connections: list[Connection[str]] = []

    def open(self, port: int, host: str = "127.0.0.1", *, limits: ConnectionLimits = ConnectionLimits(), sockets: SocketOptions = SocketOptions()) -> Connection[str]:  # noqa: B008
        options = ConnectionOptions("a-client", limits, sockets)
        connection: Connection[str] = Connection(
            self.loop, self.resolver, host, port, options=options, owner=self, rng=lambda: 0.5
        )
        self.connections.append(connection)
        connection.connect()
        return connection

    def connection_ready(self, connection: Connection[str]) -> None:
        self.readies += 1
        if self.on_ready is not None:
            self.on_ready(connection)

    def connection_answered(self, connection: Connection[str], tag: str, answer: Answer) -> None:
        self.answers.append((tag, answer))

    def connection_lost(self, connection: Connection[str], tags: list[str], reason: str) -> None:
        self.lost.append((tags, reason))

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


@pytest.fixture
def client() -> Iterator[Client]:
    loop = Loop()
    resolver = Resolver(loop)
    made = Client(loop, resolver)
    yield made
    for connection in made.connections:
        _ = connection.close()
    resolver.close()
    loop.close()


def _metadata_answer(version: int) -> bytes:
    response = MetadataResponse(
        throttle_time_ms=0, brokers=[], cluster_id="c", controller_id=1, topics=[], error_code=0, version=version
    )
    flexible_header = b"\0" if version >= 9 else b""
    return flexible_header + bytes(response.encode())


def test_a_connection_greets_asks_and_hands_over_the_decoded_answer(client: Client) -> None:
    def script(peer: Peer) -> None:
        greeting = peer.greet()
        assert greeting.version == 4
        assert b"penstock" in greeting.body
        assert b"a-client" in greeting.body
        asked = peer.read()
        assert (asked.api_key, asked.version) == (3, 13)
        peer.send(asked.correlation_id, _metadata_answer(13))
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        assert connection.send(MetadataRequest(topics=[]), "first") == 13
        client.until(lambda: bool(client.answers))
        tag, answer = client.answers[0]
        assert tag == "first"
        assert isinstance(answer, MetadataResponse)
        assert answer.controller_id == 1
        assert connection.in_flight == 0
        assert connection.round_trip_us > 0
        assert connection.close() == []
