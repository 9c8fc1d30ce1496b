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
from ..protocol.responses import Expected, KafkaRequest, expected_answer

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


class Later(NamedTuple):
    """A mechanism's word for something that blocks: fetching a token, asking a key distribution centre."""

    work: Callable[[], bytes | None]
    """Called once, on a helper thread; nothing else is asked of the mechanism until it has returned. Returns what the
    method that put it off would have; raises AuthenticationError."""


class Said(NamedTuple):
    """What came of a Later's work: what it returned, or raised."""

    outcome: bytes | AuthenticationError | None


class Mechanism(Protocol):
    """One exchange of a SASL mechanism, from the client's side. Not used again for another one.

    Every method may raise AuthenticationError, and nothing else, whatever the broker sends.
    """

    def first(self) -> bytes | Later | None:
        """What to send first; None: nothing, the broker begins (an empty message is sent)."""
        ...

    def next(self, challenge: bytes) -> bytes | Later | None:
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


class Send(NamedTuple):
    """A framed request that goes out next; its answer goes to `answered`."""

    framed: bytes


class Authenticated(NamedTuple):
    """The broker takes requests from us, for so long; 0: for as long as the connection lives."""

    session_lifetime_ms: int


class Refused(NamedTuple):
    """The broker does not believe us, or we do not believe it. `reason` is one line of bounded length."""

    reason: str


Step: TypeAlias = Send | Later | Authenticated | Refused
"""What comes next. `Later`: do the work on a helper thread and call `worked`."""


class Authentication:
    """One exchange: `begin`, then `answered` or `worked` as the steps ask, until Authenticated or Refused."""

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
        self._asked: _Asked | None = None
        self._rounds = 0
        self._lifetime_ms = 0

    def begin(self) -> Step:
        """The first step."""
        handshake = self._versions.get(SaslHandshakeRequest.API_KEY)
        authenticate = self._versions.get(SaslAuthenticateRequest.API_KEY)
        if handshake is None or authenticate is None or not handshake[0] <= _HANDSHAKE <= handshake[1]:
            return Refused("the broker offers no SASL of Kafka 1.0 or newer")
        self._authenticate_version = min(_AUTHENTICATE_MAX, authenticate[1])
        if self._authenticate_version < authenticate[0]:
            return Refused("the broker takes no version of SaslAuthenticate that we speak")
        return self._ask(SaslHandshakeRequest(mechanism=self._name, version=_HANDSHAKE), _HANDSHAKE)

    def answered(self, answer: bytes) -> Step:
        """The answer to what was sent last, without its length.

        Raises:
            StreamError: it is not an answer to that; nothing can be said of the authentication.
        """
        asked, self._asked = self._asked, None
        if asked is None:
            raise StreamError(f"an answer (correlation id {correlation_id_of(answer)}) while nothing was asked")
        if correlation_id_of(answer) != asked.correlation_id:
            raise StreamError(
                f"SASL request {asked.correlation_id} was answered with correlation id {correlation_id_of(answer)}"
            )
        if len(answer) > ANSWER_BYTES_MAX:
            raise StreamError(f"an answer of {len(answer)} bytes to a SASL request; {ANSWER_BYTES_MAX} are allowed")
        try:
            response = asked.expected.kind.decode(answer, version=asked.expected.version, header=True)
        except DECODE_ERRORS as error:
            raise StreamError(f"the answer to a SASL request cannot be read: {error}") from error
        if isinstance(response, SaslHandshakeResponse):
            return self._named(response)
        return self._told(response)

    def worked(self, said: Said) -> Step:
        """The work that was put off is done."""
        if isinstance(said.outcome, AuthenticationError):
            return Refused(tidy(said.outcome.text))
        return self._go_on(said.outcome)

    # -----------------------------------------------------------------------------------------------------------------

    def _named(self, response: SaslHandshakeResponse) -> Step:
        """The broker has heard which mechanism it is."""
        match response.error_code:
            case 0:
                return self._asking_mechanism(self._mechanism.first)
            case code if code == _UNSUPPORTED_MECHANISM:
                known = ", ".join(str(name) for name in response.mechanisms or ()) or "none"
                return Refused(tidy(f"the broker does not take SASL mechanism {self._name}, but: {known}"))
            case code if code == _ILLEGAL_STATE:
                return Refused("the broker wants no SASL on this listener")
            case code:
                return Refused(f"SaslHandshake: {error_name(code)}")

    def _told(self, response: SaslAuthenticateResponse) -> Step:
        if response.error_code != 0:
            text = response.error_message or error_name(response.error_code)
            if response.error_code != _AUTHENTICATION_FAILED:
                text = f"{error_name(response.error_code)}: {text}"
            return Refused(tidy(text))
        self._lifetime_ms = max(0, int(response.session_lifetime_ms or 0))
        challenge = bytes(response.auth_bytes or b"")
        return self._asking_mechanism(lambda: self._mechanism.next(challenge))

    def _asking_mechanism(self, ask: Callable[[], bytes | Later | None]) -> Step:
        try:
            said = ask()
        except AuthenticationError as error:
            return Refused(tidy(error.text))
        return said if isinstance(said, Later) else self._go_on(said)

    def _go_on(self, said: bytes | None) -> Step:
        if said is None and self._rounds:
            if self._mechanism.done:
                return Authenticated(self._lifetime_ms)
            return Refused(f"the broker ended the exchange before {self._name} was satisfied")
        if self._rounds == _ROUNDS_MAX:
            return Refused(f"the exchange did not end within {_ROUNDS_MAX} rounds")
        self._rounds += 1
        version = self._authenticate_version
        return self._ask(SaslAuthenticateRequest(auth_bytes=said or b"", version=version), version)

    def _ask(self, request: KafkaRequest, version: int) -> Send:
        correlation_id = next(self._ids)
        request.API_VERSION = version
        request.with_header(correlation_id=correlation_id, client_id=self._client_id)
        framed = bytes(request.encode(header=True, framed=True))
        self._asked = _Asked(correlation_id, expected_answer(request))
        return Send(framed)


class _Asked(NamedTuple):
    correlation_id: int
    expected: Expected


def tidy(text: str) -> str:
    """A peer's words as one line of bounded length, for logs and errors."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:TEXT_MAX])
    return line if len(text) <= TEXT_MAX else f"{line}…"
