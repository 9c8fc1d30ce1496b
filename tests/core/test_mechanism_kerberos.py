"""The exchange of RFC 4752 with a context that says what the test wants; real Kerberos is tried elsewhere."""

from typing import Final, NamedTuple

import pytest
from penstock.api.errors import AuthenticationError
from penstock.producer.security.gssapi import GssapiMechanism, GssContext, KerberosIdentity
from penstock.producer.security.sasl import BlockingStep

WHO: Final = KerberosIdentity("kafka", None, "")


class ContextError(Exception):
    """What a real context raises."""


class Message(NamedTuple):
    message: bytes


class Scripted:
    """A context that is complete after so many tokens of the peer's."""

    def __init__(self, tokens: int = 1, offer: bytes = b"\x01\x00\xff\xff", last: bytes | None = None) -> None:
        self._tokens = tokens
        self._offer = offer
        self._last = last
        self.seen: list[bytes] = []
        self.wrapped = b""

    @property
    def complete(self) -> bool:
        return len(self.seen) == self._tokens

    def step(self, token: bytes | None = None) -> bytes | None:
        if token is None:
            return b"ticket"
        if token == b"bad":
            raise ContextError("a token of somebody else")
        self.seen.append(token)
        return self._last if self.complete else b"more"

    def wrap(self, message: bytes, encrypt: bool) -> Message:
        assert not encrypt
        self.wrapped = message
        return Message(b"wrapped")

    def unwrap(self, message: bytes) -> Message:
        if message == b"bad":
            raise ContextError("a message of somebody else")
        return Message(self._offer)


def begun(context: Scripted) -> GssapiMechanism:
    def new(identity: KerberosIdentity, host: str) -> tuple[GssContext, tuple[type[Exception], ...]]:
        assert (identity, host) == (WHO, "broker-1")
        return context, (ContextError,)

    mechanism = GssapiMechanism(WHO, "broker-1", new)
    first = mechanism.initial_response()
    assert isinstance(first, BlockingStep), "tickets are asked for off the loop"
    assert first.work() == b"ticket"
    return mechanism


def test_both_sides_are_known_before_a_layer_is_chosen_and_the_layer_is_none() -> None:
    context = Scripted(tokens=2)
    mechanism = begun(context)
    assert mechanism.evaluate_challenge(b"theirs") == b"more"
    assert mechanism.evaluate_challenge(b"theirs again") == b""
    assert not mechanism.done
    assert mechanism.evaluate_challenge(b"offer") == b"wrapped"
    assert context.wrapped == b"\x01\x00\x00\x00", "no layer, no size, the ticket's own name"
    assert not mechanism.done, "the broker has not said that it agrees"
    assert mechanism.evaluate_challenge(b"") is None
    assert mechanism.done


@pytest.mark.parametrize("offer", [b"", b"\x01", b"\x01\x00\x00\x00\x00", b"\x06\x00\xff\xff", b"\x00\x00\x00\x00"])
def test_an_offer_without_what_we_speak_is_refused(offer: bytes) -> None:
    mechanism = begun(Scripted(offer=offer))
    assert mechanism.evaluate_challenge(b"theirs") == b""
    with pytest.raises(AuthenticationError):
        _ = mechanism.evaluate_challenge(b"offer")
    assert not mechanism.done


def test_what_the_library_does_not_believe_ends_the_exchange_with_its_words() -> None:
    with pytest.raises(AuthenticationError, match="a token of somebody else"):
        _ = begun(Scripted()).evaluate_challenge(b"bad")
    mechanism = begun(Scripted())
    _ = mechanism.evaluate_challenge(b"theirs")
    with pytest.raises(AuthenticationError, match="a message of somebody else"):
        _ = mechanism.evaluate_challenge(b"bad")


def test_a_message_after_the_last_one_is_refused() -> None:
    mechanism = begun(Scripted())
    _ = mechanism.evaluate_challenge(b"theirs"), mechanism.evaluate_challenge(b"offer")
    with pytest.raises(AuthenticationError, match="too many"):
        _ = mechanism.evaluate_challenge(b"and another thing")


def test_a_keytab_that_is_none_is_refused_by_the_real_library(tmp_path: object) -> None:
    gssapi = pytest.importorskip("gssapi")
    assert gssapi
    from pathlib import Path

    keytab = Path(str(tmp_path)) / "keytab"
    _ = keytab.write_bytes(b"no keytab")
    first = GssapiMechanism(KerberosIdentity("kafka", keytab, "me@EXAMPLE.TEST"), "localhost").initial_response()
    with pytest.raises(AuthenticationError, match="Kerberos"):
        _ = first.work()
