"""What is a token, for how long, and when the next one is due."""

import base64
import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as some
from penstock.producer.security.tokens import (
    TOKEN_BYTES_MAX,
    RefreshWindow,
    Token,
    TokenError,
    parse_token,
    refresh_after_s,
    token_from_response,
)

NOW: Final = 1_800_000_000.0
KAFKAS: Final = RefreshWindow(0.8, 0.05, 60.0, 300.0)


def web_token(claims: object) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256"}, claims)] + [b"signature"]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def answered(answer: object, status: int = 200) -> Token:
    return token_from_response(status, json.dumps(answer).encode(), wall_s=NOW)


def test_a_token_lives_as_long_as_the_endpoint_says() -> None:
    assert answered({"access_token": "abc", "token_type": "Bearer", "expires_in": 3600}) == Token("abc", 3600.0)


@pytest.mark.parametrize(
    ("told", "own", "lifetime_s"), [(3600, NOW + 60, 60.0), (30, NOW + 60, 30.0), (None, NOW + 60, 60.0)]
)
def test_of_two_ends_the_nearer_one_counts(told: int | None, own: float, lifetime_s: float) -> None:
    token = web_token({"exp": own})
    assert answered({"access_token": token, "expires_in": told}) == Token(token, lifetime_s)


def test_a_lifetime_may_be_written_as_a_text_and_may_be_left_out() -> None:
    assert answered({"access_token": "abc", "expires_in": "3600"}).lifetime_s == 3600.0
    assert answered({"access_token": "abc"}).lifetime_s is None
    assert answered({"access_token": "abc", "expires_in": 10**30}).lifetime_s == 10 * 365 * 86_400.0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([], "no JSON object"),
        ({}, "no access_token"),
        ({"access_token": 7}, "not a string"),
        ({"access_token": ""}, "characters"),
        ({"access_token": "a b"}, "characters"),
        ({"access_token": "a\x01auth=x"}, "characters"),
        ({"access_token": "a\r\nHost: elsewhere"}, "characters"),
        ({"access_token": "a" * (TOKEN_BYTES_MAX + 1)}, "letters"),
        ({"access_token": "abc", "token_type": "mac"}, "bearer"),
        ({"access_token": "abc", "token_type": 1}, "bearer"),
        ({"access_token": "abc", "expires_in": 0}, "run out"),
        ({"access_token": "abc", "expires_in": -5}, "run out"),
        ({"access_token": "abc", "expires_in": True}, "number of seconds"),
        ({"access_token": "abc", "expires_in": "soon"}, "number of seconds"),
        ({"access_token": "abc", "expires_in": [1]}, "number of seconds"),
        ({"access_token": "abc", "expires_in": float("inf")}, "number of seconds"),
        ({"access_token": "abc", "expires_in": float("nan")}, "number of seconds"),
        ({"access_token": web_token({"exp": NOW - 1})}, "run out"),
    ],
)
def test_an_answer_without_a_token_that_could_be_used_is_refused(answer: object, reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        _ = answered(answer)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[" * 100_000, b'{"access_token": ' + b"1" * 5_000 + b"}"])
def test_bytes_that_are_no_json_are_refused(body: bytes) -> None:
    with pytest.raises(TokenError):
        _ = token_from_response(200, body, wall_s=NOW)


def test_a_refusal_is_told_in_the_endpoints_own_words() -> None:
    with pytest.raises(TokenError, match="status 401: invalid_client, who are you\\? "):
        _ = answered({"error": "invalid_client", "error_description": "who are you?\n"}, 401)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_not_followed(status: int) -> None:
    with pytest.raises(TokenError, match="redirections"):
        _ = answered({"access_token": "abc"}, status)


def test_a_failure_that_is_no_json_is_told_by_its_status() -> None:
    with pytest.raises(TokenError, match="status 503, and the answer is not JSON"):
        _ = token_from_response(503, b"busy", wall_s=NOW)


@pytest.mark.parametrize("claims", [[], "text", {"exp": "late"}, {"exp": True}, {"exp": 1e300}, {}])
def test_claims_without_an_end_are_left_to_the_brokers(claims: object) -> None:
    assert parse_token(web_token(claims), wall_s=NOW).lifetime_s is None


@pytest.mark.parametrize("text", ["a.b.c", "....", "a.-.c", "a.eyJleHAiOjE.c", "opaque-token=="])
def test_what_only_looks_like_a_web_token_is_left_to_the_brokers(text: str) -> None:
    assert parse_token(text, wall_s=NOW) == Token(text, None)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Token("secret", 1.0))


@pytest.mark.parametrize(
    ("lifetime_s", "chance", "wait_s"),
    [
        (3600.0, 0.0, 2880.0),  # 80 % of its life
        (3600.0, 0.999_999, 3060.0),  # and 5 % more by chance
        (1000.0, 0.0, 700.0),  # 300 s before the end
        (400.0, 0.0, 100.0),  # the same
        (361.0, 0.0, 61.0),
        (300.0, 0.0, 240.0),  # no time for both: 80 %
        (10.0, 0.0, 8.0),
    ],
)
def test_the_next_token_is_asked_for_as_kafkas_windows_say(lifetime_s: float, chance: float, wait_s: float) -> None:
    assert refresh_after_s(lifetime_s, KAFKAS, chance) == pytest.approx(wait_s, abs=0.01)


@given(
    some.floats(0.001, 1e8),
    some.builds(RefreshWindow, some.floats(0.5, 1.0), some.floats(0, 0.25), some.floats(0, 900), some.floats(0, 3_600)),
    some.floats(0, 1, exclude_max=True),
)
def test_a_token_is_never_kept_beyond_its_end(lifetime_s: float, window: RefreshWindow, chance: float) -> None:
    assert 0.0 <= refresh_after_s(lifetime_s, window, chance) <= lifetime_s


@given(some.binary(max_size=200), some.integers(100, 599))
def test_whatever_bytes_come_are_a_token_or_an_error_of_ours(body: bytes, status: int) -> None:
    with pytest.raises(TokenError):
        _ = token_from_response(status, body, wall_s=NOW)
