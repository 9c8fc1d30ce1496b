"""State machine of a SASL exchange: SaslHandshake version 1 names the mechanism (KIP-43); SaslAuthenticate carries its
messages (KIP-152) and returns the session lifetime (KIP-368).

The mechanism computes the messages and the connection sends them; this module only enforces their order.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from ...api.errors import AuthenticationError
from ..protocol.api_versions import DECODE_ERRORS
from ..protocol.error_codes import error_name
from ..protocol.framing import StreamError, correlation_id_of
from ..protocol.responses import ExpectedResponse, KafkaRequest, expected_response

FIRST_CORRELATION_ID: Final = (1 << 31) - 8
"""The last eight ids are reserved for SASL, as in other clients: a SASL response is never mistaken for another one."""

_CORRELATION_IDS: Final = 8
_ROUNDS_MAX: Final = 16
"""More rounds than any mechanism needs, so that a broker cannot prolong an exchange forever."""
ANSWER_BYTES_MAX: Final = 1 << 20
"""More than any mechanism needs, but little enough to buffer for an unauthenticated peer."""
TEXT_MAX: Final = 300
_HANDSHAKE: Final = 1
_AUTHENTICATE_MAX: Final = 2
_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_AUTHENTICATION_FAILED: Final = 58


class BlockingStep(NamedTuple):
    """Blocking work that a mechanism requests: fetching a token, or a Kerberos ticket."""

    work: Callable[[], bytes | None]
    """Called once, on a helper thread; the mechanism is not called again until it has returned. Returns the result of
    the method that deferred it; raises AuthenticationError."""


class BlockingResult(NamedTuple):
    """The result of a `BlockingStep`'s work: its return value, or the AuthenticationError it raised."""

    outcome: bytes | AuthenticationError | None


class Mechanism(Protocol):
    """The client side of one exchange of a SASL mechanism. Each exchange needs a new object.

    Every method may raise AuthenticationError, and nothing else, whatever the broker sends.
    """

    def initial_response(self) -> bytes | BlockingStep | None:
        """The first message; None if the broker begins (an empty message is sent)."""
        ...

    def evaluate_challenge(self, challenge: bytes) -> bytes | BlockingStep | None:
        """The reply to the broker's message; None if no reply is needed. Also called for the broker's last message."""
        ...

    @property
    def done(self) -> bool:
        """Whether the exchange is complete, including the broker's proof if the mechanism has one."""
        ...


class SaslRules(NamedTuple):
    """How a process's connections authenticate; shared by all of them."""

    mechanism: str
    """The name in SaslHandshake, such as "PLAIN"."""
    new_mechanism: Callable[[str], Mechanism]
    """Creates a mechanism, given the advertised host. Called for each connection and each re-authentication, so that a
    replaced password takes effect. Raises AuthenticationError."""


class SaslRequest(NamedTuple):
    """Send this framed request, and pass its response to `answered`."""

    framed: bytes


class Authenticated(NamedTuple):
    """The broker accepts requests for `session_lifetime_ms`; 0: for the lifetime of the connection."""

    session_lifetime_ms: int


class AuthenticationFailed(NamedTuple):
    """The broker did not authenticate us, or we did not authenticate it. `reason` is one line of bounded length."""

    reason: str


SaslStep: TypeAlias = SaslRequest | BlockingStep | Authenticated | AuthenticationFailed
"""The next action. `BlockingStep`: do its work on a helper thread and call `blocking_step_done`."""


class SaslAuthentication:
    """One exchange. Call `begin`, then `answered` or `blocking_step_done` as each step requires, until `Authenticated`
    or `AuthenticationFailed`."""

    def __init__(
        self, mechanism_name: str, mechanism: Mechanism, versions: Mapping[int, tuple[int, int]], client_id: str
    ) -> None:
        """`versions`: this connection's version ranges by API key."""
        self._name = mechanism_name
        self._mechanism = mechanism
        self._versions = versions
        self._client_id = client_id
        self._ids = itertools.cycle(range(FIRST_CORRELATION_ID, FIRST_CORRELATION_ID + _CORRELATION_IDS))
        self._authenticate_version = 0
        self._pending: _PendingRequest | None = None
        self._rounds = 0
        self._lifetime_ms = 0

    def begin(self) -> SaslStep:
        """Start the exchange. Returns the SaslHandshake request, or a failure if the broker does not support it."""
        handshake = self._versions.get(SaslHandshakeRequest.API_KEY)
        authenticate = self._versions.get(SaslAuthenticateRequest.API_KEY)
        if handshake is None or authenticate is None or not handshake[0] <= _HANDSHAKE <= handshake[1]:
            return AuthenticationFailed("the broker offers no SASL of Kafka 1.0 or newer")
        self._authenticate_version = min(_AUTHENTICATE_MAX, authenticate[1])
        if self._authenticate_version < authenticate[0]:
            return AuthenticationFailed("the broker takes no version of SaslAuthenticate that we speak")
        return self._request(SaslHandshakeRequest(mechanism=self._name, version=_HANDSHAKE), _HANDSHAKE)

    def answered(self, answer: bytes) -> SaslStep:
        """Process the response to the last request, passed without its length field.

        Raises:
            StreamError: it is not a response to that request; the result of the authentication is unknown.
        """
        asked, self._pending = self._pending, None
        if asked is None:
            raise StreamError(f"an answer (correlation id {correlation_id_of(answer)}) while nothing was asked")
        if correlation_id_of(answer) != asked.correlation_id:
            raise StreamError(
                f"SASL request {asked.correlation_id} was answered with correlation id {correlation_id_of(answer)}"
            )
        if len(answer) > ANSWER_BYTES_MAX:
            raise StreamError(f"an answer of {len(answer)} bytes to a SASL request; {ANSWER_BYTES_MAX} are allowed")
        try:
            response = asked.expected.response_class.decode(answer, version=asked.expected.version, header=True)
        except DECODE_ERRORS as error:
            raise StreamError(f"the answer to a SASL request cannot be read: {error}") from error
        if isinstance(response, SaslHandshakeResponse):
            return self._handshake_received(response)
        return self._authenticate_received(response)

    def blocking_step_done(self, said: BlockingResult) -> SaslStep:
        """Continue after the work of a `BlockingStep` has finished."""
        if isinstance(said.outcome, AuthenticationError):
            return AuthenticationFailed(one_line(said.outcome.text))
        return self._next_step(said.outcome)

    # -----------------------------------------------------------------------------------------------------------------

    def _handshake_received(self, response: SaslHandshakeResponse) -> SaslStep:
        """Process the broker's reply to the choice of mechanism."""
        match response.error_code:
            case 0:
                return self._call_mechanism(self._mechanism.initial_response)
            case code if code == _UNSUPPORTED_MECHANISM:
                known = ", ".join(str(name) for name in response.mechanisms or ()) or "none"
                return AuthenticationFailed(
                    one_line(f"the broker does not take SASL mechanism {self._name}, but: {known}")
                )
            case code if code == _ILLEGAL_STATE:
                return AuthenticationFailed("the broker wants no SASL on this listener")
            case code:
                return AuthenticationFailed(f"SaslHandshake: {error_name(code)}")

    def _authenticate_received(self, response: SaslAuthenticateResponse) -> SaslStep:
        if response.error_code != 0:
            text = response.error_message or error_name(response.error_code)
            if response.error_code != _AUTHENTICATION_FAILED:
                text = f"{error_name(response.error_code)}: {text}"
            return AuthenticationFailed(one_line(text))
        self._lifetime_ms = max(0, int(response.session_lifetime_ms or 0))
        challenge = bytes(response.auth_bytes or b"")
        return self._call_mechanism(lambda: self._mechanism.evaluate_challenge(challenge))

    def _call_mechanism(self, ask: Callable[[], bytes | BlockingStep | None]) -> SaslStep:
        try:
            said = ask()
        except AuthenticationError as error:
            return AuthenticationFailed(one_line(error.text))
        return said if isinstance(said, BlockingStep) else self._next_step(said)

    def _next_step(self, said: bytes | None) -> SaslStep:
        if said is None and self._rounds:
            if self._mechanism.done:
                return Authenticated(self._lifetime_ms)
            return AuthenticationFailed(f"the broker ended the exchange before {self._name} was satisfied")
        if self._rounds == _ROUNDS_MAX:
            return AuthenticationFailed(f"the exchange did not end within {_ROUNDS_MAX} rounds")
        self._rounds += 1
        version = self._authenticate_version
        return self._request(SaslAuthenticateRequest(auth_bytes=said or b"", version=version), version)

    def _request(self, request: KafkaRequest, version: int) -> SaslRequest:
        correlation_id = next(self._ids)
        request.API_VERSION = version
        request.with_header(correlation_id=correlation_id, client_id=self._client_id)
        framed = bytes(request.encode(header=True, framed=True))
        self._pending = _PendingRequest(correlation_id, expected_response(request))
        return SaslRequest(framed)


class _PendingRequest(NamedTuple):
    correlation_id: int
    expected: ExpectedResponse


def one_line(text: str) -> str:
    """A peer's text as one line of bounded length, for logs and errors."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:TEXT_MAX])
    return line if len(text) <= TEXT_MAX else f"{line}…"
