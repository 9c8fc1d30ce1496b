"""`penstock check --connect`: every bootstrap server is spoken to exactly as the daemon would, up to its first answer.

So what is wrong with an address, a certificate or a password is said before a start, in the words the daemon would log.
"""

import random
from typing import Final, NamedTuple

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from ..config.bootstrap import parse_bootstrap
from ..config.model import KafkaSettings
from ..producer.network.connection import KafkaConnection
from ..producer.network.resolver import Resolver
from ..producer.network.socket_options import control_options
from ..producer.protocol.responses import ResponseOrBytes
from ..runtime.clock import monotonic
from ..runtime.loop import Loop

CHECK_S: Final = 15.0
_ATTEMPTS: Final = 4
"""A name may have an address of each family, of which one is answered."""


class ServerCheck(NamedTuple):
    """What came of one server."""

    server: str
    problem: str
    """Empty: it answers, and believes us."""


class _ServerProbe:
    """One server, until it is ready or there is no hope. The owner of its connection."""

    def __init__(self, loop: Loop, resolver: Resolver, kafka: KafkaSettings, server: tuple[str, int]) -> None:
        host, port = server
        self.server: Final = f"{host}:{port}"
        self.problem: str | None = None
        self._attempts = 0
        chance = random.Random()  # noqa: S311 - jitter
        self.connection: KafkaConnection[None] = KafkaConnection(
            loop, resolver, host, port, options=control_options(kafka), owner=self, rng=chance.random
        )
        self.connection.connect()

    def connection_ready(self, connection: KafkaConnection[None]) -> None:
        """Both sides have identified themselves: a listener that expected more would not answer a request."""
        sent = connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False), None)
        if sent is None:
            self.problem = f"{self.server} takes no version of Metadata that we speak"

    def connection_answered(self, connection: KafkaConnection[None], tag: None, answer: ResponseOrBytes) -> None:
        """Whatever it says of the cluster, it speaks with us."""
        assert (connection, tag) == (self.connection, None), "one question each"
        self.problem = "" if isinstance(answer, MetadataResponse) else f"{self.server} does not answer what was asked"

    def connection_lost(self, connection: KafkaConnection[None], tags: list[None], reason: str) -> None:
        """Once more, unless it would be the same again."""
        self._attempts += 1
        if connection.authentication_failed or self._attempts == _ATTEMPTS or tags:
            hint = (
                " at the first question: does the listener want a login (security.protocol = SASL_…)?" if tags else ""
            )
            self.problem = f"{reason}{hint}"
        else:
            connection.connect()


def check_servers(kafka: KafkaSettings) -> list[ServerCheck]:
    """Speak to all of the bootstrap servers at once, for at most `CHECK_S` seconds."""
    loop = Loop()
    resolver = Resolver(loop)
    tries = [_ServerProbe(loop, resolver, kafka, server) for server in parse_bootstrap(kafka.bootstrap_servers)]
    over = monotonic() + CHECK_S
    now = monotonic()
    while now < over:
        for each in tries:
            each.connection.tick(now)
        waiting = [each.connection for each in tries if each.problem is None]
        if not waiting:
            break
        deadlines = (connection.next_deadline() for connection in waiting)
        _ = loop.run_once(min((at for at in deadlines if at is not None), default=over))
        now = monotonic()
    found = [ServerCheck(each.server, _problem_of(each)) for each in tries]
    for each in tries:
        _ = each.connection.close()
    resolver.close()
    loop.close()
    return found


def _problem_of(attempt: _ServerProbe) -> str:
    if attempt.problem is not None:
        return attempt.problem
    return attempt.connection.last_error or f"no answer within {CHECK_S:.0f} s ({attempt.connection.state.name})"
