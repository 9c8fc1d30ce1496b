"""Connections to brokers for one command: made as the daemon makes them, with one request at a time."""

import random
from collections.abc import Callable
from typing import Final

from ..config.model import KafkaSettings
from ..producer.network.connection import KafkaConnection
from ..producer.network.resolver import Resolver
from ..producer.network.socket_options import control_options
from ..producer.protocol.responses import KafkaRequest, ResponseOrBytes
from ..runtime.clock import monotonic
from ..runtime.loop import Loop

_ATTEMPTS: Final = 4
"""A name may have an address of each family, and only one of them may answer."""


class BrokerConnection:
    """One connection, and the response to its newest request."""

    def __init__(
        self, loop: Loop, resolver: Resolver, kafka: KafkaSettings, address: tuple[str, int], first: KafkaRequest | None
    ) -> None:
        """`first`: a request to send as soon as the connection is ready."""
        self.server: Final = "{}:{}".format(*address)
        self._first: Final = first
        self.is_ready = False
        self.response: ResponseOrBytes | None = None
        self.lost: str | None = None
        """Why the connection was given up."""
        self.lost_request = False
        """The broker closed the connection instead of answering."""
        self._attempts = 0
        chance = random.Random()  # noqa: S311 - jitter
        self.connection: KafkaConnection[None] = KafkaConnection(
            loop, resolver, *address, options=control_options(kafka), owner=self, rng=chance.random
        )
        self.connection.connect()

    def send(self, request: KafkaRequest) -> bool:
        """Send a request; return False when the broker supports no version of it that we speak."""
        self.response = None
        return self.connection.send(request, None) is not None

    def connection_ready(self, connection: KafkaConnection[None]) -> None:
        assert connection is self.connection, "it has one"
        self.is_ready = True
        if self._first is not None and not self.send(self._first):
            name = type(self._first).__name__.removesuffix("Request")
            self.lost = f"{self.server} takes no version of {name} that we speak"

    def connection_answered(self, connection: KafkaConnection[None], tag: None, answer: ResponseOrBytes) -> None:
        assert (connection, tag) == (self.connection, None), "one request at a time"
        self.response = answer

    def connection_lost(self, connection: KafkaConnection[None], tags: list[None], reason: str) -> None:
        """Connect again, unless the result would be the same."""
        self._attempts += 1
        self.lost_request = bool(tags)
        if connection.authentication_failed or self._attempts == _ATTEMPTS or tags:
            self.lost = reason
        else:
            connection.connect()


class BrokerConnections:
    """Connections to the brokers of these settings, for at most `seconds`."""

    def __init__(self, kafka: KafkaSettings, seconds: float) -> None:
        self._kafka = kafka
        self._loop = Loop()
        self._resolver = Resolver(self._loop)
        self._until = monotonic() + seconds
        self._open: list[BrokerConnection] = []

    def close(self) -> None:
        for each in self._open:
            _ = each.connection.close()
        self._resolver.close()
        self._loop.close()

    def connect(self, address: tuple[str, int], first: KafkaRequest | None = None) -> BrokerConnection:
        """Begin to connect; `run` continues it. `first`: a request to send as soon as the connection is ready."""
        made = BrokerConnection(self._loop, self._resolver, self._kafka, address, first)
        self._open.append(made)
        return made

    def run(self, is_done: Callable[[BrokerConnection], bool]) -> None:
        """Wait until every connection is done or lost, or until the time is over."""
        now = monotonic()
        while now < self._until:
            for each in self._open:
                each.connection.tick(now)
            waiting = [each.connection for each in self._open if each.lost is None and not is_done(each)]
            if not waiting:
                break
            deadlines = (connection.next_deadline() for connection in waiting)
            _ = self._loop.run_once(min((at for at in deadlines if at is not None), default=self._until))
            now = monotonic()
