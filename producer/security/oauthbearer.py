"""OAUTHBEARER (RFC 7628): sends a bearer token, from an endpoint or a file, and the configured extensions.

All connections of a process share a token. It is replaced when a connection authenticates within its refresh window.
No refresh is needed in between: brokers end a session no later than its token, and connections re-authenticate before.
"""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth

from ...api.errors import AuthenticationError
from ...runtime import logs
from ...runtime.clock import monotonic, wall_ms
from ..protocol.backoff import Backoff
from .sasl import BlockingStep, one_line
from .secret import SecretText
from .token_endpoint import TokenEndpointConfig, request_token
from .tokens import RefreshWindow, Token, TokenError, parse_token, refresh_after_s, token_from_response

_DEFAULT_LIFETIME_S: Final = 60.0
"""For a token of unknown lifetime: long enough not to fetch one per connection, short enough not to keep it long."""


class TokenProvider(Protocol):
    """Source of tokens."""

    def cached_token(self) -> str | None:
        """A valid token that is not due for replacement, without blocking. None: call `fetch_token`.

        Raises:
            AuthenticationError: there is none, and `fetch_token` would not help.
        """
        ...

    def fetch_token(self) -> str:
        """A valid token; blocks.

        Raises:
            AuthenticationError: no token is available.
        """
        ...


class TokenFile:
    """A token file that another program writes. It is read again after a change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = SecretText(path)

    def cached_token(self) -> str:
        """The token in the file now."""
        try:
            return parse_token(self._text.current().strip(), wall_s=wall_ms() / 1000).value
        except TokenError as error:
            raise AuthenticationError(f"{self._path} holds {error}") from error

    fetch_token = cached_token


class TokenRefreshTiming(NamedTuple):
    """When to query the endpoint again: `window` after a token, `retry` after a failure."""

    window: RefreshWindow
    retry: Backoff


class _CachedToken(NamedTuple):
    value: str
    refresh_at: float
    expires_at: float


class TokenEndpoint:
    """Fetches tokens with client credentials (RFC 6749 4.4). Thread-safe."""

    def __init__(
        self, endpoint: TokenEndpointConfig, secret_file: Path, timing: TokenRefreshTiming, chance: Callable[[], float]
    ) -> None:
        """`chance`: returns a random number in [0, 1)."""
        self._endpoint = endpoint
        self._secret = SecretText(secret_file)
        self._timing = timing
        self._chance = chance
        self._cached: _CachedToken | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._reason = ""
        self._fetch_lock = threading.Lock()
        self._log = logs.get()

    def cached_token(self) -> str | None:
        """See `TokenProvider`."""
        held = self._cached
        return held.value if held is not None and monotonic() < held.refresh_at else None

    def fetch_token(self) -> str:
        """See `TokenProvider`. Concurrent callers share the token that the first of them fetches."""
        with self._fetch_lock:
            held = self.cached_token()
            if held is not None:
                return held
            if monotonic() >= self._retry_at:
                self._fetch()
            now = monotonic()
            if self._cached is not None and now < self._cached.expires_at:
                return self._cached.value
            raise AuthenticationError(self._reason)

    def _fetch(self) -> None:
        try:
            status, body = request_token(self._endpoint, self._secret.current())
            token = token_from_response(status, body, wall_s=wall_ms() / 1000)
        except TokenError as error:
            self._failed(str(error))
            return
        except AuthenticationError as error:
            self._failed(error.text)
            return
        self._cache(token)

    def _cache(self, token: Token) -> None:
        now = monotonic()
        lifetime_s = _DEFAULT_LIFETIME_S if token.lifetime_s is None else token.lifetime_s
        refresh_at = now + refresh_after_s(lifetime_s, self._timing.window, self._chance())
        self._cached = _CachedToken(token.value, refresh_at, now + lifetime_s)
        self._failures, self._retry_at, self._reason = 0, 0.0, ""

    def _failed(self, reason: str) -> None:
        self._reason = one_line(f"no token from {self._endpoint.url}: {reason}")
        self._retry_at = monotonic() + self._timing.retry.wait_s(self._failures, self._chance())
        self._failures += 1
        if self._cached is not None and monotonic() < self._cached.expires_at:
            # No connection reports this failure, because the old token is still valid.
            self._log.warning("token_refresh_failed", reason=self._reason)


class _Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is not typed
    """Passes one token and the extensions to kafka-python's exchange."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        super().__init__()
        self._token = token
        self._extensions = extensions

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # typed there by a body that does nothing
        return self._token

    def extensions(self) -> dict[str, str]:
        return dict(self._extensions)


class OAuthBearerMechanism:
    """One OAUTHBEARER exchange."""

    def __init__(self, given: TokenProvider, extensions: Mapping[str, str]) -> None:
        self._tokens = given
        self._extensions = extensions
        self._exchange: SaslMechanismOAuth | None = None
        self._refusal = ""

    def initial_response(self) -> bytes | BlockingStep:
        """The message with the token and extensions; a `BlockingStep` if a token must be fetched."""
        token = self._tokens.cached_token()
        return (
            BlockingStep(lambda: self._message(self._tokens.fetch_token())) if token is None else self._message(token)
        )

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """None for an empty message, which means success; for a refusal the one byte that ends the exchange (RFC 7628
        3.2.3)."""
        assert self._exchange is not None, "the token goes first"
        if self._refusal:
            raise AuthenticationError(self._refusal)
        try:
            self._exchange.receive(challenge)
        except UnicodeDecodeError:
            raise AuthenticationError("the broker refused the token with a message that is not valid UTF-8") from None
        if not challenge:
            return None
        self._refusal = f"the broker refuses the token: {_status(challenge)}"
        return bytes(self._exchange.auth_bytes())

    @property
    def done(self) -> bool:
        return self._exchange is not None and bool(self._exchange.is_authenticated())

    def _message(self, token: str) -> bytes:
        self._exchange = SaslMechanismOAuth(sasl_oauth_token_provider=_Provider(token, self._extensions))
        return bytes(self._exchange.auth_bytes())


def _status(challenge: bytes) -> str:
    """`status` and the other fields of a refusal (RFC 7628 3.2.2), or the message itself if it is not such JSON."""
    text = challenge.decode(errors="replace")
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, dict):
        return text
    told = cast("dict[str, object]", found)
    return ", ".join(f"{name} {value}" for name, value in told.items() if isinstance(value, str)) or text
