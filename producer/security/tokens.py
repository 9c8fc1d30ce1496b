"""Bearer tokens: parses an endpoint's response, determines a token's lifetime, and when to fetch the next token.

See RFC 6749 5.1 and 5.2 for the response, RFC 6750 2.1 for the syntax of a token, RFC 7519 4.1.4 for a token's own
expiry. Any input from an endpoint or a file gives a token or raises TokenError.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from .sasl import one_line

TOKEN_BYTES_MAX: Final = 64 << 10
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_LIFETIME_MAX_S: Final = 10 * 365 * 86_400.0
"""Longer lifetimes are cut to this, ten years, so that later additions cannot overflow."""


class TokenError(Exception):
    """There is no usable token. The text gives the reason and never includes any part of a token."""


class Token(NamedTuple):
    """One bearer token."""

    value: str
    lifetime_s: float | None
    """Seconds from the time of parsing; None: unknown."""

    def __repr__(self) -> str:
        return f"Token(lifetime_s={self.lifetime_s})"


class RefreshWindow(NamedTuple):
    """When to fetch the next token: `sasl.login.refresh.…`."""

    factor: float
    jitter: float
    min_period_s: float
    buffer_s: float


def refresh_after_s(lifetime_s: float, window: RefreshWindow, chance: float) -> float:
    """Seconds after which to replace a token. `chance` in [0, 1).

    At least `min_period_s` after the last token and at least `buffer_s` before the expiry. If the lifetime is too short
    for both, only `factor` and `jitter` count.
    """
    proposed = lifetime_s * min(1.0, window.factor + window.jitter * chance)
    if window.min_period_s + window.buffer_s > lifetime_s:
        return proposed
    return max(window.min_period_s, min(proposed, lifetime_s - window.buffer_s))


def token_from_response(status: int, body: bytes, *, wall_s: float) -> Token:
    """The token in a token endpoint's response. `wall_s`: seconds since 1970.

    Raises:
        TokenError: the endpoint refuses, or the response is invalid.
    """
    if 300 <= status < 400:
        raise TokenError(f"status {status}: redirections are not followed, the secret is for this address only")
    answer = _object(body, f"status {status}, and " if status != 200 else "")
    if status != 200:
        raise TokenError(f"status {status}: {_refusal(answer)}")
    value = answer.get("access_token")
    if not isinstance(value, str):
        raise TokenError("the answer has no access_token" if value is None else "access_token is not a string")
    kind = answer.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise TokenError("the answer's token is no bearer token")
    lifetime_s = _expires_in_s(answer.get("expires_in"))
    token = parse_token(value, wall_s=wall_s)
    known = [lifetime for lifetime in (lifetime_s, token.lifetime_s) if lifetime is not None]
    return Token(token.value, min(known, default=None))


def parse_token(text: str, *, wall_s: float) -> Token:
    """Parse a token from a file or a response.

    Raises:
        TokenError: it is not a token, or it has expired.
    """
    if len(text) > TOKEN_BYTES_MAX:
        raise TokenError(f"a token of {len(text):,} letters: at most {TOKEN_BYTES_MAX:,} are sent")
    if not _TOKEN.fullmatch(text):
        # A control character would end the token in the SASL message and could inject another field.
        raise TokenError("a token with characters that no token has")
    end_s = _jwt_expiry_s(text)
    if end_s is None:
        return Token(text, None)
    if end_s <= wall_s:
        raise TokenError("a token that has already run out")
    return Token(text, min(end_s - wall_s, _LIFETIME_MAX_S))


def _object(body: bytes, what: str) -> Mapping[str, object]:
    try:
        found: object = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise TokenError(f"{what}the answer is not JSON") from None
    if not isinstance(found, dict):
        raise TokenError(f"{what}the answer is no JSON object")
    return cast("Mapping[str, object]", found)


def _refusal(answer: Mapping[str, object]) -> str:
    texts = [text for name in ("error", "error_description") if isinstance(text := answer.get(name), str) and text]
    return one_line(", ".join(texts)) if texts else "refused without a reason"


def _expires_in_s(told: object) -> float | None:
    """`expires_in` in seconds; some endpoints send it as a string."""
    if told is None:
        return None
    if isinstance(told, str) and re.fullmatch(r"[0-9]{1,12}", told):
        told = int(told)
    if (
        isinstance(told, bool)
        or not isinstance(told, int | float)
        or (isinstance(told, float) and not math.isfinite(told))
    ):
        raise TokenError("expires_in is no number of seconds")
    if told <= 0:
        raise TokenError("a token that has already run out")
    return float(min(told, _LIFETIME_MAX_S))


def _jwt_expiry_s(text: str) -> float | None:
    """`exp` of a JSON web token, in seconds since 1970. The token is not verified: the brokers do that."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: object = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode())
    except (binascii.Error, ValueError, RecursionError):
        return None
    end = cast("Mapping[str, object]", claims).get("exp") if isinstance(claims, dict) else None
    if isinstance(end, bool) or not isinstance(end, int | float):
        return None
    return float(end) if -1e15 < end < 1e15 else None
