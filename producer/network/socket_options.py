"""Options of connections to brokers: limits and security from the settings, and socket options."""

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
"""Values of `acks` in Produce. Brokers do not respond to a request with `NO_ACKS`."""

_QUESTIONS_MAX: Final = 16
"""Maximum requests in flight other than Produce: queries to a leader or a bootstrap broker."""

_CONTROL_TIMEOUT_MAX_S: Final = 10.0


# At DEBUG the library logs whole requests, records included.
logging.getLogger("kafka").setLevel(logging.INFO)


def _software_version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "0"


SOFTWARE_VERSION: Final = _software_version()


class System(Protocol):
    """Source of the time and of sockets."""

    def now(self) -> float:
        """CLOCK_MONOTONIC seconds."""
        ...

    def open(self, family: int) -> socket.socket:
        """A stream socket of this family.

        Raises:
            OSError: no socket is available.
        """
        ...


class _OperatingSystem:
    """The real clock and real sockets."""

    def now(self) -> float:
        return monotonic()

    def open(self, family: int) -> socket.socket:
        # Python creates sockets close-on-exec.
        return socket.socket(family, socket.SOCK_STREAM)


OPERATING_SYSTEM: Final[System] = _OperatingSystem()


class SocketOptions(NamedTuple):
    """Options set on each socket before it connects. A buffer size of -1 keeps the kernel's default."""

    reset_on_close: bool = False
    """SO_LINGER {1, 0}: bytes of a closed connection cannot arrive later (SOC-1)."""
    user_timeout_ms: int = 0
    """TCP_USER_TIMEOUT; 0 keeps the kernel's default."""
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


class Security(NamedTuple):
    """How connections are encrypted and authenticated. Create it once per process, so that files are read and tokens
    fetched once for all connections."""

    tls: TlsContexts | None = None
    """None: plaintext."""
    sasl: SaslRules | None = None
    """None: no SASL; the broker requires no authentication or uses the client certificate."""


NO_SECURITY: Final = Security()


class ConnectionOptions(NamedTuple):
    """Options that the owner passes to a connection."""

    client_id: str
    limits: ConnectionLimits
    sockets: SocketOptions
    system: System = OPERATING_SYSTEM
    security: Security = NO_SECURITY


def security_of(kafka: SecuritySettings) -> Security:
    """The security that the settings require. `produce_options` and `control_options` create their own by default."""
    return Security(TlsContexts(tls_rules(kafka)) if kafka.uses_tls else None, sasl_rules(kafka))


def produce_options(
    kafka: ProducerSettings, *, acks: int = ALL_ACKS, security: Security | None = None
) -> ConnectionOptions:
    """Options for Produce connections: sockets are reset on close (SOC-1), and requests in flight are limited by the
    setting.

    With `NO_ACKS` the socket is not reset: bytes that the kernel has taken count as delivered, and a reset would
    discard them.
    """
    sockets = SocketOptions(
        acks != NO_ACKS, kafka.request_timeout_ms, kafka.send_buffer_bytes, kafka.receive_buffer_bytes
    )
    # Queries to the leader use the same connection as Produce.
    in_flight_max = kafka.max_in_flight_requests_per_connection + _QUESTIONS_MAX
    return ConnectionOptions(
        kafka.client_id, _limits(kafka, in_flight_max), sockets, security=security or security_of(kafka)
    )


def control_options(kafka: ProducerSettings, *, security: Security | None = None) -> ConnectionOptions:
    """Options for the router's control connections, which carry no Produce requests."""
    limits = _limits(kafka, _QUESTIONS_MAX)
    # A stopped broker must not delay the discovery of a new leader by the timeout of an append.
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
    """Apply the options. Call before the socket connects, so that they hold from the first byte on."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.user_timeout_ms:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, options.user_timeout_ms)
    if options.reset_on_close:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if options.send_buffer_bytes >= 0:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
    if options.receive_buffer_bytes >= 0:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
