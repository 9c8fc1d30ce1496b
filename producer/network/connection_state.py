"""State machine of one broker connection: states, requests in flight and deadlines. Pure; `connection.py` does the I/O.

The object outlives the socket: after a connection ends it can reconnect once its backoff allows.
"""

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from ..protocol.backoff import Backoff
from ..protocol.framing import StreamError
from .least_loaded import NEVER, ConnectionReadiness

TagT = TypeVar("TagT")

CORRELATION_IDS: Final = (1 << 31) - 8
"""The last eight ids are reserved for authentication, as in other clients, so that traces stay comparable."""


class ConnectionState(Enum):
    """The states of a connection."""

    DISCONNECTED = auto()
    WAITING = auto()
    RESOLVING = auto()
    CONNECTING = auto()
    ENCRYPTING = auto()
    CHECKING_VERSIONS = auto()
    AUTHENTICATING = auto()
    READY = auto()
    DRAINING = auto()
    REAUTHENTICATING = auto()
    CLOSED = auto()


NEXT: Final[dict[ConnectionState, frozenset[ConnectionState]]] = {
    ConnectionState.DISCONNECTED: frozenset({ConnectionState.WAITING, ConnectionState.CLOSED}),
    # Requested by the owner. Starts in the next round of the loop, or when the backoff ends.
    ConnectionState.WAITING: frozenset({ConnectionState.RESOLVING, ConnectionState.CLOSED}),
    ConnectionState.RESOLVING: frozenset(
        {ConnectionState.CONNECTING, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    ConnectionState.CONNECTING: frozenset(
        {
            ConnectionState.ENCRYPTING,
            ConnectionState.CHECKING_VERSIONS,
            ConnectionState.DISCONNECTED,
            ConnectionState.CLOSED,
        }
    ),
    # The peer's certificate is checked before anything is sent to it.
    ConnectionState.ENCRYPTING: frozenset(
        {ConnectionState.CHECKING_VERSIONS, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    ConnectionState.CHECKING_VERSIONS: frozenset(
        {ConnectionState.AUTHENTICATING, ConnectionState.READY, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    ConnectionState.AUTHENTICATING: frozenset(
        {ConnectionState.READY, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    ConnectionState.READY: frozenset({ConnectionState.DRAINING, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}),
    # The session ends soon: wait for the requests in flight and send nothing new (KIP-368).
    ConnectionState.DRAINING: frozenset(
        {ConnectionState.REAUTHENTICATING, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    ConnectionState.REAUTHENTICATING: frozenset(
        {ConnectionState.READY, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    # Closed by the owner.
    ConnectionState.CLOSED: frozenset(),
}

ESTABLISHING: Final = frozenset(
    {
        ConnectionState.RESOLVING,
        ConnectionState.CONNECTING,
        ConnectionState.ENCRYPTING,
        ConnectionState.CHECKING_VERSIONS,
        ConnectionState.AUTHENTICATING,
    }
)
RENEWING: Final = frozenset({ConnectionState.DRAINING, ConnectionState.REAUTHENTICATING})
OPEN: Final = ESTABLISHING | RENEWING | {ConnectionState.READY}
"""States with a socket, or shortly before one is opened."""

_AUTHENTICATING: Final = (ConnectionState.AUTHENTICATING, ConnectionState.REAUTHENTICATING)
_REFUSED_WAIT_S: Final = 1.0
"""Minimum wait after a failed login: a wrong password must not cause a storm of logins or lock the account."""
_RENEW_FROM: Final = 0.85
_RENEW_SPREAD: Final = 0.1
"""Sessions are renewed after 85 to 95 % of their lifetime, as in other clients, so that they do not renew together."""
_RENEW_MIN_S: Final = 1.0
"""Minimum time before a session is renewed, however short its lifetime."""


_SETUP_TIMED: Final = ESTABLISHING | {ConnectionState.REAUTHENTICATING}


class Due(Enum):
    """The action that `KafkaConnection` must take at a deadline."""

    CONNECT = auto()
    SETUP_TIMED_OUT = auto()
    REQUEST_TIMED_OUT = auto()
    REAUTHENTICATE = auto()
    IDLE = auto()


class ConnectionLimits(NamedTuple):
    """All limits of a connection. Times in seconds."""

    request_timeout_s: float = 30.0
    setup_timeout_s: float = 10.0
    setup_timeout_max_s: float = 30.0
    reconnect: Backoff = Backoff(0.05, 1.0)
    idle_s: float = 540.0
    in_flight_max: int = 64
    answer_bytes_max: int = 100_000_000


def login_wait_s(reconnect: Backoff, failures: int, chance: float) -> float:
    """Seconds to wait after a failed login that followed `failures` others: at least one, growing exponentially."""
    growing = Backoff(_REFUSED_WAIT_S, max(_REFUSED_WAIT_S, reconnect.max_s))
    return max(_REFUSED_WAIT_S, growing.wait_s(failures, chance))


class UnansweredRequest(NamedTuple, Generic[TagT]):
    """A request still in flight. `ends_at` is the stream position after its last byte."""

    correlation_id: int
    tag: TagT
    sent_at: float
    deadline: float
    ends_at: int
    expects_answer: bool


class ConnectionStateMachine(Generic[TagT]):
    """Decides what one connection does. Methods that need the current time take it as an argument."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.state = ConnectionState.DISCONNECTED
        self.incarnation = 0
        """How often READY was reached. A response of another incarnation does not apply to this one."""
        self.versions: Mapping[int, tuple[int, int]] = {}
        """The broker's version ranges by API key; set by `versions_received`, cleared when the connection ends."""
        self.features: Mapping[str, int] = {}
        """The cluster's features; set and cleared together with `versions`."""
        self.throttled_until = 0.0
        """Nothing is sent before this time; set by `throttle`, 0 if not throttled."""
        self.round_trip_us = 0
        self.last_error = ""
        """Why the last connection ended or could not be established; kept until READY."""
        self.authentication_failed = False
        """The last connection ended because one side did not authenticate the other; kept until READY."""
        self.failed_during_login = False
        """The last connection was `authentication_failed`, or ended during a login, as some brokers end a failed one;
        kept until READY."""
        self._in_flight: deque[UnansweredRequest[TagT]] = deque()
        """Oldest first. `sent` appends, `answered` removes the oldest, the end of the connection clears it."""
        self._correlation_id = 0
        self._written = 0
        """Total bytes passed to `sent` on this connection; `UnansweredRequest.ends_at` refers to it."""
        self._failed_attempts = 0
        self._failed_setups = 0
        self._retry_at = 0.0
        self._attempted_at = NEVER
        self._setup_deadline = 0.0
        self._setup_timeout_s = limits.setup_timeout_s
        self._used_at = 0.0
        self._failed_logins = 0
        self._renew_at = math.inf

    # --- connecting --------------------------------------------------------------------------------------------------

    def request_connect(self) -> None:
        """Request the connection: `due` returns CONNECT once it may start. No effect unless DISCONNECTED."""
        if self.state is ConnectionState.DISCONNECTED:
            self._move(ConnectionState.WAITING)

    def connecting(self, now: float) -> None:
        """An attempt to connect to a resolved address starts. Restarts the setup timeout, which excludes the lookup."""
        self._move(ConnectionState.CONNECTING)
        self._setup_deadline = now + self._setup_timeout_s

    def established(self, *, encrypts: bool = False) -> None:
        """The socket is connected. Next comes TLS if it `encrypts`, else ApiVersions."""
        self._failed_setups = 0
        self._move(ConnectionState.ENCRYPTING if encrypts else ConnectionState.CHECKING_VERSIONS)

    def encrypted(self) -> None:
        """The TLS handshake is complete and the peer is verified."""
        self._move(ConnectionState.CHECKING_VERSIONS)

    def versions_received(
        self,
        versions: Mapping[int, tuple[int, int]],
        now: float,
        features: Mapping[str, int] | None = None,
        *,
        authenticates: bool = False,
    ) -> None:
        """Store the broker's version ranges by API key and the cluster's features. The connection becomes ready, unless
        it `authenticates` first."""
        self.versions = versions
        self.features = {} if features is None else features
        if authenticates:
            self._move(ConnectionState.AUTHENTICATING)
        else:
            self._become_ready(now)

    def authenticated(self, session_lifetime_ms: int, now: float, chance: float) -> bool:
        """Authentication succeeded. A `session_lifetime_ms` of 0 never expires. Returns True if this made the
        connection ready, False after a re-authentication."""
        renewed = self.state is ConnectionState.REAUTHENTICATING
        if renewed:
            self._move(ConnectionState.READY)
        else:
            self._become_ready(now)
        part = _RENEW_FROM + _RENEW_SPREAD * chance
        lifetime_s = session_lifetime_ms / 1000
        self._renew_at = now + max(lifetime_s * part, _RENEW_MIN_S) if lifetime_s > 0 else math.inf
        return not renewed

    def ended(self, now: float, chance: float, reason: str, *, refused: bool = False) -> list[TagT]:
        """The connection ended or could not be established; `refused`: authentication failed. Returns the tags in
        flight, oldest first; none was answered."""
        if self.state in (ConnectionState.RESOLVING, ConnectionState.CONNECTING):
            self._failed_setups += 1
        self.failed_during_login = refused or self.state in _AUTHENTICATING
        self._move(ConnectionState.DISCONNECTED)
        self.last_error = reason
        self.authentication_failed = refused
        self._attempted_at = now
        wait_s = self.limits.reconnect.wait_s(self._failed_attempts, chance)
        if self.failed_during_login:
            wait_s = max(wait_s, login_wait_s(self.limits.reconnect, self._failed_logins, chance))
            self._failed_logins += 1
        self._retry_at = now + wait_s
        self._failed_attempts += 1
        return self._forget()

    def close(self) -> list[TagT]:
        """Close permanently. Returns the tags in flight, oldest first."""
        if self.state is not ConnectionState.CLOSED:
            self._move(ConnectionState.CLOSED)
        return self._forget()

    def address_changed(self) -> None:
        """The node's address changed: earlier failures do not apply to the new one."""
        self._failed_attempts = 0
        self._failed_setups = 0
        self._failed_logins = 0
        self._retry_at = 0.0
        self._attempted_at = NEVER

    # --- requests and responses --------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def can_send(self, now: float) -> bool:
        """Whether a request may be sent: ready, not throttled, and fewer than `in_flight_max` requests in flight."""
        return self._is_open(now) and len(self._in_flight) < self.limits.in_flight_max

    def readiness(self, now: float) -> ConnectionReadiness:
        """The connection's readiness, for choosing among several nodes."""
        return ConnectionReadiness(
            usable=self.can_send(now),
            connected=self._is_open(now),
            connecting=self.state in ESTABLISHING or self.state in RENEWING,
            may_connect=self.state in (ConnectionState.DISCONNECTED, ConnectionState.WAITING) and now >= self._retry_at,
            in_flight=len(self._in_flight),
            last_attempt=self._attempted_at,
        )

    def _is_open(self, now: float) -> bool:
        return self.state is ConnectionState.READY and now >= self.throttled_until

    def next_correlation_id(self) -> int:
        """Reserve the id of the next request."""
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_IDS
        return self._correlation_id

    def sent(
        self,
        correlation_id: int,
        tag: TagT,
        size: int,
        now: float,
        *,
        expects_answer: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        """A request of `size` bytes was handed to the transport. Its timeout starts at `now`."""
        assert self.state is ConnectionState.READY, self.state
        assert len(self._in_flight) < self.limits.in_flight_max, "more requests in flight than allowed"
        timeout = self.limits.request_timeout_s if timeout_s is None else timeout_s
        self._written += size
        self._in_flight.append(
            UnansweredRequest(correlation_id, tag, now, now + timeout, self._written, expects_answer)
        )
        self._used_at = now

    def has_sent_unanswered(self, bytes_left: int) -> bool:
        """Whether the oldest request expects no response and is fully written. `bytes_left`: bytes not yet written."""
        if not self._in_flight or self._in_flight[0].expects_answer:
            return False
        return self._in_flight[0].ends_at <= self._written - bytes_left

    def expect(self, correlation_id: int, bytes_left: int) -> None:
        """Check that a received response belongs to the oldest request. `bytes_left`: bytes not yet written.

        Raises StreamError if it does not, or if that request is not fully written.
        """
        if not self._in_flight:
            raise StreamError(f"an answer (correlation id {correlation_id}) without a request")
        oldest = self._in_flight[0]
        if oldest.correlation_id != correlation_id or not oldest.expects_answer:
            raise StreamError(
                f"an answer has correlation id {correlation_id}, the oldest request {oldest.correlation_id}"
            )
        if oldest.ends_at > self._written - bytes_left:
            raise StreamError(f"request {correlation_id} was answered before it was sent whole")

    def answered(self, now: float) -> TagT:
        """The response that `expect` accepted was decoded. Returns the tag of its request."""
        oldest = self._in_flight.popleft()
        self._used_at = now
        self._measure(now - oldest.sent_at)
        return oldest.tag

    def throttle(self, throttle_ms: int, now: float) -> None:
        """Send nothing for `throttle_ms`, as the broker asks. Extends the deadlines of requests in flight as much."""
        if throttle_ms <= 0:
            return
        self.throttled_until = max(self.throttled_until, now + throttle_ms / 1000)
        extra = throttle_ms / 1000
        self._in_flight = deque(waiting._replace(deadline=waiting.deadline + extra) for waiting in self._in_flight)

    # --- time --------------------------------------------------------------------------------------------------------

    def due(self, now: float, chance: float) -> Due | None:
        """The next action that is due; call until None. Returning CONNECT has moved to RESOLVING, returning
        REAUTHENTICATE to REAUTHENTICATING."""
        if self.throttled_until and now >= self.throttled_until:
            self.throttled_until = 0.0
        if self.state is ConnectionState.WAITING and now >= self._retry_at:
            self._begin(now, chance)
            return Due.CONNECT
        if self.state in _SETUP_TIMED and now >= self._setup_deadline:
            return Due.SETUP_TIMED_OUT
        if self.state is ConnectionState.READY or self.state is ConnectionState.DRAINING:
            return self._due_while_open(now)
        return None

    def _due_while_open(self, now: float) -> Due | None:
        for waiting in self._in_flight:
            if now > waiting.deadline:
                return Due.REQUEST_TIMED_OUT
        if self.state is ConnectionState.READY:
            if not self._in_flight and now >= self._used_at + self.limits.idle_s:
                return Due.IDLE
            if now < self._renew_at:
                return None
            self._move(ConnectionState.DRAINING)
        if self._in_flight or now < self.throttled_until:
            return None
        self._move(ConnectionState.REAUTHENTICATING)
        self._setup_deadline = now + self.limits.setup_timeout_s
        return Due.REAUTHENTICATE

    def next_deadline(self) -> float | None:
        """When to call `due` again if nothing else happens. Includes the end of a throttle, when `can_send` changes."""
        if self.state is ConnectionState.WAITING:
            return self._retry_at
        if self.state in _SETUP_TIMED:
            return self._setup_deadline
        if self.state is not ConnectionState.READY and self.state is not ConnectionState.DRAINING:
            return None
        first = math.inf
        for waiting in self._in_flight:
            first = min(first, waiting.deadline)
        if self._in_flight:
            # A request times out after its deadline, not at it.
            first = math.nextafter(first, math.inf)
        elif self.state is ConnectionState.DRAINING:
            return self.throttled_until
        else:
            first = self._used_at + self.limits.idle_s
        if self.state is ConnectionState.READY:
            first = min(first, self._renew_at)
        return min(first, self.throttled_until) if self.throttled_until else first

    def _become_ready(self, now: float) -> None:
        """Move to READY. Only this resets the backoff."""
        self._move(ConnectionState.READY)
        self.incarnation += 1
        self._failed_attempts = 0
        self._failed_logins = 0
        self._used_at = now
        self.last_error = ""
        self.authentication_failed = self.failed_during_login = False

    def _begin(self, now: float, chance: float) -> None:
        self._move(ConnectionState.RESOLVING)
        self._attempted_at = now
        growing = Backoff(self.limits.setup_timeout_s, self.limits.setup_timeout_max_s)
        self._setup_timeout_s = growing.wait_s(self._failed_setups, chance)
        self._setup_deadline = now + self._setup_timeout_s

    def _forget(self) -> list[TagT]:
        lost = [waiting.tag for waiting in self._in_flight]
        self._in_flight.clear()
        self.versions = {}
        self.features = {}
        self.throttled_until = 0.0
        self._renew_at = math.inf
        self._written = 0
        return lost

    def _measure(self, seconds: float) -> None:
        sample = int(seconds * 1_000_000)
        self.round_trip_us = sample if self.round_trip_us == 0 else (7 * self.round_trip_us + sample) // 8

    def _move(self, state: ConnectionState) -> None:
        assert state in NEXT[self.state], f"{self.state.name} to {state.name}"
        self.state = state
