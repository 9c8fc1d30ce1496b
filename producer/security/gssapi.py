"""GSSAPI (RFC 4752) with Kerberos, through the package `gssapi`, which is imported on first use.

kafka-python's exchange cannot select credentials, and requests tickets in its constructor. This one takes a keytab or
the ticket cache, and requests tickets in a `BlockingStep`. Like every Kafka client it supports only the security layer
"none".
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from ...api.errors import AuthenticationError
from ...config.secret_files import NO_GSSAPI
from .sasl import BlockingStep

_MINOR: Final = re.compile(r"Minor \(\d+\): (.+)", re.DOTALL)
_NO_LAYER: Final = 1
_OFFER_BYTES: Final = 4


class KerberosIdentity(NamedTuple):
    """The producer's principal and keytab, and the service name of the brokers' principals."""

    service: str
    keytab: Path | None
    principal: str


class Wrapped(Protocol):
    """A message wrapped or unwrapped by a security context."""

    @property
    def message(self) -> bytes:
        """The message's bytes."""
        ...


class GssContext(Protocol):
    """The methods used of the package's security context."""

    @property
    def complete(self) -> bool:
        """Whether both sides are authenticated."""
        ...

    def step(self, token: bytes | None = None) -> bytes | None:
        """Our next token, in reply to the peer's."""
        ...

    def wrap(self, message: bytes, encrypt: bool) -> Wrapped:
        """Wrap a message."""
        ...

    def unwrap(self, message: bytes) -> Wrapped:
        """Unwrap a message of the peer."""
        ...


NewContext = Callable[[KerberosIdentity, str], tuple[GssContext, tuple[type[Exception], ...]]]
"""Given our identity and the broker's host, returns a context and the exceptions that its methods raise. Blocks. Raises
AuthenticationError."""


class GssapiMechanism:
    """One GSSAPI exchange."""

    def __init__(self, identity: KerberosIdentity, host: str, new_context: NewContext | None = None) -> None:
        """`host`: the broker's advertised host. `new_context` replaces the package."""
        self._identity = identity
        self._host = host
        self._new_context = new_context or _context
        self._context: GssContext | None = None
        self._errors: tuple[type[Exception], ...] = ()
        self._layer_chosen = False
        self.done = False

    def initial_response(self) -> BlockingStep:
        """A step that requests tickets off the loop and returns the first token."""
        return BlockingStep(self._begin)

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Our next token, until both sides are authenticated; then the choice of security layer "none" in reply to the
        broker's offer."""
        assert self._context is not None, "tickets come first"
        if self._layer_chosen:
            if challenge:
                raise AuthenticationError("the broker's GSSAPI has a message too many")
            self.done = True
            return None
        try:
            if not self._context.complete:
                # The last token may be empty: the broker then still waits for a message.
                return self._context.step(challenge) or b""
            return self._choose_layer(challenge)
        except self._errors as error:
            raise AuthenticationError(f"Kerberos: {_gss_error_text(error)}") from error

    def _begin(self) -> bytes:
        self._context, self._errors = self._new_context(self._identity, self._host)
        try:
            return self._context.step() or b""
        except self._errors as error:
            raise AuthenticationError(
                f"Kerberos: no ticket for {self._identity.service}@{self._host}: {_gss_error_text(error)}"
            ) from error

    def _choose_layer(self, challenge: bytes) -> bytes:
        assert self._context is not None
        offer = bytes(self._context.unwrap(challenge).message)
        if len(offer) != _OFFER_BYTES:
            raise AuthenticationError(
                f"the broker offers security layers in {len(offer)} bytes: {_OFFER_BYTES} are right"
            )
        if not offer[0] & _NO_LAYER:
            raise AuthenticationError("the broker wants a security layer, which no client of Kafka speaks")
        self._layer_chosen = True
        # Without a layer the maximum size is 0; the authorization id is left to the ticket (RFC 4752 3.1).
        return bytes(self._context.wrap(bytes([_NO_LAYER, 0, 0, 0]), False).message)


def _context(identity: KerberosIdentity, host: str) -> tuple[GssContext, tuple[type[Exception], ...]]:
    try:
        import gssapi  # noqa: PLC0415 - an extra
        from gssapi.raw.misc import GSSError  # noqa: PLC0415
    except (ImportError, OSError) as error:
        raise AuthenticationError(NO_GSSAPI) from error
    try:
        name = gssapi.Name(f"{identity.service}@{host}", name_type=gssapi.NameType.hostbased_service)
        wanted = (
            gssapi.Name(identity.principal, name_type=gssapi.NameType.kerberos_principal)
            if identity.principal
            else None
        )
        credentials = None
        if identity.keytab is not None:
            credentials = gssapi.Credentials(usage="initiate", name=wanted, store=_store(identity))
        elif wanted is not None:
            credentials = gssapi.Credentials(usage="initiate", name=wanted)
        context = gssapi.SecurityContext(name=name, creds=credentials, usage="initiate", mech=gssapi.MechType.kerberos)
    except GSSError as error:
        who = identity.principal or "any principal"
        place = "the ticket cache" if identity.keytab is None else f"{identity.keytab}"
        raise AuthenticationError(f"no Kerberos credentials for {who} in {place}: {_gss_error_text(error)}") from error
    return cast("GssContext", context), (GSSError,)


def _gss_error_text(error: Exception) -> str:
    """The specific error text, without the codes and the general part before it."""
    text = str(error)
    found = _MINOR.search(text)
    return found[1] if found is not None else text


def _store(identity: KerberosIdentity) -> dict[bytes | str, bytes | str]:
    """The keytab, and an in-memory ticket cache per identity: tickets are requested once, and again when they
    expire."""
    key = hashlib.sha256(f"{identity.keytab}\0{identity.principal}".encode()).hexdigest()[:16]
    return {"client_keytab": f"FILE:{identity.keytab}", "ccache": f"MEMORY:penstock-{key}"}
