"""PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677): kafka-python's exchanges, plus the checks they omit.

User and password are sent as UTF-8 exactly as configured, without SASLprep, like Kafka's tools and clients do. The
broker stores the password as the bytes passed to `kafka-configs.sh`; normalized bytes would be a different password.
"""

import base64
import binascii
import re
from typing import Final, NamedTuple

from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import ScramClient

from ...api.errors import AuthenticationError
from .sasl import BlockingStep

ITERATIONS_MIN: Final = 4_096
"""With fewer, an eavesdropper could guess the password easily (RFC 7677 4)."""
ITERATIONS_MAX: Final = 1_000_000
"""With more, a broker or an impostor could keep us busy."""

_ITERATIONS_AT_ONCE: Final = 20_000
"""A few milliseconds of hashing, acceptable on the loop; more iterations run on a helper thread."""
_MESSAGE_BYTES_MAX: Final = 4_096
_FIRST: Final = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,10})((?:,[A-Za-z]=[^,\0]+)*)")
_FINAL: Final = re.compile(r"v=([A-Za-z0-9+/=]+)((?:,[A-Za-z]=[^,\0]+)*)")
_RESERVED_ATTRIBUTE: Final = re.compile(r",[acimnprsv]=")
"""Standard attributes. Repeated as an extension, one could replace the value that was checked."""


class Credentials(NamedTuple):
    """The producer's user and password."""

    user: str
    password: str

    def __repr__(self) -> str:
        # Keeps the password out of tracebacks and log lines.
        return f"Credentials(user={self.user!r})"


class PlainMechanism:
    """Sends user and password in one message; the broker's empty reply means success."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises AuthenticationError if user or password is empty or contains a NUL."""
        if "\0" in credentials.user or "\0" in credentials.password:
            raise AuthenticationError("PLAIN cannot carry a user or password with a NUL: it divides them by one")
        _require(credentials)
        self._exchange = SaslMechanismPlain(
            sasl_plain_username=credentials.user, sasl_plain_password=credentials.password
        )

    def initial_response(self) -> bytes:
        """The message with user and password."""
        try:
            return bytes(self._exchange.auth_bytes())
        except UnicodeError:
            raise AuthenticationError("user or password cannot be encoded as UTF-8") from None

    def evaluate_challenge(self, challenge: bytes) -> None:
        """Check the broker's reply, which must be empty."""
        self._exchange.receive(challenge)
        if not self._exchange.is_authenticated():
            raise AuthenticationError("the broker answers PLAIN with a message of its own")

    @property
    def done(self) -> bool:
        return bool(self._exchange.is_authenticated())


class ScramMechanism:
    """Proves that we know the password, and verifies that the broker knows it too."""

    def __init__(self, mechanism: str, credentials: Credentials, *, nonce: bytes | None = None) -> None:
        """`nonce`: our nonce, for a deterministic exchange; random if None."""
        _require(credentials)
        try:
            self._exchange = ScramClient(saslname(credentials.user), credentials.password, mechanism)
        except UnicodeError:
            raise AuthenticationError("user or password cannot be encoded as UTF-8") from None
        if nonce is not None:
            self._exchange.nonce = nonce
        self._steps = 0
        self.done = False

    def initial_response(self) -> bytes:
        """The message with our user and nonce."""
        return bytes(self._exchange.first_message())

    def evaluate_challenge(self, challenge: bytes) -> bytes | BlockingStep | None:
        """Our proof, in reply to the broker's first message; None for its second, whose signature is verified."""
        self._steps += 1
        if self._steps > 2:
            raise AuthenticationError("the broker's SCRAM has a message too many")
        text = _text(challenge)
        if text.startswith("e="):
            raise AuthenticationError(f"the broker refuses: {text[2:]}")
        if self._steps == 1:
            return self._prove(challenge, text)
        self._check_signature(challenge, text)
        return None

    def _prove(self, challenge: bytes, text: str) -> bytes | BlockingStep:
        """Compute our proof. The broker's whole message is checked before anything is hashed."""
        if text.startswith("m="):
            raise AuthenticationError("the broker's SCRAM wants an extension that is not known")
        found = _FIRST.fullmatch(text)
        if found is None or _RESERVED_ATTRIBUTE.search(found[4]):
            raise AuthenticationError("the broker's first SCRAM message cannot be read")
        ours = self._exchange.nonce.decode()
        if not found[1].startswith(ours) or found[1] == ours:
            raise AuthenticationError("the broker's nonce does not go on from ours")
        _ = _decoded(found[2], "salt")
        iterations = int(found[3])
        if iterations < ITERATIONS_MIN:
            raise AuthenticationError(
                f"the broker asks for {iterations} iterations: fewer than {ITERATIONS_MIN} would give the password away"
            )
        if iterations > ITERATIONS_MAX:
            raise AuthenticationError(f"the broker asks for {iterations} iterations: at most {ITERATIONS_MAX} are done")

        def prove() -> bytes:
            try:
                self._exchange.process_server_first_message(challenge)
            except (ValueError, KeyError) as error:
                raise AuthenticationError(f"the broker's first SCRAM message cannot be used: {error}") from error
            return bytes(self._exchange.final_message())

        return prove() if iterations <= _ITERATIONS_AT_ONCE else BlockingStep(prove)

    def _check_signature(self, challenge: bytes, text: str) -> None:
        found = _FINAL.fullmatch(text)
        if found is None or _RESERVED_ATTRIBUTE.search(found[2]):
            raise AuthenticationError("the broker's last SCRAM message cannot be read")
        _ = _decoded(found[1], "signature")
        try:
            self._exchange.process_server_final_message(challenge)
        except (ValueError, KeyError):
            raise AuthenticationError(
                "the broker's signature is wrong: it does not know the password, so it is not who it says"
            ) from None
        self.done = True


def saslname(user: str) -> str:
    """Escape a user name for SCRAM (RFC 5802 5.1)."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _require(credentials: Credentials) -> None:
    if not credentials.user:
        raise AuthenticationError("no user is given: sasl.username is empty")
    if not credentials.password:
        raise AuthenticationError("no password is given: the file of sasl.password.file is empty")


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise AuthenticationError(f"the broker's SCRAM message has {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("the broker's SCRAM message is not valid UTF-8") from None


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError(f"the broker's {what} is not base64") from None
