"""One connection to one broker, as decisions: its states, what is in flight, what is due when. No sockets here; `producer/network/connection.py` moves the bytes.

The object outlives the socket: after the end of a connection it may connect again, no sooner than its backoff allows.
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
"""The last eight are kept for the exchanges of an authentication, as other clients do: traces stay comparable."""


class ConnectionState(Enum):
    """Where a connection stands."""

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
    # The owner wants it; it begins with the next round of the loop, or when the backoff allows.
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
    # The peer's certificate is seen before it is told anything.
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
    # The session ends soon: what is in flight is waited for, and nothing new goes out (KIP-368).
    ConnectionState.DRAINING: frozenset(
        {ConnectionState.REAUTHENTICATING, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    ConnectionState.REAUTHENTICATING: frozenset(
        {ConnectionState.READY, ConnectionState.DISCONNECTED, ConnectionState.CLOSED}
    ),
    # The owner let go of it for good.
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
"""There is a socket, or there soon is."""

_AUTHENTICATING: Final = (ConnectionState.AUTHENTICATING, ConnectionState.REAUTHENTICATING)
_REFUSED_WAIT_S: Final = 1.0
"""At least so long after a login that failed: a wrong password must not become a storm of them, nor lock the account."""
_RENEW_FROM: Final = 0.85
_RENEW_SPREAD: Final = 0.1
"""Sessions are renewed when 85 to 95 % of their life are over, as other clients do: not all at once."""
_RENEW_MIN_S: Final = 1.0
"""Sooner than that nothing is renewed, however short the broker says a session is."""


_SETUP_TIMED: Final = ESTABLISHING | {ConnectionState.REAUTHENTICATING}


class Due(Enum):
    """What a deadline asks the shell to do."""

    CONNECT = auto()
    SETUP_TIMED_OUT = auto()
    REQUEST_TIMED_OUT = auto()
    REAUTHENTICATE = auto()
    IDLE = auto()


class ConnectionLimits(NamedTuple):
    """Every bound of a connection. Times in seconds."""

    request_timeout_s: float = 30.0
    setup_timeout_s: float = 10.0
    setup_timeout_max_s: float = 30.0
    reconnect: Backoff = Backoff(0.05, 1.0)
    idle_s: float = 540.0
    in_flight_max: int = 64
    answer_bytes_max: int = 100_000_000


def login_wait_s(reconnect: Backoff, failures: int, chance: float) -> float:
    """Seconds to wait after a login that failed, and so many before it: at least one, growing like any other backoff."""
    growing = Backoff(_REFUSED_WAIT_S, max(_REFUSED_WAIT_S, reconnect.max_s))
    return max(_REFUSED_WAIT_S, growing.wait_s(failures, chance))


class UnansweredRequest(NamedTuple, Generic[TagT]):
    """A request without its answer yet. `ends_at` is the stream position after its last byte."""

    correlation_id: int
    tag: TagT
    sent_at: float
    deadline: float
    ends_at: int
    expects_answer: bool


class ConnectionStateMachine(Generic[TagT]):
    """The decisions of one connection. Every method that needs the time is given it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.state = ConnectionState.DISCONNECTED
        self.incarnation = 0
        """Counts the times READY was reached: an answer of another incarnation says nothing about this one."""
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        self.throttled_until = 0.0
        self.round_trip_us = 0
        self.last_error = ""
        """Why the last connection ended, or did not come to be; kept until READY."""
        self.authentication_failed = False
        """It was for want of belief: of theirs in us, or of ours in them; kept until READY."""
        self.failed_during_login = False
        """It was `authentication_failed`, or ended in the middle of a login, as some failed ones do; kept until READY."""
        self._in_flight: deque[UnansweredRequest[TagT]] = deque()
        self._correlation_id = 0
        self._written = 0
        self._failed_attempts = 0
        self._failed_setups = 0
        self._retry_at = 0.0
        self._attempted_at = NEVER
        self._setup_deadline = 0.0
        self._setup_timeout_s = limits.setup_timeout_s
        self._used_at = 0.0
        self._failed_logins = 0
        self._renew_at = math.inf

    # --- from nothing to ready ---------------------------------------------------------------------------------------

    def request_connect(self) -> None:
        """The owner wants the connection: `due` says CONNECT when it may begin. Nothing changes where it is on its way."""
        if self.state is ConnectionState.DISCONNECTED:
            self._move(ConnectionState.WAITING)

    def connecting(self, now: float) -> None:
        """An address of the name is known and tried now. The set-up time begins again: looking the name up is not in it."""
        self._move(ConnectionState.CONNECTING)
        self._setup_deadline = now + self._setup_timeout_s

    def established(self, *, encrypts: bool = False) -> None:
        """The socket is connected; TLS comes first where it `encrypts`, else ApiVersions."""
        self._failed_setups = 0
        self._move(ConnectionState.ENCRYPTING if encrypts else ConnectionState.CHECKING_VERSIONS)

    def encrypted(self) -> None:
        """Nobody listens any more, and the peer is who it should be."""
        self._move(ConnectionState.CHECKING_VERSIONS)

    def versions_received(
        self,
        versions: Mapping[int, tuple[int, int]],
        now: float,
        features: Mapping[str, int] | None = None,
        *,
        authenticates: bool = False,
    ) -> None:
        """The broker told its ranges of versions by API key, and the cluster's features: requests may be sent, unless it
        `authenticates` first."""
        self.versions = versions
        self.features = {} if features is None else features
        if authenticates:
            self._move(ConnectionState.AUTHENTICATING)
        else:
            self._become_ready(now)

    def authenticated(self, session_lifetime_ms: int, now: float, chance: float) -> bool:
        """The broker knows who we are, for so long; 0: for good. True: that made the connection ready; False: it was so before."""
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
        """The socket is gone, or never came to be; `authentication_failed`: for want of belief. Returns what was in flight, oldest first;
        none of it was answered."""
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
        """The owner lets go of it. Returns what was in flight, oldest first."""
        if self.state is not ConnectionState.CLOSED:
            self._move(ConnectionState.CLOSED)
        return self._forget()

    def address_changed(self) -> None:
        """The node has another address: what failed before says nothing about it."""
        self._failed_attempts = 0
        self._failed_setups = 0
        self._failed_logins = 0
        self._retry_at = 0.0
        self._attempted_at = NEVER

    # --- requests and answers ----------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def can_send(self, now: float) -> bool:
        """A request may be sent: ready, not throttled, and the limit of requests in flight not reached."""
        return self._is_open(now) and len(self._in_flight) < self.limits.in_flight_max

    def readiness(self, now: float) -> ConnectionReadiness:
        """How it stands for who chooses among several."""
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
        """A request of `size` bytes was handed to the transport. Its time runs from now."""
        assert self.state is ConnectionState.READY, self.state
        assert len(self._in_flight) < self.limits.in_flight_max, "more requests in flight than allowed"
        timeout = self.limits.request_timeout_s if timeout_s is None else timeout_s
        self._written += size
        self._in_flight.append(
            UnansweredRequest(correlation_id, tag, now, now + timeout, self._written, expects_answer)
        )
        self._used_at = now

    def has_sent_unanswered(self, bytes_left: int) -> bool:
        """The oldest request expects no answer and is written whole; `bytes_left` of what was sent are not."""
        if not self._in_flight or self._in_flight[0].expects_answer:
            return False
        return self._in_flight[0].ends_at <= self._written - bytes_left

    def expect(self, correlation_id: int, bytes_left: int) -> None:
        """An answer came; `bytes_left` of what was sent are not written.

        Raises StreamError where it is not the answer to the oldest request, or that one was not even written whole.
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
        """The answer that `expect` let pass could be read. Returns the tag of its request."""
        oldest = self._in_flight.popleft()
        self._used_at = now
        self._measure(now - oldest.sent_at)
        return oldest.tag

    def throttle(self, throttle_ms: int, now: float) -> None:
        """The broker asks for silence of so long; what is in flight gets that much more time."""
        if throttle_ms <= 0:
            return
        self.throttled_until = max(self.throttled_until, now + throttle_ms / 1000)
        extra = throttle_ms / 1000
        self._in_flight = deque(waiting._replace(deadline=waiting.deadline + extra) for waiting in self._in_flight)

    # --- time --------------------------------------------------------------------------------------------------------

    def due(self, now: float, chance: float) -> Due | None:
        """What the time demands, one thing at a time; ask until None. CONNECT has already moved to RESOLVING, REAUTHENTICATE
        to REAUTHENTICATING."""
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
        """When to ask `due` again, if nothing else happens. A throttle's end counts: `can_send` changes then."""
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
            # A request may take exactly its time: it is late from the moment behind its deadline on.
            first = math.nextafter(first, math.inf)
        elif self.state is ConnectionState.DRAINING:
            return self.throttled_until
        else:
            first = self._used_at + self.limits.idle_s
        if self.state is ConnectionState.READY:
            first = min(first, self._renew_at)
        return min(first, self.throttled_until) if self.throttled_until else first

    def _become_ready(self, now: float) -> None:
        """Only this ends the backoff."""
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
