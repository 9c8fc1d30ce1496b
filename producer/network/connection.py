"""Connections to brokers: carries out the decisions of a `ConnectionStateMachine`.

The router's control connections and the shards' Produce connections differ only in their options (`socket_options.py`).
Everything runs on the loop's thread, except blocking work (`resolver.py`). `channel.py` moves the bytes.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from ...runtime.loop import Loop
from ..protocol.api_versions import (
    FIRST_VERSION,
    ApiVersionsDowngrade,
    NodeApiVersions,
    decode_api_versions_response,
    encode_api_versions_request,
)
from ..protocol.framing import BytesLike, StreamError, correlation_id_of
from ..protocol.responses import ExpectedResponse, KafkaRequest, ResponseOrBytes, decode_response, expected_response
from ..protocol.throttling import should_client_throttle
from ..security.sasl import Authenticated, AuthenticationFailed
from .addresses import Address, AddressRotation
from .channel import Channel, ChannelEvents, Fault
from .connection_state import OPEN, ConnectionState, ConnectionStateMachine, Due
from .least_loaded import ConnectionReadiness
from .resolver import Resolver
from .sasl_client import SaslClient
from .socket_options import SOFTWARE_VERSION, ConnectionOptions
from .tls import TlsError
from .traffic import UNCOUNTED, Traffic

TagT = TypeVar("TagT")

ANY_VERSION: Final = 1 << 15


class ConnectionOwner(Protocol[TagT]):
    """Receives a connection's events. Every method may send on, disconnect or close the connection it is given."""

    def connection_ready(self, connection: "KafkaConnection[TagT]") -> None:
        """The connection is ready for requests; `incarnation` has a new value."""

    def connection_answered(self, connection: "KafkaConnection[TagT]", tag: TagT, answer: ResponseOrBytes) -> None:
        """The response to the request with `tag`: decoded, or for `send_raw` the bytes after the correlation id. Empty
        once a request that expects no response is written. The transport has released the request's buffers."""

    def connection_lost(self, connection: "KafkaConnection[TagT]", tags: list[TagT], reason: str) -> None:
        """The connection ended or could not be established. `tags`, oldest first, get no response; they may or may not
        have been written. The transport has released all buffers. `connect` reconnects after the backoff."""


class KafkaConnection(Generic[TagT]):
    """A connection to one broker that its owner can reconnect as often as needed.

    `connect` requests the connection. Call `tick` and `next_deadline` in every round of the loop. Requests are sent and
    answered in order. `disconnect` drops the socket; `close` ends the object. `rng` returns a number in [0, 1) at every
    call, for the jitter of backoffs.
    """

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        host: str,
        port: int,
        *,
        options: ConnectionOptions,
        owner: ConnectionOwner[TagT],
        rng: Callable[[], float],
        turns: AddressRotation | None = None,
        traffic: Traffic = UNCOUNTED,
    ) -> None:
        """`turns`: the address rotation of an earlier connection to the same host and port, to continue."""
        self.host = host
        self.port = port
        self._loop = loop
        self._resolver = resolver
        self._options = options
        self._clock = options.system.now
        self._owner = owner
        self._rng = rng
        self._traffic = traffic
        self._core: ConnectionStateMachine[TagT] = ConnectionStateMachine(options.limits)
        events = ChannelEvents(self._connected, self._opened, self._response_received, self._on_activity)
        self._channel: Final = Channel(loop, options, traffic, events)
        self._login: Final = self._make_login()
        self._login_began = 0.0
        self._addresses = AddressRotation() if turns is None else turns
        self._lookup: int | None = None
        self._api_versions_version = FIRST_VERSION
        self._api_versions_id = 0
        # By correlation id. Requests of `send_raw` are not in here.
        self._requests: dict[int, ExpectedResponse] = {}

    # --- queries for the owner ---------------------------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        return self._core.state

    @property
    def last_error(self) -> str:
        """Why the last connection ended; empty once the connection is ready again."""
        return self._core.last_error

    @property
    def authentication_failed(self) -> bool:
        """The last connection failed authentication: TLS, SASL, or unusable local files for them."""
        return self._core.authentication_failed

    @property
    def failed_during_login(self) -> bool:
        """The last connection was `authentication_failed` or ended during a login: the next one waits longer."""
        return self._core.failed_during_login

    @property
    def ready(self) -> bool:
        return self._core.state is ConnectionState.READY and self._channel.fault is None

    @property
    def incarnation(self) -> int:
        """Incremented each time the connection becomes ready; 0 before the first time."""
        return self._core.incarnation

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._core.in_flight

    @property
    def pending_bytes(self) -> int:
        """Queued bytes that the kernel has not taken yet, without TLS overhead."""
        return self._channel.pending_bytes

    @property
    def round_trip_us(self) -> int:
        """Time from sending a request to its response, smoothed over about eight requests; 0 before the first."""
        return self._core.round_trip_us

    @property
    def throttled_until(self) -> float:
        """Nothing is sent before this time (KIP-219). A time in the past means not throttled."""
        return self._core.throttled_until

    def readiness(self, now: float) -> ConnectionReadiness:
        """The connection's readiness, for choosing among several nodes."""
        return ConnectionReadiness() if self._channel.fault is not None else self._core.readiness(now)

    def can_send(self, now: float) -> bool:
        """Whether a request may be sent now."""
        return self._channel.fault is None and self._core.can_send(now)

    def version_of(self, api_key: int, least: int, greatest: int) -> int | None:
        """The greatest version of an API, within `least` to `greatest`, that the broker supports; None if none."""
        offered = self._core.versions.get(api_key)
        if offered is None:
            return None
        chosen = min(greatest, offered[1])
        return chosen if chosen >= max(least, offered[0]) else None

    def feature(self, name: str) -> int:
        """Finalized level of a cluster feature, as reported on this connection; 0 if it is off or not reported."""
        return self._core.features.get(name, 0)

    def connect(self) -> None:
        """Request the connection: the first `tick` after the backoff starts it. No effect while connecting or ready."""
        self._core.request_connect()

    def move_to(self, host: str, port: int) -> None:
        """Change the node's address. An open connection to the old address is dropped."""
        if (host, port) == (self.host, self.port):
            return
        self.host, self.port = host, port
        if self._core.state not in (ConnectionState.DISCONNECTED, ConnectionState.WAITING, ConnectionState.CLOSED):
            self._end(f"the node moved to {host}:{port}")
        self._core.address_changed()
        self._addresses = AddressRotation()

    def next_correlation_id(self) -> int:
        """Reserve the correlation id of a `send_raw` request. Send the requests in the order of their ids."""
        return self._core.next_correlation_id()

    def send_raw(
        self,
        buffers: Sequence[BytesLike],
        size: int,
        correlation_id: int,
        tag: TagT,
        *,
        expects_answer: bool = True,
        now: float | None = None,
    ) -> None:
        """Send a request framed by the caller (`size` bytes, length field included) in one gather write.

        Call only when `can_send` is true. The buffers must not change until the tag is answered or lost.
        """
        now = self._clock() if now is None else now
        self._core.sent(correlation_id, tag, size, now, expects_answer=expects_answer)
        self._queue(buffers, size, now)

    def send(
        self, request: KafkaRequest, tag: TagT, *, least: int = 0, greatest: int = ANY_VERSION, now: float | None = None
    ) -> int | None:
        """Send a request of `kafka.protocol` in the greatest common version within `least` to `greatest`.

        Call only when `can_send` is true. Returns the version; None if there is no common one, and nothing was sent.
        """
        assert self._core.state is ConnectionState.READY, self._core.state
        known = min(greatest, request.max_version)
        chosen = self.version_of(request.API_KEY, max(least, request.valid_versions[0]), known)
        if chosen is None:
            return None
        correlation_id = self._core.next_correlation_id()
        request.API_VERSION = chosen
        request.with_header(correlation_id=correlation_id, client_id=self._options.client_id)
        framed = request.encode(header=True, framed=True)
        if request.expect_response():
            self._requests[correlation_id] = expected_response(request)
        at = self._clock() if now is None else now
        self._core.sent(correlation_id, tag, len(framed), at, expects_answer=request.expect_response())
        self._queue([framed], len(framed), at)
        return chosen

    def throttle(self, api_key: int, version: int, throttle_ms: int, now: float) -> None:
        """Apply the throttle time of a response that was returned as bytes."""
        self._traffic.answered(throttle_ms, now)
        if should_client_throttle(api_key, version):
            self._core.throttle(throttle_ms, now)

    def disconnect(self, reason: str) -> None:
        """Drop the socket. Calls the owner's `connection_lost`."""
        if self._core.state in OPEN:
            self._end(reason)

    def close(self) -> list[TagT]:
        """Close permanently. Returns the tags in flight, oldest first; the owner gets no further callbacks."""
        self._release_resources()
        return self._core.close()

    def tick(self, now: float) -> None:
        """Do what is due. Owner callbacks come from here, `disconnect`, `move_to` and loop events, not from `send`."""
        if self._channel.fault is not None:
            self._end_with_fault(self._channel.fault)
        self._complete_unanswered(now)
        while (due := self._core.due(now, self._rng())) is not None:
            self._act(due, now)

    def next_deadline(self) -> float | None:
        """When to call `tick` next, in CLOCK_MONOTONIC seconds; a past time means at once, None not before an event."""
        if self._channel.fault is not None or self._core.has_sent_unanswered(self._channel.pending_bytes):
            return 0.0
        return self._core.next_deadline()

    # --- connecting --------------------------------------------------------------------------------------------------

    def _act(self, due: Due, now: float) -> None:
        match due:
            case Due.CONNECT:
                self._api_versions_version = FIRST_VERSION
                self._try_address(now)
            case Due.SETUP_TIMED_OUT:
                self._end(f"{_DOING[self._core.state]} {self.host}:{self.port} took too long")
            case Due.REQUEST_TIMED_OUT:
                self._end(f"{self.host}:{self.port} did not answer within {self._options.limits.request_timeout_s:g} s")
            case Due.REAUTHENTICATE:
                self._log_in()
            case Due.IDLE:
                self._end("unused for long")

    def _try_address(self, now: float) -> None:
        address = self._addresses.next_address()
        if address is None:
            self._lookup = self._resolver.resolve(self.host, self.port, self._resolved)
            return
        self._core.connecting(now)
        try:
            self._channel.open(self.host, address)
        except TlsError as error:
            self._end(str(error), refused=True)
        except OSError as error:
            self._end_with_fault(Fault(error.strerror or str(error)))

    def _resolved(self, addresses: list[Address], error: str) -> None:
        self._lookup = None
        if self._core.state is not ConnectionState.RESOLVING:
            return
        if not addresses:
            self._end(f"cannot resolve {self.host}: {error}")
            return
        self._addresses.resolved(addresses)
        self._try_address(self._clock())

    def _connected(self) -> None:
        self._core.established(encrypts=self._options.security.tls is not None)
        self._addresses.connected()

    def _opened(self) -> None:
        if self._core.state is ConnectionState.ENCRYPTING:
            self._core.encrypted()
        self._send_api_versions()

    def _send_api_versions(self) -> None:
        self._api_versions_id = self._core.next_correlation_id()
        hello = encode_api_versions_request(
            self._api_versions_version, self._api_versions_id, self._options.client_id, SOFTWARE_VERSION
        )
        self._queue([hello], len(hello), self._clock())

    def _api_versions_received(self, answer: bytes) -> None:
        try:
            if correlation_id_of(answer) != self._api_versions_id:
                raise StreamError(f"ApiVersions was answered with correlation id {correlation_id_of(answer)}")
            self._require_fully_sent()
            judged = decode_api_versions_response(answer, self._api_versions_version)
        except StreamError as error:
            self._channel.fault = Fault(str(error))
            return
        match judged:
            case ApiVersionsDowngrade(known):
                self._traffic.answered(0, self._clock())
                self._api_versions_version = known
                self._send_api_versions()
            case NodeApiVersions(versions, throttle_ms, features):
                now = self._clock()
                self._traffic.answered(throttle_ms, now)
                self._core.versions_received(versions, now, features, authenticates=self._login is not None)
                self._core.throttle(throttle_ms, now)
                if self._login is None:
                    self._became_ready()
                else:
                    self._log_in()

    def _became_ready(self) -> None:
        self._channel.mark_authenticated()
        self._owner.connection_ready(self)

    # --- authentication ----------------------------------------------------------------------------------------------

    def _make_login(self) -> SaslClient | None:
        sasl = self._options.security.sasl
        if sasl is None:
            return None
        return SaslClient(sasl, self._resolver, self._options.client_id, send=self._send_login, over=self._logged_in)

    def _log_in(self) -> None:
        assert self._login is not None, "who says nothing about himself has no session"
        self._login_began = self._clock()
        self._login.begin(self.host, self._core.versions)

    def _send_login(self, framed: bytes) -> None:
        self._queue([framed], len(framed), self._clock())

    def _take_login(self, answer: bytes) -> None:
        assert self._login is not None
        self._traffic.answered(0, self._clock())
        try:
            self._require_fully_sent()
            self._login.answered(answer)
        except StreamError as error:
            self._channel.fault = Fault(str(error))

    def _logged_in(self, outcome: Authenticated | AuthenticationFailed) -> None:
        now = self._clock()
        match outcome:
            case AuthenticationFailed(reason):
                self._traffic.authentication_failed(now, again=self._core.state is ConnectionState.REAUTHENTICATING)
                self._channel.fault = Fault(f"authentication failed: {reason}", authentication_failed=True)
            case Authenticated(session_lifetime_ms):
                if self._core.authenticated(session_lifetime_ms, now, self._rng()):
                    self._traffic.authenticated(now)
                    self._became_ready()
                else:
                    self._traffic.reauthenticated(now - self._login_began, now)

    def _require_fully_sent(self) -> None:
        """Raises StreamError if a response arrived before its request was fully sent."""
        if self._channel.pending_bytes:
            raise StreamError("a request was answered before it was sent whole")

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _on_activity(self) -> None:
        fault = self._channel.fault
        if fault is not None:
            self._end_with_fault(fault)
        else:
            self._complete_unanswered(self._clock())

    def _response_received(self, answer: bytes) -> None:
        if self._core.state is ConnectionState.CHECKING_VERSIONS:
            self._api_versions_received(answer)
            return
        if self._core.state in _LOGGING_IN:
            self._take_login(answer)
            return
        now = self._clock()
        self._complete_unanswered(now)
        correlation_id = correlation_id_of(answer)
        expected = self._requests.get(correlation_id)
        try:
            self._core.expect(correlation_id, self._channel.pending_bytes)
            response = decode_response(expected, answer)
        except StreamError as error:
            # The tag is still in flight: `connection_lost` reports it with the others.
            self._channel.fault = Fault(str(error))
            return
        _ = self._requests.pop(correlation_id, None)
        tag = self._core.answered(now)
        if not isinstance(response, bytes):
            throttle_ms = getattr(response, "throttle_time_ms", 0)
            self.throttle(response.API_KEY, response.version or 0, throttle_ms, now)
        self._owner.connection_answered(self, tag, response)

    def _queue(self, buffers: Sequence[BytesLike], size: int, now: float) -> None:
        self._traffic.sent(size, now)
        self._channel.queue(buffers)

    def _complete_unanswered(self, now: float) -> None:
        while self._channel.fault is None and self._core.has_sent_unanswered(self._channel.pending_bytes):
            self._owner.connection_answered(self, self._core.answered(now), b"")

    def _end_with_fault(self, fault: Fault) -> None:
        self._end(f"{self.host}:{self.port}: {fault.reason}", refused=fault.authentication_failed)

    def _end(self, reason: str, *, refused: bool = False) -> None:
        self._release_resources()
        lost = self._core.ended(self._clock(), self._rng(), reason, refused=refused)
        self._owner.connection_lost(self, lost, reason)

    def _release_resources(self) -> None:
        if self._lookup is not None:
            self._resolver.cancel(self._lookup)
            self._lookup = None
        if self._login is not None:
            self._login.cancel()
        self._channel.close()
        self._requests.clear()


_LOGGING_IN: Final = (ConnectionState.AUTHENTICATING, ConnectionState.REAUTHENTICATING)
_DOING: Final = {
    ConnectionState.RESOLVING: "resolving",
    ConnectionState.CONNECTING: "connecting to",
    ConnectionState.ENCRYPTING: "agreeing on TLS with",
    ConnectionState.CHECKING_VERSIONS: "greeting",
    ConnectionState.AUTHENTICATING: "logging in to",
    ConnectionState.REAUTHENTICATING: "logging in again to",
}
