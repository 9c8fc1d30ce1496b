"""What connections to brokers are given: limits out of the settings, and the options of their sockets."""

import logging
import socket
import struct
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple, Protocol

from ...config.producer import ProducerSettings
from ...config.security import SecuritySettings
from ...runtime.clock import monotonic
from ..protocol.backoff import Backoff
from ..security.mechanisms import sasl_rules
from ..security.sasl import SaslRules
from .connection_state import ConnectionLimits
from .tls import TlsContexts, tls_rules

ALL_ACKS: Final = -1
NO_ACKS: Final = 0
"""`acks` as Produce carries it. Nobody answers a request with none."""

_QUESTIONS_MAX: Final = 16
"""Requests in flight beside Produce: the questions a leader or a bootstrap broker is asked."""

_CONTROL_TIMEOUT_MAX_S: Final = 10.0


# At DEBUG it formats whole requests, records included, into the log.
logging.getLogger("kafka").setLevel(logging.INFO)


def _software_version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "0"


SOFTWARE_VERSION: Final = _software_version()


class System(Protocol):
    """Where connections have the time and their sockets from."""

    def now(self) -> float:
        """CLOCK_MONOTONIC seconds."""
        ...

    def open(self, family: int) -> socket.socket:
        """A stream socket of this family.

        Raises:
            OSError: there is none to be had.
        """
        ...


class _OperatingSystem:
    """The real one."""

    def now(self) -> float:
        return monotonic()

    def open(self, family: int) -> socket.socket:
        # Sockets of Python are close-on-exec from the start.
        return socket.socket(family, socket.SOCK_STREAM)


OPERATING_SYSTEM: Final[System] = _OperatingSystem()


class SocketOptions(NamedTuple):
    """What is set on each socket before it connects. -1 leaves a buffer's size to the kernel."""

    reset_on_close: bool = False
    """SO_LINGER {1, 0}: bytes of a dead connection do not arrive later (SOC-1)."""
    user_timeout_ms: int = 0
    """TCP_USER_TIMEOUT; 0 leaves it to the kernel."""
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Security(NamedTuple):
    """How connections are protected and say who they are. Best made once per process, for all of them: files are read and
    tokens fetched once then."""

    tls: TlsContexts | None = None
    """None: in the clear."""
    sasl: SaslRules | None = None
    """None: the broker asks for nothing, or the certificate says it."""


NO_SECURITY: Final = Security()


class ConnectionOptions(NamedTuple):
    """What a connection is given by its owner."""

    client_id: str
    limits: ConnectionLimits
    sockets: SocketOptions
    system: System = OPERATING_SYSTEM
    security: Security = NO_SECURITY


def security_of(kafka: SecuritySettings) -> Security:
    """What the settings ask for. Options that are given none make their own."""
    return Security(TlsContexts(tls_rules(kafka)) if kafka.uses_tls else None, sasl_rules(kafka))


def produce_options(
    kafka: ProducerSettings, *, acks: int = ALL_ACKS, security: Security | None = None
) -> ConnectionOptions:
    """For connections that carry Produce: SOC-1, and no more requests in flight than the setting.

    Without acknowledgements what the kernel has taken counts as delivered, and a reset would throw it away.
    """
    sockets = SocketOptions(
        acks != NO_ACKS, kafka.request_timeout_ms, kafka.send_buffer_bytes, kafka.receive_buffer_bytes
    )
    # Beside the Produce requests: the questions the leader is asked on the same connection.
    in_flight_max = kafka.max_in_flight_requests_per_connection + _QUESTIONS_MAX
    return ConnectionOptions(
        kafka.client_id, _limits(kafka, in_flight_max), sockets, security=security or security_of(kafka)
    )


def control_options(kafka: ProducerSettings, *, security: Security | None = None) -> ConnectionOptions:
    """For the router's own connections, which carry nothing that may be appended."""
    limits = _limits(kafka, _QUESTIONS_MAX)
    # A stopped broker must not keep the news of a new leader from us for as long as an append may take.
    limits = limits._replace(request_timeout_s=min(limits.request_timeout_s, _CONTROL_TIMEOUT_MAX_S))
    sockets = SocketOptions(user_timeout_ms=kafka.request_timeout_ms)
    return ConnectionOptions(kafka.client_id, limits, sockets, security=security or security_of(kafka))


def _limits(kafka: ProducerSettings, in_flight_max: int) -> ConnectionLimits:
    return ConnectionLimits(
        request_timeout_s=kafka.request_timeout_ms / 1000,
        setup_timeout_s=kafka.socket_connection_setup_timeout_ms / 1000,
        setup_timeout_max_s=kafka.socket_connection_setup_timeout_max_ms / 1000,
        reconnect=Backoff(kafka.reconnect_backoff_ms / 1000, kafka.reconnect_backoff_max_ms / 1000),
        idle_s=kafka.connections_max_idle_ms / 1000,
        in_flight_max=in_flight_max,
    )


def set_options(opened: socket.socket, options: SocketOptions) -> None:
    """Before the socket connects: what is set later does not hold for the first bytes."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.user_timeout_ms:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, options.user_timeout_ms)
    if options.reset_on_close:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if options.send_buffer_bytes >= 0:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
    if options.receive_buffer_bytes >= 0:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
