"""What a scripted broker says of TLS and SASL: both as a broker that does everything right, and step by step for those that do not."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from penstock.api.errors import AuthenticationError
from penstock.producer.security.sasl import BlockingStep, SaslRules

from tests.harness.certificates import Authority, Certificate

from .scripted_broker import RANGES, Asked, Peer

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36
SASL_RANGES: Final = {**RANGES, HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)}

TLS_1_2: Final = ssl.TLSVersion.TLSv1_2
TLS_1_3: Final = ssl.TLSVersion.TLSv1_3


# --- TLS -------------------------------------------------------------------------------------------------------------


def server_context(
    certificate: Certificate,
    folder: Path,
    *,
    clients: Authority | None = None,
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion] = (TLS_1_2, TLS_1_3),
) -> ssl.SSLContext:
    """A server's side. `clients`: it wants a certificate that this authority has signed. `versions`: least and greatest."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if versions[0] < TLS_1_2:
        # OpenSSL speaks old versions only with what it calls no security at all.
        context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = versions
    context.load_cert_chain(certificate.write(folder / f"server-{certificate.serial}.pem"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem().decode())
    return context


def encrypt(peer: Peer, context: ssl.SSLContext, *, wants_word: bool = False) -> None:
    """The broker's side of the handshake; from then on the peer reads and sends through TLS. `wants_word`: an end without the
    word of TLS for it is an error. Raises what `ssl` raises."""
    peer.socket = context.wrap_socket(peer.socket, server_side=True, suppress_ragged_eofs=not wants_word)


class ByteByByte:
    """A server's side of TLS whose every byte travels alone, in both directions."""

    def __init__(self, peer: Peer, context: ssl.SSLContext) -> None:
        self._wire = peer.socket
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until(self._tls.do_handshake)

    def recv(self, count: int) -> bytes:
        got: list[bytes] = []
        self._until(lambda: got.append(self._tls.read(count)))
        return got[0]

    def sendall(self, content: bytes) -> None:
        _ = self._tls.write(content)
        self._pass_on()

    def _until(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                self._pass_on()
                byte = self._wire.recv(1)
                if not byte:
                    raise EOFError from None
                _ = self._incoming.write(byte)
            else:
                self._pass_on()
                return

    def _pass_on(self) -> None:
        for value in self._outgoing.read():
            self._wire.sendall(bytes([value]))


# --- SASL ------------------------------------------------------------------------------------------------------------


class Words:
    """A mechanism that says what a test wrote down, and is done when it has said all. An exception among the words is raised,
    a `BlockingStep` is put off."""

    def __init__(self, *words: bytes | BlockingStep | AuthenticationError | None) -> None:
        self._words = list(words)
        self.heard: list[bytes] = []

    def initial_response(self) -> bytes | BlockingStep | None:
        return self._say()

    def evaluate_challenge(self, challenge: bytes) -> bytes | BlockingStep | None:
        self.heard.append(challenge)
        return self._say() if self._words else None

    @property
    def done(self) -> bool:
        return not self._words

    def _say(self) -> bytes | BlockingStep | None:
        word = self._words.pop(0)
        if isinstance(word, AuthenticationError):
            raise word
        return word


def saying(*words: bytes | BlockingStep | AuthenticationError | None, name: str = "WORDS") -> SaslRules:
    """Every login says these."""
    return SaslRules(name, lambda _host: Words(*words))


def handshake_body(code: int = 0, mechanisms: tuple[str, ...] = ("WORDS",)) -> bytes:
    return bytes(SaslHandshakeResponse(error_code=code, mechanisms=list(mechanisms), version=1).encode())


def authenticate_body(
    version: int, said: bytes = b"", *, code: int = 0, text: str | None = None, lifetime_ms: int = 0
) -> bytes:
    """With the end of the answer's header, which has tags from version 2 on."""
    response = SaslAuthenticateResponse(
        error_code=code, error_message=text, auth_bytes=said, session_lifetime_ms=lifetime_ms, version=version
    )
    return (b"\0" if version >= 2 else b"") + bytes(response.encode())


def take_handshake(peer: Peer) -> Asked:
    asked = peer.read()
    assert (asked.api_key, asked.version) == (HANDSHAKE, 1)
    peer.send(asked.correlation_id, handshake_body())
    return asked


def take_word(peer: Peer, said: bytes = b"", *, lifetime_ms: int = 0) -> Asked:
    """Hear one message of the mechanism, and answer."""
    asked = peer.read()
    assert asked.api_key == AUTHENTICATE
    peer.send(asked.correlation_id, authenticate_body(asked.version, said, lifetime_ms=lifetime_ms))
    return asked


def log_in(peer: Peer, *, lifetime_ms: int = 0) -> None:
    """A broker that believes whoever says one word."""
    _ = take_handshake(peer)
    _ = take_word(peer, lifetime_ms=lifetime_ms)
