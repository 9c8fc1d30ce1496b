"""The exchange of SASL on a connection, as decisions: SaslHandshake version 1 names the mechanism (KIP-43), SaslAuthenticate
carries its bytes to and fro (KIP-152) and tells for how long the session holds (KIP-368).

The mechanism says what the bytes are; the connection moves them; here is only who may say what when.
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
"""The last eight ids are for these exchanges alone, as in other clients: an answer to one never looks like another's."""

_CORRELATION_IDS: Final = 8
_ROUNDS_MAX: Final = 16
"""More words than any mechanism needs: a broker cannot keep an exchange going for ever."""
ANSWER_BYTES_MAX: Final = 1 << 20
"""Far beyond every mechanism, and far below what a peer that nobody knows yet should make us hold."""
TEXT_MAX: Final = 300
_HANDSHAKE: Final = 1
_AUTHENTICATE_MAX: Final = 2
_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_AUTHENTICATION_FAILED: Final = 58


class BlockingStep(NamedTuple):
    """A mechanism's word for something that blocks: fetching a token, asking a key distribution centre."""

    work: Callable[[], bytes | None]
    """Called once, on a helper thread; nothing else is asked of the mechanism until it has returned. Returns what the
    method that put it off would have; raises AuthenticationError."""


class BlockingResult(NamedTuple):
    """What came of a Later's work: what it returned, or raised."""

    outcome: bytes | AuthenticationError | None


class Mechanism(Protocol):
    """One exchange of a SASL mechanism, from the client's side. Not used again for another one.

    Every method may raise AuthenticationError, and nothing else, whatever the broker sends.
    """

    def initial_response(self) -> bytes | BlockingStep | None:
        """What to send first; None: nothing, the broker begins (an empty message is sent)."""
        ...

    def evaluate_challenge(self, challenge: bytes) -> bytes | BlockingStep | None:
        """What to say to the broker's message; None: nothing more. It is called for the broker's last one too."""
        ...

    @property
    def done(self) -> bool:
        """The mechanism is satisfied, with the broker as well where it can tell: nothing it waits for is left."""
        ...


class SaslRules(NamedTuple):
    """How connections authenticate; shared by all of a process."""

    mechanism: str
    """As in SaslHandshake: "PLAIN"."""
    new_mechanism: Callable[[str], Mechanism]
    """Given the host as advertised. Called for each connection and each re-authentication, so that a password that was
    replaced counts. Raises AuthenticationError."""


class SaslRequest(NamedTuple):
    """A framed request that goes out next; its answer goes to `answered`."""

    framed: bytes


class Authenticated(NamedTuple):
    """The broker takes requests from us, for so long; 0: for as long as the connection lives."""

    session_lifetime_ms: int


class AuthenticationFailed(NamedTuple):
    """The broker does not believe us, or we do not believe it. `reason` is one line of bounded length."""

    reason: str


SaslStep: TypeAlias = SaslRequest | BlockingStep | Authenticated | AuthenticationFailed
"""What comes next. `BlockingStep`: do the work on a helper thread and call `blocking_step_done`."""


class SaslAuthentication:
    """One exchange: `begin`, then `answered` or `blocking_step_done` as the steps ask, until Authenticated or Refused."""

    def __init__(
        self, mechanism_name: str, mechanism: Mechanism, versions: Mapping[int, tuple[int, int]], client_id: str
    ) -> None:
        """`versions`: the broker's ranges by API key, of this connection."""
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
        """The first step."""
        handshake = self._versions.get(SaslHandshakeRequest.API_KEY)
        authenticate = self._versions.get(SaslAuthenticateRequest.API_KEY)
        if handshake is None or authenticate is None or not handshake[0] <= _HANDSHAKE <= handshake[1]:
            return AuthenticationFailed("the broker offers no SASL of Kafka 1.0 or newer")
        self._authenticate_version = min(_AUTHENTICATE_MAX, authenticate[1])
        if self._authenticate_version < authenticate[0]:
            return AuthenticationFailed("the broker takes no version of SaslAuthenticate that we speak")
        return self._request(SaslHandshakeRequest(mechanism=self._name, version=_HANDSHAKE), _HANDSHAKE)

    def answered(self, answer: bytes) -> SaslStep:
        """The answer to what was sent last, without its length.

        Raises:
            StreamError: it is not an answer to that; nothing can be said of the authentication.
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
        """The work that was put off is done."""
        if isinstance(said.outcome, AuthenticationError):
            return AuthenticationFailed(one_line(said.outcome.text))
        return self._next_step(said.outcome)

    # -----------------------------------------------------------------------------------------------------------------

    def _handshake_received(self, response: SaslHandshakeResponse) -> SaslStep:
        """The broker has heard which mechanism it is."""
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
    """A peer's words as one line of bounded length, for logs and errors."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:TEXT_MAX])
    return line if len(text) <= TEXT_MAX else f"{line}…"
