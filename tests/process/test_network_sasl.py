"""Logins on connections, over real sockets, against brokers that believe, refuse, lie and vanish."""

import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from kafka.protocol.metadata import MetadataRequest
from penstock.api.errors import AuthenticationError
from penstock.producer.network.connection import KafkaConnection
from penstock.producer.network.connection_state import ConnectionLimits, ConnectionState
from penstock.producer.network.socket_options import Security
from penstock.producer.network.tls import TlsContexts, TlsRules
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.security.sasl import BlockingStep, Mechanism, SaslRules

from tests.fakes.network_client import LIMITS, Client, network_client, send_raw
from tests.fakes.scripted_broker import RANGES, Peer, ScriptedBroker
from tests.fakes.secure_broker import (
    AUTHENTICATE,
    HANDSHAKE,
    SASL_RANGES,
    authenticate_body,
    encrypt,
    handshake_body,
    log_in,
    saying,
    server_context,
    take_handshake,
    take_word,
)
from tests.harness.certificates import Authority

ONE_WORD: Final = Security(sasl=saying(b"a word"))
FAILED: Final = 58


@pytest.fixture
def client() -> Iterator[Client]:
    with network_client() as made:
        yield made


def greeting(then: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A broker that greets, and then does this."""

    def script(peer: Peer) -> None:
        _ = peer.greet(SASL_RANGES)
        _ = then(peer)

    return script


def believing(then: Callable[[Peer], object] = Peer.wait_for_end, *, lifetime_ms: int = 0) -> Callable[[Peer], None]:
    """A broker that believes whoever says one word."""

    def script(peer: Peer) -> None:
        log_in(peer, lifetime_ms=lifetime_ms)
        _ = then(peer)

    return greeting(script)


def refusing(code: int = FAILED, text: str | None = "no such user") -> Callable[[Peer], None]:
    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        asked = peer.read()
        peer.send(asked.correlation_id, authenticate_body(asked.version, code=code, text=text))
        _ = peer.wait_for_end()

    return greeting(then)


def wait_of(client: Client, connection: KafkaConnection[str]) -> float:
    """How long after its end the connection, wanted again, makes its next attempt."""
    connection.connect()
    deadline = connection.next_deadline()
    assert deadline is not None
    return deadline - client.lost_at


# --- a login that succeeds -------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_broker_knows_who_asks(client: Client) -> None:
    seen: list[int] = []

    def then(peer: Peer) -> None:
        seen.append(take_handshake(peer).api_key)
        seen.append(take_word(peer, b"challenge").api_key)
        seen.append(take_word(peer).api_key)
        asked = peer.read()
        seen.append(asked.api_key)
        peer.send(asked.correlation_id, b"done")
        _ = peer.wait_for_end()

    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(b"first", b"second")))
        client.until(lambda: connection.state is ConnectionState.AUTHENTICATING)
        assert not connection.ready
        assert not connection.can_send(client.loop_now())
        assert connection.readiness(client.loop_now()).connecting
        client.until(lambda: connection.ready)
        assert connection.incarnation == client.readies == 1
        send_raw(connection, "a")
        client.until(lambda: client.answers == [("a", b"done")])
        _ = connection.close()
    assert seen == [HANDSHAKE, AUTHENTICATE, AUTHENTICATE, 999]


def test_a_login_goes_through_tls(client: Client, tmp_path: Path) -> None:
    authority = Authority()
    context = server_context(authority.issue("a broker"), tmp_path)

    def script(peer: Peer) -> None:
        encrypt(peer, context)
        _ = peer.greet(SASL_RANGES)
        log_in(peer)
        _ = peer.wait_for_end()

    tls = TlsContexts(TlsRules(truststore=authority.write(tmp_path / "authority.pem")))
    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=Security(tls, saying(b"a word")))
        client.until(lambda: connection.ready)
        _ = connection.close()


def test_no_credentials_go_to_a_broker_that_tls_does_not_believe(client: Client, tmp_path: Path) -> None:
    context = server_context(Authority("A Stranger").issue("a broker"), tmp_path)
    made: list[str] = []

    def new_mechanism(host: str) -> Mechanism:
        made.append(host)
        raise AssertionError

    def script(peer: Peer) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            encrypt(peer, context)

    tls = TlsContexts(TlsRules(truststore=Authority().write(tmp_path / "authority.pem")))
    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=Security(tls, SaslRules("WORDS", new_mechanism)))
        client.until(lambda: bool(client.lost))
        assert connection.authentication_failed
    assert made == []


def test_each_login_has_a_mechanism_of_its_own_for_the_host_that_was_advertised(client: Client) -> None:
    hosts: list[str] = []

    def new_mechanism(host: str) -> Mechanism:
        hosts.append(host)
        return saying(b"a word").new_mechanism(host)

    with ScriptedBroker(believing(lambda _: None), believing()) as broker:
        connection = client.open(broker.port, "localhost", security=Security(sasl=SaslRules("WORDS", new_mechanism)))
        client.until(lambda: len(client.lost) == 1)
        connection.connect()
        client.until(lambda: client.readies == 2)
        _ = connection.close()
    assert hosts == ["localhost", "localhost"]


def test_what_blocks_is_done_on_another_thread(client: Client) -> None:
    go_on = threading.Event()
    threads: list[str] = []

    def fetch() -> bytes:
        threads.append(threading.current_thread().name)
        assert go_on.wait(60)
        return b"a token"

    with ScriptedBroker(believing()) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(BlockingStep(fetch))))
        client.until(lambda: bool(threads))
        assert connection.state is ConnectionState.AUTHENTICATING
        go_on.set()
        client.until(lambda: connection.ready)
        _ = connection.close()
    assert threads == ["login"]


# --- a login that fails ----------------------------------------------------------------------------------------------


def test_a_refusal_is_told_in_the_brokers_words_and_not_tried_again_at_once(client: Client) -> None:
    with ScriptedBroker(refusing(), refusing(), believing()) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: len(client.lost) == 1)
        assert connection.last_error == f"127.0.0.1:{broker.port}: authentication failed: no such user"
        assert connection.authentication_failed
        assert client.lost == [([], connection.last_error)]
        # The settings would try again within 50 ms.
        assert wait_of(client, connection) > 0.9
        client.until(lambda: len(client.lost) == 2)
        assert wait_of(client, connection) > 0.9
        client.until(lambda: connection.ready)
        assert connection.last_error == ""
        assert not connection.authentication_failed
        _ = connection.close()


def test_a_mechanism_that_is_not_taken_is_told_with_those_that_are(client: Client) -> None:
    def then(peer: Peer) -> None:
        asked = peer.read()
        peer.send(asked.correlation_id, handshake_body(33, ("PLAIN", "GSSAPI")))
        _ = peer.wait_for_end()

    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: bool(client.lost))
        assert "PLAIN, GSSAPI" in connection.last_error
        assert connection.authentication_failed


def test_a_broker_without_sasl_is_not_told_who_asks(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet(RANGES)
        assert peer.socket.recv(1) == b""

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: bool(client.lost))
        assert "no SASL" in connection.last_error
        assert connection.authentication_failed


@pytest.mark.parametrize(
    "word",
    [
        AuthenticationError("there is no password"),
        BlockingStep(lambda: _raise(AuthenticationError("there is no password"))),
    ],
)
def test_a_login_that_fails_on_our_side_is_told_with_its_reason(
    client: Client, word: AuthenticationError | BlockingStep
) -> None:
    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        assert peer.socket.recv(1) == b""

    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(word)))
        client.until(lambda: bool(client.lost))
        assert connection.last_error.endswith("authentication failed: there is no password")
        assert connection.authentication_failed
        assert wait_of(client, connection) > 0.9


def _raise(error: Exception) -> bytes:
    raise error


def test_a_password_that_cannot_be_had_ends_the_connection_before_a_mechanism_is_named(client: Client) -> None:
    def new_mechanism(_host: str) -> Mechanism:
        raise AuthenticationError("the file of the password is empty")

    def script(peer: Peer) -> None:
        _ = peer.greet(SASL_RANGES)
        assert peer.socket.recv(1) == b""

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=Security(sasl=SaslRules("WORDS", new_mechanism)))
        client.until(lambda: bool(client.lost))
        assert "the file of the password is empty" in connection.last_error
        assert connection.authentication_failed


@pytest.mark.parametrize("words", [0, 1])
def test_a_broker_that_ends_in_the_middle_of_a_login_is_left_alone_for_a_while(client: Client, words: int) -> None:
    """As brokers do with some failed logins (KIP-152); it may be a broken network as well."""

    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        for _ in range(words):
            _ = take_word(peer, b"challenge")
        _ = peer.read()

    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(b"one", b"two", b"three")))
        client.until(lambda: bool(client.lost))
        assert not connection.authentication_failed
        assert connection.failed_during_login
        assert wait_of(client, connection) > 0.9


@pytest.mark.parametrize("answers", ["nothing", "later"])
def test_a_login_that_takes_too_long_is_given_up(client: Client, answers: str) -> None:
    hang = threading.Event()

    def fetch() -> bytes:
        assert hang.wait(60)
        return b"too late"

    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        _ = peer.wait_for_end()

    limits = LIMITS._replace(setup_timeout_s=0.3, setup_timeout_max_s=0.3)
    word = b"a word" if answers == "nothing" else BlockingStep(fetch)
    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(word)), limits=limits)
        client.until(lambda: bool(client.lost))
        assert "logging in to" in connection.last_error
        assert "took too long" in connection.last_error
        hang.set()
        # What comes of it now is nobody's.
        client.until(lambda: not any(thread.name == "login" for thread in threading.enumerate()))
        assert len(client.lost) == 1


def test_a_broker_that_hangs_up_on_the_first_request_may_want_a_login(client: Client) -> None:
    def impatient(peer: Peer) -> None:
        _ = peer.greet(SASL_RANGES)
        _ = peer.read()

    def patient(peer: Peer) -> None:
        _ = peer.greet(SASL_RANGES)
        peer.send(peer.read().correlation_id, b"done")

    with ScriptedBroker(impatient, patient, impatient) as broker:
        connection = client.open(broker.port)
        hints: list[bool] = []
        for round_ in range(1, 4):
            connection.connect()
            client.until(lambda: client.readies == round_)  # noqa: B023 - called before the next round
            send_raw(connection, "a")
            client.until(lambda: len(client.lost) == round_)  # noqa: B023
            hints.append("does this listener want SASL?" in connection.last_error)
        # One that has answered before wants none.
        assert hints == [True, False, False]
        assert not connection.authentication_failed


# --- answers that are none -------------------------------------------------------------------------------------------


def _oversized(correlation_id: int, _version: int) -> bytes:
    return struct.pack(">ii", 2_000_000, correlation_id)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_oversized, "2000000 bytes"),
        (lambda _id, _version: struct.pack(">i", 2**31 - 1), "2147483647 bytes"),
        (lambda _id, _version: struct.pack(">i", 0), "0 bytes"),
        (lambda correlation_id, _version: struct.pack(">ii", 4, correlation_id), "cannot be read"),
        (lambda correlation_id, _version: struct.pack(">ii", 4, correlation_id - 1), "correlation id"),
        (lambda _id, _version: struct.pack(">ii", 4, 1), "correlation id"),
        (
            lambda correlation_id, _version: struct.pack(">ii", 30, correlation_id) + b"\xff" * 26,
            "cannot be read",
        ),
    ],
    ids=["oversize", "the greatest length", "no length", "nothing", "the last id", "an id of requests", "noise"],
)
def test_an_answer_that_is_none_ends_the_connection(
    client: Client, answer: Callable[[int, int], bytes], words: str
) -> None:
    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        asked = peer.read()
        peer.socket.sendall(answer(asked.correlation_id, asked.version))
        _ = peer.wait_for_end()

    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: bool(client.lost))
        assert words in connection.last_error
        assert client.readies == 0
        assert wait_of(client, connection) > 0.9


def test_an_answer_nobody_asked_for_ends_the_connection(client: Client) -> None:
    go_on = threading.Event()

    def fetch() -> bytes:
        assert go_on.wait(60)
        return b"too late"

    def then(peer: Peer) -> None:
        asked = take_handshake(peer)
        peer.send(asked.correlation_id + 1, authenticate_body(2))
        _ = peer.wait_for_end()

    with ScriptedBroker(greeting(then)) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(BlockingStep(fetch))))
        client.until(lambda: bool(client.lost))
        go_on.set()
        assert "nothing was asked" in connection.last_error


def test_an_empty_success_does_not_satisfy_a_mechanism_that_wants_proof(client: Client) -> None:
    wants_proof = AuthenticationError("the broker's signature is missing")
    with ScriptedBroker(believing()) as broker:
        connection = client.open(broker.port, security=Security(sasl=saying(b"a word", wants_proof)))
        client.until(lambda: bool(client.lost))
        assert "signature is missing" in connection.last_error
        assert client.readies == 0


def test_answers_may_be_long_only_once_both_know_each_other(client: Client) -> None:
    def then(peer: Peer) -> None:
        asked = peer.read()
        peer.send(asked.correlation_id, bytes(3_000_000))
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: connection.ready)
        send_raw(connection, "a")
        client.until(lambda: client.answers == [("a", bytes(3_000_000))])
        _ = connection.close()


# --- sessions that end (KIP-368) -------------------------------------------------------------------------------------


def test_a_session_is_renewed_in_time_and_nothing_new_goes_out_meanwhile(client: Client) -> None:
    answer_now, reauthenticated = threading.Event(), threading.Event()
    seen: list[int] = []

    def then(peer: Peer) -> None:
        first = peer.read()
        # The client wants to renew by now, and waits for this answer.
        assert answer_now.wait(60)
        peer.send(first.correlation_id, b"late")
        seen.append(take_handshake(peer).api_key)
        seen.append(take_word(peer).api_key)
        asked = peer.read()
        seen.append(asked.api_key)
        peer.send(asked.correlation_id, b"after")
        reauthenticated.set()
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then, lifetime_ms=1_200)) as broker:
        began = client.loop_now()
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: connection.ready)
        renewal = connection.next_deadline()
        assert renewal is not None
        # 90 % of the session: the draw lies in the middle.
        assert began + 1.08 <= renewal <= client.loop_now() + 1.08
        send_raw(connection, "before")
        client.until(lambda: connection.state is ConnectionState.DRAINING)
        assert client.loop_now() >= renewal
        assert not connection.ready
        assert not connection.can_send(client.loop_now())
        with pytest.raises(AssertionError):
            send_raw(connection, "too late")
        answer_now.set()
        client.until(lambda: client.answers == [("before", b"late")])
        client.until(lambda: connection.ready)
        assert connection.incarnation == client.readies == 1
        assert client.lost == []
        send_raw(connection, "after")
        client.until(lambda: len(client.answers) == 2)
        assert reauthenticated.is_set()
        _ = connection.close()
    assert seen == [HANDSHAKE, AUTHENTICATE, 999]


def test_a_request_without_answer_is_written_before_the_session_is_renewed(client: Client) -> None:
    seen: list[int] = []

    def then(peer: Peer) -> None:
        seen.append(peer.read().api_key)
        seen.append(take_handshake(peer).api_key)
        _ = take_word(peer)
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then, lifetime_ms=1_000)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: connection.ready)
        send_raw(connection, "silent", expects_answer=False)
        client.until(lambda: connection.state is ConnectionState.REAUTHENTICATING)
        client.until(lambda: connection.ready)
        assert client.answers == [("silent", b"")]
        _ = connection.close()
    assert seen == [999, HANDSHAKE]


def test_a_session_is_renewed_as_often_as_it_ends(client: Client) -> None:
    logins: list[int] = []

    def then(peer: Peer) -> None:
        for count in range(2):
            log_in(peer, lifetime_ms=1_000)
            logins.append(count)
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then, lifetime_ms=1_000)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: len(logins) == 2 and connection.ready)
        assert client.readies == 1
        _ = connection.close()


def test_a_renewal_that_is_refused_ends_the_connection(client: Client) -> None:
    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        asked = peer.read()
        peer.send(asked.correlation_id, authenticate_body(asked.version, code=FAILED, text="the user is gone"))
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then, lifetime_ms=1_000)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: connection.ready)
        client.until(lambda: bool(client.lost))
        assert connection.last_error.endswith("authentication failed: the user is gone")
        assert connection.authentication_failed
        assert wait_of(client, connection) > 0.9


def test_a_renewal_that_is_not_answered_is_given_up(client: Client) -> None:
    limits = LIMITS._replace(setup_timeout_s=0.3, setup_timeout_max_s=0.3)
    with ScriptedBroker(believing(lifetime_ms=1_000)) as broker:
        connection = client.open(broker.port, security=ONE_WORD, limits=limits)
        client.until(lambda: connection.ready)
        client.until(lambda: bool(client.lost))
        assert "logging in again to" in connection.last_error
        assert "took too long" in connection.last_error


def test_what_is_in_flight_when_a_session_ends_keeps_its_own_time(client: Client) -> None:
    limits = ConnectionLimits(reconnect=Backoff(0.01, 0.05), request_timeout_s=1.3)

    def then(peer: Peer) -> None:
        _ = peer.read()
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then, lifetime_ms=1_000)) as broker:
        connection = client.open(broker.port, security=ONE_WORD, limits=limits)
        client.until(lambda: connection.ready)
        send_raw(connection, "never answered")
        client.until(lambda: connection.state is ConnectionState.DRAINING)
        client.until(lambda: bool(client.lost))
        assert client.lost[0][0] == ["never answered"]
        assert "did not answer within" in connection.last_error


def test_versions_stay_known_while_a_session_is_renewed(client: Client) -> None:
    go_on = threading.Event()

    def then(peer: Peer) -> None:
        _ = take_handshake(peer)
        assert go_on.wait(60)
        _ = take_word(peer)
        asked = peer.read()
        assert (asked.api_key, asked.version) == (3, 13)
        _ = peer.wait_for_end()

    with ScriptedBroker(believing(then, lifetime_ms=1_000)) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: connection.state is ConnectionState.REAUTHENTICATING)
        assert connection.version_of(3, 0, 99) == 13
        go_on.set()
        client.until(lambda: connection.ready)
        assert connection.send(MetadataRequest(topics=[]), "m") == 13
        assert connection.close() == ["m"]


def test_a_session_without_an_end_is_never_renewed(client: Client) -> None:
    with ScriptedBroker(believing()) as broker:
        connection = client.open(broker.port, security=ONE_WORD)
        client.until(lambda: connection.ready)
        deadline = connection.next_deadline()
        assert deadline is not None
        assert deadline - client.loop_now() > 500
        _ = connection.close()
