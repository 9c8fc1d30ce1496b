"""Connections through TLS, over real sockets, against brokers that are who they should be and those that are not."""

import contextlib
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import pytest
from penstock.config.model import KafkaSettings
from penstock.producer.network.connection_state import ConnectionLimits, ConnectionState
from penstock.producer.network.socket_options import Security, SocketOptions, control_options, produce_options
from penstock.producer.network.tls import TlsContexts, TlsRules
from penstock.producer.protocol.backoff import Backoff

from tests.fakes.network_client import LIMITS, Client, network_client, send_raw
from tests.fakes.scripted_broker import Peer, ScriptedBroker
from tests.fakes.secure_broker import TLS_1_2, TLS_1_3, ByteByByte, encrypt, server_context
from tests.harness.certificates import EXPIRED, NOT_YET, Authority, Certificate

_OLD: Final = ssl.TLSVersion.TLSv1
VERSIONS: Final = pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3], ids=["TLS 1.2", "TLS 1.3"])
_NO_WORD: Final = (ssl.SSLError, EOFError, ConnectionError)
"""How the broker's side ends when the client has had enough."""


@pytest.fixture
def client() -> Iterator[Client]:
    with network_client() as made:
        yield made


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def good(authority: Authority) -> Certificate:
    return authority.issue("a broker")


def trusting(authority: Authority, folder: Path, **more: object) -> Security:
    """Believes what this authority has signed."""
    rules = TlsRules(truststore=authority.write(folder / "authority.pem"))
    return Security(TlsContexts(rules._replace(**more)))  # type: ignore[arg-type]


def serving(
    context: ssl.SSLContext, then: Callable[[Peer], object] = Peer.wait_for_end, *, wants_word: bool = False
) -> Callable[[Peer], None]:
    """A broker that greets through TLS."""

    def script(peer: Peer) -> None:
        encrypt(peer, context, wants_word=wants_word)
        _ = peer.greet()
        _ = then(peer)

    return script


def refused_by(context: ssl.SSLContext) -> Callable[[Peer], None]:
    """A broker that the client does not believe, or the reverse."""

    def script(peer: Peer) -> None:
        try:
            encrypt(peer, context)
            # With TLS 1.3 the client is done before the server has looked at its certificate.
            _ = peer.read()
        except _NO_WORD:
            return
        pytest.fail("the client went on")

    return script


def refusal(client: Client, broker: ScriptedBroker, security: Security, host: str = "127.0.0.1") -> str:
    """Why the connection did not come to be."""
    connection = client.open(broker.port, host, security=security)
    client.until(lambda: bool(client.lost))
    assert client.readies == 0
    assert connection.authentication_failed, connection.last_error
    assert connection.last_error == client.lost[0][1]
    assert connection.state is ConnectionState.DISCONNECTED
    connection.connect()
    # Whatever the settings say: it will not get better at once.
    assert (connection.next_deadline() or 0.0) > client.lost_at + 0.5
    return connection.last_error


# --- a broker that is who it should be -------------------------------------------------------------------------------


@VERSIONS
def test_requests_and_answers_go_through_tls(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    spoken: list[str | None] = []

    def then(peer: Peer) -> None:
        spoken.append(cast("ssl.SSLSocket", peer.socket).version())
        asked = [peer.read() for _ in range(3)]
        for one, body in zip(asked, [b"first", b"", b"third" * 20_000], strict=True):
            peer.send(one.correlation_id, body)
        _ = peer.wait_for_end()

    context = server_context(good, tmp_path, versions=(version, version))
    with ScriptedBroker(serving(context, then)) as broker:
        connection = client.open(broker.port, "localhost", security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        for tag in "abc":
            send_raw(connection, tag, b"body of " + tag.encode())
        client.until(lambda: len(client.answers) == 3)
        assert client.answers == [("a", b"first"), ("b", b""), ("c", b"third" * 20_000)]
        assert connection.pending_bytes == 0
        _ = connection.close()
    assert spoken == [{TLS_1_2: "TLSv1.2", TLS_1_3: "TLSv1.3"}[version]]


@VERSIONS
def test_large_requests_and_answers_pass_while_the_other_side_is_slow(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    payload = bytes(range(256)) * 16_384
    seen: list[bytes] = []

    def then(peer: Peer) -> None:
        asked = peer.read()
        seen.append(asked.body)
        peer.send(asked.correlation_id, payload)
        _ = peer.wait_for_end()

    context = server_context(good, tmp_path, versions=(version, version))
    options = SocketOptions(send_buffer_bytes=16_384, receive_buffer_bytes=16_384)
    with ScriptedBroker(serving(context, then)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path), sockets=options)
        client.until(lambda: connection.ready)
        # Pieces larger and smaller than a record of TLS, and many that are tiny.
        sizes = [100_000, 1, 16_384, 16_385, *[7] * 3_000]
        pieces: list[memoryview] = []
        start = 0
        for size in sizes:
            pieces.append(memoryview(payload)[start : start + size])
            start += size
        pieces.append(memoryview(payload)[start:])
        send_raw(connection, "large", *pieces)
        assert connection.pending_bytes > 0
        client.until(lambda: bool(client.answers))
        assert client.answers == [("large", payload)]
        assert connection.pending_bytes == 0
        assert seen[0].endswith(payload)
        _ = connection.close()


@VERSIONS
def test_every_byte_may_travel_alone(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = server_context(good, tmp_path, versions=(version, version))

    def script(peer: Peer) -> None:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.socket = cast("socket.socket", ByteByByte(peer, context))
        _ = peer.greet()
        for _ in range(2):
            asked = peer.read()
            peer.send(asked.correlation_id, b"x" * 500)
        with pytest.raises(EOFError):
            _ = peer.read()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        send_raw(connection, "a", b"y" * 500)
        send_raw(connection, "b", b"z" * 500)
        client.until(lambda: len(client.answers) == 2)
        assert client.answers == [("a", b"x" * 500), ("b", b"x" * 500)]
        _ = connection.close()


def test_many_small_answers_in_one_record_are_all_read(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    """What TLS has decrypted and nobody has read yet makes no event: it must not be left there."""

    def then(peer: Peer) -> None:
        asked = [peer.read() for _ in range(50)]
        stream = b"".join(struct.pack(">ii", 4 + 300, one.correlation_id) + b"x" * 300 for one in asked)
        peer.socket.sendall(stream)
        _ = peer.wait_for_end()

    with ScriptedBroker(serving(server_context(good, tmp_path), then)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        for number in range(50):
            send_raw(connection, str(number))
        client.until(lambda: len(client.answers) == 50)
        assert [tag for tag, _ in client.answers] == [str(number) for number in range(50)]
        _ = connection.close()


def test_an_answer_before_the_request_went_out_whole_ends_the_connection(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    def then(peer: Peer) -> None:
        # The head of the request is enough to lie about it.
        _, _, _, correlation_id = struct.unpack(">ihhi", peer.read_exactly(12))
        peer.send(correlation_id, b"done")
        _ = peer.wait_for_end()

    with ScriptedBroker(serving(server_context(good, tmp_path), then)) as broker:
        options = SocketOptions(send_buffer_bytes=16_384)
        connection = client.open(broker.port, security=trusting(authority, tmp_path), sockets=options)
        client.until(lambda: connection.ready)
        send_raw(connection, "large", bytes(8_000_000))
        client.until(lambda: bool(client.lost))
        assert client.answers == []
        assert client.lost[0][0] == ["large"]
        assert "before it was sent whole" in client.lost[0][1]
        assert not connection.authentication_failed


def test_a_request_without_answer_is_done_when_tls_has_handed_it_over(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    go_on = threading.Event()
    seen: list[int] = []

    def then(peer: Peer) -> None:
        assert go_on.wait(60)
        seen.append(len(peer.read().body))
        _ = peer.wait_for_end()

    with ScriptedBroker(serving(server_context(good, tmp_path), then)) as broker:
        options = SocketOptions(send_buffer_bytes=16_384)
        connection = client.open(broker.port, security=trusting(authority, tmp_path), sockets=options)
        client.until(lambda: connection.ready)
        send_raw(connection, "silent", bytes(8_000_000), expects_answer=False)
        connection.tick(client.loop_now())
        assert client.answers == []
        go_on.set()
        client.until(lambda: client.answers == [("silent", b"")])
        _ = connection.close()
    assert seen == [8_000_008]


# --- whom the client does not believe --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "hosts", "words"),
    [
        ("localhost", ("elsewhere.example",), "localhost"),
        ("127.0.0.1", ("localhost",), "127.0.0.1"),
        ("127.0.0.1", ("127.0.0.2",), "127.0.0.1"),
        ("localhost", ("*.example",), "localhost"),
    ],
)
def test_a_certificate_of_another_name_is_refused(
    client: Client, authority: Authority, tmp_path: Path, host: str, hosts: tuple[str, ...], words: str
) -> None:
    context = server_context(authority.issue("another", hosts=hosts), tmp_path)
    with ScriptedBroker(refused_by(context)) as broker:
        reason = refusal(client, broker, trusting(authority, tmp_path), host)
    assert "mismatch" in reason
    assert words in reason


@pytest.mark.parametrize(("validity", "words"), [(EXPIRED, "has expired"), (NOT_YET, "not valid yet")])
def test_a_certificate_out_of_its_time_is_refused(
    client: Client, authority: Authority, tmp_path: Path, validity: object, words: str
) -> None:
    context = server_context(authority.issue("a broker", validity=validity), tmp_path)  # type: ignore[arg-type]
    with ScriptedBroker(refused_by(context)) as broker:
        assert words in refusal(client, broker, trusting(authority, tmp_path))


def test_a_certificate_that_nobody_known_has_signed_is_refused(
    client: Client, authority: Authority, tmp_path: Path
) -> None:
    context = server_context(Authority("A Stranger").issue("a broker"), tmp_path)
    with ScriptedBroker(refused_by(context)) as broker:
        assert "an authority that is not known" in refusal(client, broker, trusting(authority, tmp_path))


def test_a_certificate_that_signs_itself_is_refused(client: Client, authority: Authority, tmp_path: Path) -> None:
    certificate, key = tmp_path / "self.pem", tmp_path / "self.key"
    openssl = shutil.which("openssl")
    assert openssl is not None
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)]
    _ = subprocess.run([*command, "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ScriptedBroker(refused_by(context)) as broker:
        assert "signed by itself" in refusal(client, broker, trusting(authority, tmp_path))
    client.lost.clear()
    # Named as one to be trusted it is.
    with ScriptedBroker(serving(context)) as broker:
        connection = client.open(broker.port, security=Security(TlsContexts(TlsRules(truststore=certificate))))
        client.until(lambda: connection.ready)
        _ = connection.close()


def test_a_certificate_for_clients_is_none_for_a_broker(client: Client, authority: Authority, tmp_path: Path) -> None:
    context = server_context(authority.issue("a client", hosts=()), tmp_path)
    with ScriptedBroker(refused_by(context)) as broker:
        reason = refusal(client, broker, trusting(authority, tmp_path))
    assert "not to be trusted" in reason


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1 is deprecated")
@pytest.mark.parametrize("versions", [(TLS_1_2, TLS_1_3), (TLS_1_2,), (TLS_1_3,)])
def test_a_broker_that_speaks_only_tls_1_0_is_refused(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, versions: tuple[ssl.TLSVersion, ...]
) -> None:
    context = server_context(good, tmp_path, versions=(_OLD, _OLD))
    with ScriptedBroker(refused_by(context)) as broker:
        reason = refusal(client, broker, trusting(authority, tmp_path, versions=versions))
    assert "ssl.enabled.protocols" in reason


def test_a_broker_without_a_common_cipher_suite_is_refused(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    context = server_context(good, tmp_path, versions=(TLS_1_2, TLS_1_2))
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    security = trusting(authority, tmp_path, versions=(TLS_1_2,), suites=("ECDHE-ECDSA-AES256-GCM-SHA384",))
    with ScriptedBroker(refused_by(context)) as broker:
        assert "ssl.cipher.suites" in refusal(client, broker, security)


@pytest.mark.parametrize(
    ("rules", "certificate"),
    [
        ({"checks_host": False}, "of another name"),
        ({"checks_host": False, "checks_certificate": False}, "of a stranger"),
    ],
)
def test_what_is_not_to_be_checked_is_not(
    client: Client, authority: Authority, tmp_path: Path, rules: dict[str, bool], certificate: str
) -> None:
    signer = authority if certificate == "of another name" else Authority("A Stranger")
    context = server_context(signer.issue("another", hosts=("elsewhere.example",)), tmp_path)
    with ScriptedBroker(serving(context)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path, **rules))
        client.until(lambda: connection.ready)
        _ = connection.close()


def test_a_chain_is_followed_to_the_authority_that_is_trusted(
    client: Client, authority: Authority, tmp_path: Path
) -> None:
    between = Authority("Between", above=authority)
    with ScriptedBroker(serving(server_context(between.issue("a broker"), tmp_path))) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        _ = connection.close()


# --- whom the broker does not believe --------------------------------------------------------------------------------


@VERSIONS
def test_the_certificate_of_the_settings_is_shown(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    clients = Authority("Clients")
    shown: list[str] = []

    def then(peer: Peer) -> None:
        told = cast("dict[str, tuple[tuple[tuple[str, str]]]]", cast("ssl.SSLSocket", peer.socket).getpeercert())
        shown.append(told["subject"][0][0][1])
        _ = peer.wait_for_end()

    password = tmp_path / "password"
    _ = password.write_text("open sesame\n")
    password.chmod(0o600)
    keystore = clients.issue("a producer", hosts=()).write(tmp_path / "client.pem", password="open sesame")
    context = server_context(good, tmp_path, clients=clients, versions=(version, version))
    with ScriptedBroker(serving(context, then)) as broker:
        security = trusting(authority, tmp_path, keystore=keystore, key_password_file=password)
        connection = client.open(broker.port, security=security)
        client.until(lambda: connection.ready)
        _ = connection.close()
    assert shown == ["a producer"]


@VERSIONS
def test_a_broker_that_wants_a_certificate_says_so(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = server_context(good, tmp_path, clients=Authority("Clients"), versions=(version, version))
    with ScriptedBroker(refused_by(context)) as broker:
        reason = refusal(client, broker, trusting(authority, tmp_path))
    assert "ssl.keystore.location" in reason


@VERSIONS
def test_a_certificate_that_the_broker_does_not_believe_is_told(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    keystore = Authority("Strangers").issue("a stranger", hosts=()).write(tmp_path / "client.pem")
    context = server_context(good, tmp_path, clients=Authority("Clients"), versions=(version, version))
    with ScriptedBroker(refused_by(context)) as broker:
        reason = refusal(client, broker, trusting(authority, tmp_path, keystore=keystore))
    assert "the authority that signed our certificate" in reason


# --- one that speaks TLS and one that does not -----------------------------------------------------------------------


def test_a_broker_that_speaks_in_the_clear_is_told_from_one_that_speaks_tls(
    client: Client, authority: Authority, tmp_path: Path
) -> None:
    def script(peer: Peer) -> None:
        # As Kafka does with a length beyond all reason: it hangs up.
        assert peer.read_exactly(2) == b"\x16\x03"

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: bool(client.lost))
        assert "does this listener speak TLS?" in connection.last_error
        assert not connection.authentication_failed


def test_a_peer_that_answers_something_else_is_refused(client: Client, authority: Authority, tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        _ = peer.read_exactly(2)
        peer.socket.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        assert "does this listener speak TLS?" in refusal(client, broker, trusting(authority, tmp_path))


def test_a_broker_that_speaks_tls_is_told_from_one_that_speaks_in_the_clear(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.read()
        # The alert that Java's TLS answers with (internal_error).
        peer.socket.sendall(b"\x15\x03\x03\x00\x02\x02\x50")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: bool(client.lost))
        assert "this listener speaks TLS" in connection.last_error
        assert connection.authentication_failed


@pytest.mark.parametrize("bytes_read", [10, None])
def test_a_broker_that_hangs_up_on_the_greeting_may_want_tls(client: Client, bytes_read: int | None) -> None:
    def script(peer: Peer) -> None:
        # What is left unread turns the end into a reset.
        _ = peer.read() if bytes_read is None else peer.read_exactly(bytes_read)

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: bool(client.lost))
        assert "does this listener want TLS?" in connection.last_error
        assert not connection.authentication_failed


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_read", [1, 100])
def test_a_broker_that_ends_during_the_handshake_is_tried_again(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, bytes_read: int
) -> None:
    context = server_context(good, tmp_path)
    with ScriptedBroker(lambda peer: cast("None", peer.read_exactly(bytes_read)), serving(context)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: bool(client.lost))
        assert "ended during the TLS handshake" in connection.last_error
        connection.connect()
        client.until(lambda: connection.ready)
        assert connection.last_error == ""
        _ = connection.close()


def test_a_broker_that_says_nothing_during_the_handshake_is_given_up(
    client: Client, authority: Authority, tmp_path: Path
) -> None:
    limits = LIMITS._replace(setup_timeout_s=0.2, setup_timeout_max_s=0.2)

    def script(peer: Peer) -> None:
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path), limits=limits)
        client.until(lambda: connection.state is ConnectionState.ENCRYPTING)
        client.until(lambda: bool(client.lost))
        assert "agreeing on TLS with" in connection.last_error
        assert "took too long" in connection.last_error


@pytest.mark.parametrize("politely", [True, False])
def test_requests_in_flight_are_lost_when_the_broker_goes(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path, politely: bool
) -> None:
    def then(peer: Peer) -> None:
        _ = peer.read(), peer.read()
        if politely:
            # The client has nothing to say to that.
            with contextlib.suppress(ssl.SSLEOFError):
                peer.socket = cast("ssl.SSLSocket", peer.socket).unwrap()

    with ScriptedBroker(serving(server_context(good, tmp_path), then)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        send_raw(connection, "a")
        send_raw(connection, "b")
        client.until(lambda: bool(client.lost))
        assert client.lost[0][0] == ["a", "b"]
        assert not connection.authentication_failed


def test_a_broken_record_loses_what_is_in_flight_and_is_no_question_of_trust(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    def then(peer: Peer) -> None:
        _ = peer.read()
        # Past TLS: what arrives is a record that nobody encrypted.
        with socket.socket(fileno=socket.dup(peer.socket.fileno())) as wire:
            wire.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(_NO_WORD):
            _ = peer.read()

    with ScriptedBroker(serving(server_context(good, tmp_path), then)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        send_raw(connection, "a")
        client.until(lambda: bool(client.lost))
        assert client.lost[0][0] == ["a"]
        assert "TLS" in connection.last_error
        assert not connection.authentication_failed


def test_a_produce_connection_ends_with_a_reset_and_others_with_a_word(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    """SOC-1: nothing that was given up arrives later, and nobody waits for TLS to take its leave."""
    ends: list[str] = []

    def then(peer: Peer) -> None:
        # Past TLS, which does not tell a reset from an end.
        with socket.socket(fileno=socket.dup(peer.socket.fileno())) as wire:
            wire.settimeout(10)
            try:
                _ = wire.recv(1, socket.MSG_PEEK)
            except ConnectionResetError:
                ends.append("a reset")
                return
        try:
            ends.append("a word" if peer.socket.recv(1) == b"" else "bytes")
        except ssl.SSLEOFError:
            ends.append("cut off")

    kafka = KafkaSettings.model_validate({"bootstrap.servers": "x:1"})
    every = (produce_options(kafka), produce_options(kafka, acks=0), control_options(kafka))
    script = serving(server_context(good, tmp_path), then, wants_word=True)
    with ScriptedBroker(script, script, script) as broker:
        for options in every:
            connection = client.open(broker.port, security=trusting(authority, tmp_path), sockets=options.sockets)
            client.until(lambda: connection.ready)  # noqa: B023 - called before the next round
            assert connection.close() == []
    assert ends == ["a reset", "a word", "a word"]


def test_a_forked_child_that_closes_its_copy_says_nothing_in_the_parents_name(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    def then(peer: Peer) -> None:
        for _ in range(2):
            peer.send(peer.read().correlation_id, b"done")
        _ = peer.wait_for_end()

    with ScriptedBroker(serving(server_context(good, tmp_path), then)) as broker:
        connection = client.open(broker.port, security=trusting(authority, tmp_path))
        client.until(lambda: connection.ready)
        send_raw(connection, "before")
        client.until(lambda: len(client.answers) == 1)
        child = os.fork()
        if child == 0:
            try:
                client.loop.close_after_fork()
                _ = connection.close()
            finally:
                os._exit(0)
        _ = os.waitpid(child, 0)
        send_raw(connection, "after")
        client.until(lambda: len(client.answers) == 2)
        assert client.lost == []
        _ = connection.close()


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_certificate_that_was_replaced_is_shown_by_the_next_connection(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    clients = Authority("Clients")
    shown: list[int] = []

    def then(peer: Peer) -> None:
        told = cast("dict[str, str]", cast("ssl.SSLSocket", peer.socket).getpeercert())
        shown.append(int(told["serialNumber"], 16))
        _ = peer.wait_for_end()

    first, second = (clients.issue("a producer", hosts=()) for _ in range(2))
    keystore = first.write(tmp_path / "client.pem")
    security = trusting(authority, tmp_path, keystore=keystore)
    script = serving(server_context(good, tmp_path, clients=clients), then)
    with ScriptedBroker(script, script, script) as broker:

        def show() -> None:
            connection = client.open(broker.port, security=security)
            client.until(lambda: connection.ready)
            _ = connection.close()

        show()
        _ = second.write(keystore)
        show()
        _ = keystore.write_text("half a certif")
        show()
    assert shown == [first.serial, second.serial, second.serial]


def test_files_that_were_never_good_are_named_and_nobody_is_called(
    client: Client, authority: Authority, good: Certificate, tmp_path: Path
) -> None:
    clients = Authority("Clients")
    keystore = tmp_path / "client.pem"
    with ScriptedBroker(serving(server_context(good, tmp_path, clients=clients))) as broker:
        security = trusting(authority, tmp_path, keystore=keystore)
        limits = ConnectionLimits(reconnect=Backoff(0.01, 0.05))
        connection = client.open(broker.port, security=security, limits=limits)
        client.until(lambda: bool(client.lost))
        assert "ssl.keystore.location" in connection.last_error
        assert str(keystore) in connection.last_error
        assert connection.authentication_failed
        _ = clients.issue("a producer", hosts=()).write(keystore)
        connection.connect()
        client.until(lambda: connection.ready)
        _ = connection.close()
