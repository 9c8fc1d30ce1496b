"""PLAIN and SCRAM against the RFCs' own bytes, and against brokers that are wrong, weak or not who they say."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Final, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some
from penstock.api.errors import AuthenticationError
from penstock.producer.security.sasl import BlockingStep
from penstock.producer.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    Credentials,
    PlainMechanism,
    ScramMechanism,
    saslname,
)

NONCE: Final = b"rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE: Final = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT: Final = "W22ZaJ0SNY7soEsUEjb6gQ=="
FINAL: Final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
PIECES: Final = (
    f"r={SERVER_NONCE}".encode(),
    f",s={SALT}".encode(),
    b",i=4096",
    b",i=1",
    b",i=",
    b",x=y",
    FINAL,
    b",",
    b"e=",
    b"v=",
)
PENCIL: Final = Credentials("user", "pencil")


class Server:
    """The other side of RFC 5802, of its section 3 alone."""

    def __init__(
        self, hash_name: str, password: str, *, iterations: int = 4_096, salt: bytes = b"salt of a server"
    ) -> None:
        self._hash = hash_name
        self._salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        self._iterations = iterations
        self._salt = salt
        self._first = ""
        self._bare = ""
        self.user = ""

    def answer(self, client_first: bytes) -> bytes:
        self._bare = client_first.decode().removeprefix("n,,")
        user, nonce = self._bare.split(",")
        self.user = user.removeprefix("n=").replace("=2C", ",").replace("=3D", "=")
        self._first = (
            f"r={nonce.removeprefix('r=')}-of-the-server,s={base64.b64encode(self._salt).decode()},i={self._iterations}"
        )
        return self._first.encode()

    def judge(self, client_final: bytes) -> bytes:
        without_proof, proof = client_final.decode().split(",p=")
        told = f"{self._bare},{self._first},{without_proof}".encode()
        key = self._keyed(self._salted, b"Client Key")
        signature = self._keyed(hashlib.new(self._hash, key).digest(), told)
        if bytes(a ^ b for a, b in zip(key, signature, strict=True)) != base64.b64decode(proof):
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(self._keyed(self._keyed(self._salted, b"Server Key"), told))

    def _keyed(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def exchange(mechanism: ScramMechanism, server: Server) -> None:
    answer = server.answer(mechanism.initial_response())
    said = mechanism.evaluate_challenge(answer)
    proof = said.work() if isinstance(said, BlockingStep) else said
    assert proof is not None
    assert mechanism.evaluate_challenge(server.judge(proof)) is None


def begun() -> ScramMechanism:
    mechanism = ScramMechanism("SCRAM-SHA-256", PENCIL, nonce=NONCE)
    _ = mechanism.initial_response()
    return mechanism


def test_plain_is_name_name_and_password() -> None:
    mechanism = PlainMechanism(PENCIL)
    assert mechanism.initial_response() == b"user\0user\0pencil"
    assert not mechanism.done
    mechanism.evaluate_challenge(b"")
    assert mechanism.done


def test_plain_carries_letters_beyond_ascii_as_utf_8() -> None:
    assert PlainMechanism(Credentials("jürgen", "пѧѩѫ")).initial_response() == "jürgen\0jürgen\0пѧѩѫ".encode()


@pytest.mark.parametrize("credentials", [Credentials("a\0b", "c"), Credentials("a", "b\0c")])
def test_plain_refuses_what_would_be_taken_for_its_divider(credentials: Credentials) -> None:
    with pytest.raises(AuthenticationError, match="NUL"):
        _ = PlainMechanism(credentials)


def test_a_broker_that_answers_plain_with_more_than_nothing_is_not_believed() -> None:
    mechanism = PlainMechanism(PENCIL)
    _ = mechanism.initial_response()
    with pytest.raises(AuthenticationError):
        mechanism.evaluate_challenge(b"well done")
    assert not mechanism.done


@pytest.mark.parametrize("make", [PlainMechanism, lambda credentials: ScramMechanism("SCRAM-SHA-256", credentials)])
@pytest.mark.parametrize("credentials", [Credentials("", "secret"), Credentials("user", "")])
def test_user_and_password_are_wanted(make: Callable[[Credentials], object], credentials: Credentials) -> None:
    with pytest.raises(AuthenticationError, match=r"sasl\."):
        _ = make(credentials)


def test_a_password_is_not_shown() -> None:
    assert "pencil" not in repr(PENCIL)


def test_scram_sha_256_says_the_bytes_of_rfc_7677() -> None:
    mechanism = ScramMechanism("SCRAM-SHA-256", PENCIL, nonce=NONCE)
    assert mechanism.initial_response() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    proof = mechanism.evaluate_challenge(f"r={SERVER_NONCE},s={SALT},i=4096".encode())
    assert proof == f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert not mechanism.done
    assert mechanism.evaluate_challenge(FINAL) is None
    assert mechanism.done


@pytest.mark.parametrize(("name", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
@pytest.mark.parametrize("user", ["user", "a,b=c", "=2C", "jürgen", "n=,r="])
def test_both_sides_agree_whatever_the_user_is_called(name: str, hash_name: str, user: str) -> None:
    mechanism = ScramMechanism(name, Credentials(user, "пѧѩѫ, geheim="))
    server = Server(hash_name, "пѧѩѫ, geheim=")
    exchange(mechanism, server)
    assert mechanism.done
    assert server.user == user


def test_names_are_escaped_as_rfc_5802_has_it() -> None:
    assert saslname("a=b,c") == "a=3Db=2Cc"


def test_a_nonce_is_never_used_again() -> None:
    assert (
        ScramMechanism("SCRAM-SHA-256", PENCIL).initial_response()
        != ScramMechanism("SCRAM-SHA-256", PENCIL).initial_response()
    )


@pytest.mark.parametrize(
    "iterations",
    ["0", "1", "4095", "1000001", "2147483647", "2147483648", "9999999999", "99999999999", "-4096", "4096.0", "٤٠٩٦"],
)
def test_iterations_that_are_too_few_or_too_many_are_refused_before_anything_is_hashed(iterations: str) -> None:
    mechanism = begun()
    before = time.process_time()
    with pytest.raises(AuthenticationError):
        _ = mechanism.evaluate_challenge(f"r={SERVER_NONCE},s={SALT},i={iterations}".encode())
    # One iteration takes about a microsecond: hashing would show.
    assert time.process_time() - before < 0.1
    assert not mechanism.done


@pytest.mark.parametrize(("iterations", "at_once"), [(ITERATIONS_MIN, True), (ITERATIONS_MAX, False)])
def test_the_least_and_the_most_iterations_are_taken_and_much_work_is_not_done_on_the_loop(
    iterations: int, at_once: bool
) -> None:
    said = begun().evaluate_challenge(f"r={SERVER_NONCE},s={SALT},i={iterations}".encode())
    assert isinstance(said, bytes) == at_once
    if isinstance(said, BlockingStep):
        assert cast("bytes", said.work()).startswith(b"c=biws,r=")


@pytest.mark.parametrize(
    "first",
    [
        *("", "nonsense", "e=other-error", "r=,s=,i="),
        f"r={SERVER_NONCE}",
        f"s={SALT},r={SERVER_NONCE},i=4096",
        f"m=future,r={SERVER_NONCE},s={SALT},i=4096",
        f"r={NONCE.decode()},s={SALT},i=4096",
        f"r=other{SERVER_NONCE},s={SALT},i=4096",
        f"r={SERVER_NONCE},s=====,i=4096",
        f"r={SERVER_NONCE},s=W22Z,i=4096,i=1",
        f"r={SERVER_NONCE},s=W22Z,i=4096,r=x",
        f"r={SERVER_NONCE},s=W22Z,i=4096,s=AAAA",
        f"r={SERVER_NONCE},s=W22Z,i=4096,nothing",
        f"r={SERVER_NONCE},s=W22Z,i=4096,x={'y' * 5000}",
    ],
)
def test_a_first_message_that_is_wrong_ends_the_exchange(first: str) -> None:
    mechanism = begun()
    with pytest.raises(AuthenticationError):
        _ = mechanism.evaluate_challenge(first.encode())
    assert not mechanism.done


def test_bytes_that_are_no_text_end_the_exchange() -> None:
    with pytest.raises(AuthenticationError):
        _ = begun().evaluate_challenge(b"\xff\xfe")


def test_an_extension_that_need_not_be_known_is_let_pass() -> None:
    assert begun().evaluate_challenge(f"r={SERVER_NONCE},s={SALT},i=4096,x=y".encode()) is not None


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "signature is wrong"),
        (b"v=", "cannot be read"),
        (b"v=AAA", "base64"),
        (b"", "cannot be read"),
        (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=,v=AAAA", "cannot be read"),
        (b"e=invalid-proof", "the broker refuses: invalid-proof"),
    ],
)
def test_a_broker_that_does_not_prove_itself_is_not_believed(final: bytes, reason: str) -> None:
    mechanism = begun()
    assert mechanism.evaluate_challenge(f"r={SERVER_NONCE},s={SALT},i=4096".encode()) is not None
    with pytest.raises(AuthenticationError, match=reason):
        _ = mechanism.evaluate_challenge(final)
    assert not mechanism.done


def test_a_broker_that_knows_another_password_is_found_out_by_both_sides() -> None:
    mechanism, server = ScramMechanism("SCRAM-SHA-512", PENCIL), Server("sha512", "crayon")
    proof = mechanism.evaluate_challenge(server.answer(mechanism.initial_response()))
    assert isinstance(proof, bytes)
    with pytest.raises(AuthenticationError, match="invalid-proof"):
        _ = mechanism.evaluate_challenge(server.judge(proof))


def test_a_message_after_the_last_one_is_refused() -> None:
    mechanism = ScramMechanism("SCRAM-SHA-256", PENCIL)
    exchange(mechanism, Server("sha256", "pencil"))
    with pytest.raises(AuthenticationError, match="too many"):
        _ = mechanism.evaluate_challenge(b"v=AAAA")


@given(
    some.lists(some.one_of(some.binary(max_size=60), some.sampled_from(PIECES)), min_size=1, max_size=8),
    some.booleans(),
)
def test_whatever_a_broker_sends_is_an_answer_or_an_authentication_error(
    pieces: list[bytes], after_the_first: bool
) -> None:
    mechanism = begun()
    if after_the_first:
        _ = mechanism.evaluate_challenge(f"r={SERVER_NONCE},s={SALT},i=4096".encode())
    message = b"".join(pieces)
    assume(not message.startswith(FINAL))
    try:
        said = mechanism.evaluate_challenge(message)
    except AuthenticationError:
        pass
    else:
        assert not after_the_first, "only the right signature is believed"
        assert said is not None
    assert not mechanism.done
