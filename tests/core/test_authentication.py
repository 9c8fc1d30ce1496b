"""The exchange of SASL: what is sent, and what is made of every answer."""

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.api.errors import AuthenticationError
from penstock.producer.protocol.framing import StreamError
from penstock.producer.security.sasl import (
    ANSWER_BYTES_MAX,
    FIRST_CORRELATION_ID,
    TEXT_MAX,
    Authenticated,
    AuthenticationFailed,
    BlockingResult,
    BlockingStep,
    Mechanism,
    SaslAuthentication,
    SaslRequest,
    SaslStep,
)

from tests.fakes.scripted_broker import RANGES
from tests.fakes.secure_broker import (
    AUTHENTICATE,
    HANDSHAKE,
    SASL_RANGES,
    Words,
    authenticate_body,
    handshake_body,
)

FAILED: Final = 58


def exchange(mechanism: Mechanism, ranges: dict[int, tuple[int, int]] = SASL_RANGES) -> SaslAuthentication:
    return SaslAuthentication("WORDS", mechanism, ranges, "a-client")


class Broker:
    """The other side, as bytes."""

    def __init__(self, authentication: SaslAuthentication) -> None:
        self.authentication = authentication
        self.key, self.version, self.id = 0, 0, 0

    def take(self, step: SaslStep) -> bytes:
        """The request, without its fixed fields."""
        assert isinstance(step, SaslRequest), step
        length, self.key, self.version, self.id = struct.unpack_from(">ihhi", step.framed)
        assert length == len(step.framed) - 4
        return step.framed[12:]

    def answer(self, body: bytes) -> SaslStep:
        return self.authentication.answered(struct.pack(">i", self.id) + body)

    def word(self, said: bytes = b"", *, code: int = 0, text: str | None = None, lifetime_ms: int = 0) -> SaslStep:
        body = authenticate_body(self.version, said, code=code, text=text, lifetime_ms=lifetime_ms)
        return self.answer(body)


def begun(mechanism: Mechanism, ranges: dict[int, tuple[int, int]] = SASL_RANGES) -> tuple[Broker, SaslStep]:
    """The mechanism was named and taken. The broker, and what comes next."""
    broker = Broker(exchange(mechanism, ranges))
    _ = broker.take(broker.authentication.begin())
    return broker, broker.answer(handshake_body())


def test_the_mechanism_is_named_then_its_words_are_carried_until_it_is_done() -> None:
    mechanism = Words(b"first", b"second")
    broker = Broker(exchange(mechanism))
    request = broker.take(broker.authentication.begin())
    assert (broker.key, broker.version) == (HANDSHAKE, 1)
    assert b"WORDS" in request
    assert b"a-client" in request
    request = broker.take(broker.answer(handshake_body()))
    assert (broker.key, broker.version) == (AUTHENTICATE, 2)
    assert request.endswith(b"first\0")
    request = broker.take(broker.word(b"challenge"))
    assert request.endswith(b"second\0")
    assert broker.word(b"farewell", lifetime_ms=60_000) == Authenticated(60_000)
    assert mechanism.heard == [b"challenge", b"farewell"]


def test_a_mechanism_that_lets_the_broker_begin_sends_an_empty_message_first() -> None:
    broker, step = begun(Words(None, b"answer"))
    assert broker.take(step).endswith(b"\x01\0")
    assert broker.take(broker.word(b"challenge")).endswith(b"answer\0")
    assert broker.word() == Authenticated(0)


@pytest.mark.parametrize("offered", [(0, 0), (0, 1), (1, 2), (0, 9)])
def test_the_greatest_common_version_is_spoken(offered: tuple[int, int]) -> None:
    broker, step = begun(Words(b"word"), {**SASL_RANGES, AUTHENTICATE: offered})
    _ = broker.take(step)
    assert broker.version == min(offered[1], 2)
    # Version 0 tells no lifetime.
    assert broker.word(lifetime_ms=500) == Authenticated(500 if broker.version else 0)


@pytest.mark.parametrize(
    "ranges",
    [
        RANGES,
        {**SASL_RANGES, HANDSHAKE: (0, 0)},
        {**SASL_RANGES, HANDSHAKE: (2, 3)},
        {**RANGES, HANDSHAKE: (0, 1)},
        {**SASL_RANGES, AUTHENTICATE: (3, 4)},
    ],
)
def test_a_broker_without_the_exchange_is_refused_before_anything_is_said(ranges: dict[int, tuple[int, int]]) -> None:
    assert isinstance(exchange(Words(b"secret"), ranges).begin(), AuthenticationFailed)


def test_ids_are_of_the_range_that_is_kept_for_this_and_come_round() -> None:
    broker, step = begun(Words(*[b"word"] * 12))
    seen = [broker.id]
    while isinstance(step, SaslRequest):
        _ = broker.take(step)
        seen.append(broker.id)
        step = broker.word()
    assert step == Authenticated(0)
    assert seen == [FIRST_CORRELATION_ID + count % 8 for count in range(13)]
    assert max(seen) == 2**31 - 1


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (33, "does not take SASL mechanism WORDS, but: PLAIN, SCRAM-SHA-256"),
        (34, "wants no SASL"),
        (7, "SaslHandshake: REQUEST_TIMED_OUT"),
        (-1, "SaslHandshake: UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_mechanism_that_is_not_taken_is_told_with_those_that_are(code: int, words: str) -> None:
    broker = Broker(exchange(Words(b"secret")))
    _ = broker.take(broker.authentication.begin())
    step = broker.answer(handshake_body(code, ("PLAIN", "SCRAM-SHA-256")))
    assert isinstance(step, AuthenticationFailed)
    assert words in step.reason


def test_the_brokers_own_words_are_the_reason() -> None:
    broker, step = begun(Words(b"wrong"))
    _ = broker.take(step)
    assert broker.word(code=FAILED, text="Authentication failed: Invalid username or password") == AuthenticationFailed(
        "Authentication failed: Invalid username or password"
    )


def test_a_refusal_without_words_is_told_by_its_name() -> None:
    broker, step = begun(Words(b"wrong"))
    _ = broker.take(step)
    assert broker.word(code=FAILED) == AuthenticationFailed("SASL_AUTHENTICATION_FAILED")


def test_an_error_of_another_kind_is_named() -> None:
    broker, step = begun(Words(b"word"))
    _ = broker.take(step)
    assert broker.word(code=34, text="out of turn") == AuthenticationFailed("ILLEGAL_SASL_STATE: out of turn")


def test_words_of_a_broker_are_one_line_of_bounded_length() -> None:
    broker, step = begun(Words(b"wrong"))
    _ = broker.take(step)
    step = broker.word(code=FAILED, text="\x1b[2J\n" + "x" * 30_000)
    assert isinstance(step, AuthenticationFailed)
    assert step.reason == " [2J " + "x" * (TEXT_MAX - 5) + "…"


def test_a_mechanism_that_disbelieves_the_broker_ends_the_exchange() -> None:
    broker, step = begun(Words(b"word", AuthenticationError("the broker's signature is wrong")))
    _ = broker.take(step)
    assert broker.word(b"forged") == AuthenticationFailed("the broker's signature is wrong")


def test_a_mechanism_that_cannot_begin_ends_the_exchange_before_it_says_anything() -> None:
    _, step = begun(Words(AuthenticationError("there is no password")))
    assert step == AuthenticationFailed("there is no password")


class NeverDone:
    """It has something to say to everything, or nothing, and is never satisfied."""

    done = False

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer

    def initial_response(self) -> bytes:
        return b"word"

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        return self._answer


def test_a_broker_that_says_yes_too_early_is_not_believed() -> None:
    broker, step = begun(NeverDone(None))
    _ = broker.take(step)
    step = broker.word()
    assert isinstance(step, AuthenticationFailed)
    assert "before WORDS was satisfied" in step.reason


def test_an_exchange_does_not_go_on_for_ever() -> None:
    broker, step = begun(NeverDone(b"and"))
    words = 0
    while isinstance(step, SaslRequest):
        _ = broker.take(step)
        words += 1
        step = broker.word(b"on")
    assert isinstance(step, AuthenticationFailed)
    assert words == 16


# --- answers that are none -------------------------------------------------------------------------------------------


def test_an_answer_to_something_else_says_nothing_of_the_login() -> None:
    broker, step = begun(Words(b"word"))
    _ = broker.take(step)
    broker.id -= 1
    with pytest.raises(StreamError, match="correlation id"):
        _ = broker.word()


def test_a_second_answer_is_none() -> None:
    broker, step = begun(Words(b"word"))
    _ = broker.take(step)
    assert broker.word() == Authenticated(0)
    with pytest.raises(StreamError, match="nothing was asked"):
        _ = broker.word()


def test_an_answer_may_be_large_and_not_larger() -> None:
    for size, fits in ((ANSWER_BYTES_MAX - 100, True), (ANSWER_BYTES_MAX, False)):
        broker, step = begun(Words(b"word"))
        _ = broker.take(step)
        if fits:
            assert broker.word(bytes(size)) == Authenticated(0)
        else:
            with pytest.raises(StreamError, match="allowed"):
                _ = broker.word(bytes(size))


def test_every_cut_answer_ends_the_stream_or_the_login() -> None:
    whole = authenticate_body(2, b"challenge", text=None)
    for end in range(len(whole)):
        broker, step = begun(Words(b"word", b"more"))
        _ = broker.take(step)
        with pytest.raises(StreamError):
            _ = broker.answer(whole[:end])


@given(st.binary(max_size=200), st.booleans())
def test_whatever_a_broker_says_is_judged_and_never_a_fault(body: bytes, naming: bool) -> None:
    broker = Broker(exchange(Words(b"word", b"more")))
    _ = broker.take(broker.authentication.begin())
    if not naming:
        _ = broker.take(broker.answer(handshake_body()))
    try:
        step = broker.answer(body)
    except StreamError:
        return
    assert isinstance(step, SaslRequest | AuthenticationFailed | Authenticated)


@pytest.mark.parametrize(("told", "held"), [(-1, 0), (-(2**63), 0), (1, 1), (2**63 - 1, 2**63 - 1)])
def test_the_lifetime_of_a_session_is_what_the_broker_says_unless_it_is_no_time(told: int, held: int) -> None:
    broker, step = begun(Words(b"word"))
    _ = broker.take(step)
    assert broker.word(lifetime_ms=told) == Authenticated(held)


# --- work that blocks ------------------------------------------------------------------------------------------------


def test_a_mechanism_may_put_off_what_it_says() -> None:
    later = BlockingStep(lambda: b"a token")
    broker, step = begun(Words(later, later))
    assert step is later
    assert broker.take(broker.authentication.blocking_step_done(BlockingResult(b"a token"))).endswith(b"a token\0")
    assert broker.word(b"challenge") is later
    assert broker.take(broker.authentication.blocking_step_done(BlockingResult(b"more"))).endswith(b"more\0")
    assert broker.word() == Authenticated(0)


def test_work_that_ends_with_nothing_to_say_ends_the_exchange() -> None:
    later = BlockingStep(lambda: None)
    broker, step = begun(Words(b"word", later))
    _ = broker.take(step)
    assert broker.word(lifetime_ms=7_000) is later
    assert broker.authentication.blocking_step_done(BlockingResult(None)) == Authenticated(7_000)


def test_work_that_failed_is_a_refusal() -> None:
    broker, _ = begun(Words(BlockingStep(lambda: b"")))
    assert broker.authentication.blocking_step_done(
        BlockingResult(AuthenticationError("no ticket\n"))
    ) == AuthenticationFailed("no ticket ")


def test_an_answer_while_work_is_under_way_is_none() -> None:
    broker, _ = begun(Words(BlockingStep(lambda: b"")))
    with pytest.raises(StreamError, match="nothing was asked"):
        _ = broker.answer(authenticate_body(2))
