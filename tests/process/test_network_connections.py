"""Connections over real sockets, against a broker that is told what to say."""

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from penstock.config.model import KafkaSettings
from penstock.producer.network.addresses import Address
from penstock.producer.network.connection_state import ConnectionState
from penstock.producer.network.resolver import Resolver
from penstock.producer.network.socket_options import SocketOptions, control_options, produce_options
from penstock.producer.protocol.backoff import Backoff

from tests.fakes.network_client import LIMITS, Client, network_client, send_raw
from tests.fakes.scripted_broker import Peer, ScriptedBroker, versions_body
from tests.harness.ports import free_ports

_WAIT_S: Final = 10.0


@pytest.fixture
def client() -> Iterator[Client]:
    with network_client() as made:
        yield made


def _metadata_answer(version: int, throttle_ms: int = 0) -> bytes:
    response = MetadataResponse(
        throttle_time_ms=throttle_ms,
        brokers=[],
        cluster_id="c",
        controller_id=1,
        topics=[],
        error_code=0,
        version=version,
    )
    flexible_header = b"\0" if version >= 9 else b""
    return flexible_header + bytes(response.encode())


@pytest.mark.row("I12")
def test_a_connection_greets_asks_and_hands_over_the_decoded_answer(client: Client) -> None:
    def script(peer: Peer) -> None:
        greeting = peer.greet()
        assert greeting.version == 4
        assert b"penstock" in greeting.body
        assert b"a-client" in greeting.body
        asked = peer.read()
        assert (asked.api_key, asked.version) == (3, 13)
        peer.send(asked.correlation_id, _metadata_answer(13))
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        assert connection.send(MetadataRequest(topics=[]), "first") == 13
        client.until(lambda: bool(client.answers))
        tag, answer = client.answers[0]
        assert tag == "first"
        assert isinstance(answer, MetadataResponse)
        assert answer.controller_id == 1
        assert connection.in_flight == 0
        assert connection.round_trip_us > 0
        assert connection.close() == []


def test_answers_arrive_in_order_however_they_are_cut(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = [peer.read() for _ in range(3)]
        stream = b"".join(
            struct.pack(">ii", 4 + len(body), one.correlation_id) + body
            for one, body in zip(asked, [b"first", b"", b"third" * 20_000], strict=True)
        )
        # One byte, the rest of a length, a piece across all three answers, and what is left.
        for piece in (stream[:1], stream[1:15], stream[15:20_000], stream[20_000:]):
            peer.socket.sendall(piece)
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        for tag in "abc":
            send_raw(connection, tag, b"body of " + tag.encode())
        client.until(lambda: len(client.answers) == 3)
        assert client.answers == [("a", b"first"), ("b", b""), ("c", b"third" * 20_000)]
        _ = connection.close()


def test_a_large_request_is_written_in_pieces_while_the_broker_reads_slowly(client: Client) -> None:
    payload = bytes(range(256)) * 32_768
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = peer.read()
        seen.append(asked.body)
        peer.send(asked.correlation_id, b"done")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, sockets=SocketOptions(send_buffer_bytes=16_384))
        client.until(lambda: connection.ready)
        pieces = [memoryview(payload)[start : start + 100_000] for start in range(0, len(payload), 100_000)]
        send_raw(connection, "large", *pieces)
        assert connection.pending_bytes > 0
        client.until(lambda: bool(client.answers))
        assert connection.pending_bytes == 0
        assert seen[0].endswith(payload)
        _ = connection.close()


def test_more_buffers_than_one_system_call_takes_all_arrive(client: Client) -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = peer.read()
        seen.append(asked.body)
        peer.send(asked.correlation_id, b"done")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        send_raw(connection, "many", *[bytes([number % 256]) for number in range(5_000)])
        client.until(lambda: bool(client.answers))
        assert seen[0].endswith(bytes(number % 256 for number in range(5_000)))
        _ = connection.close()


def test_a_request_without_answer_is_done_when_it_is_written(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        _ = peer.read()
        asked = peer.read()
        peer.send(asked.correlation_id, b"answered")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        send_raw(connection, "silent", b"x", expects_answer=False)
        assert client.answers == []
        send_raw(connection, "loud", b"y")
        client.until(lambda: len(client.answers) == 2)
        assert client.answers == [("silent", b""), ("loud", b"answered")]
        _ = connection.close()


# --- greetings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "again"),
    [
        (versions_body(0, {18: (0, 2)}, code=35), 2),
        # As librdkafka's mock answers: a body that is no version.
        (struct.pack(">hB", 35, 1) + struct.pack(">hhh", 18, 0, 2) + bytes(4), 0),
        (struct.pack(">h", 35), 0),
    ],
    ids=["readable", "malformed", "only the code"],
)
@pytest.mark.row("I12")
def test_an_old_broker_is_greeted_again_in_a_version_it_knows(client: Client, body: bytes, again: int) -> None:
    def script(peer: Peer) -> None:
        asked = peer.read()
        assert asked.version == 4
        peer.send(asked.correlation_id, body)
        second = peer.greet()
        assert second.version == again
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        assert connection.version_of(3, 0, 99) == 13
        assert connection.version_of(3, 14, 99) is None
        assert connection.version_of(999, 0, 99) is None
        _ = connection.close()


def test_a_second_connection_greets_with_the_newest_version_again(client: Client) -> None:
    def old(peer: Peer) -> None:
        asked = peer.read()
        peer.send(asked.correlation_id, versions_body(0, {18: (0, 2)}, code=35))
        _ = peer.greet()

    def upgraded(peer: Peer) -> None:
        assert peer.greet().version == 4
        _ = peer.wait_for_end()

    with ScriptedBroker(old, upgraded) as broker:
        connection = client.open(broker.port)
        client.until(lambda: len(client.lost) == 1)
        connection.connect()
        client.until(lambda: client.readies == 2)
        _ = connection.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (struct.pack(">ii", 4, 99), "correlation id 99"),
        (struct.pack(">iih", 6, 1, 33), "error 33"),
        (struct.pack(">ii", 4, 1), "cut short"),
        (struct.pack(">i", -5), "-5 bytes"),
        (struct.pack(">i", 2_000_000_000), "2000000000 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes"),
        (struct.pack(">iih", 30, 1, 0) + b"\xff" * 24, "cannot be read"),
    ],
    ids=["wrong id", "an error", "half", "negative", "oversize", "http", "noise"],
)
def test_a_peer_that_is_no_broker_ends_the_connection_with_the_reason(
    client: Client, answer: bytes, words: str
) -> None:
    def script(peer: Peer) -> None:
        _ = peer.read()
        peer.socket.sendall(answer)
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: bool(client.lost))
        assert words in client.lost[0][1]
        assert client.lost[0][0] == []
        assert connection.last_error == client.lost[0][1]
        assert connection.state is ConnectionState.DISCONNECTED
        assert client.readies == 0


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda first: struct.pack(">ii", 4, first + 1), "correlation id"),
        (lambda _: struct.pack(">i", 1 << 30), "bytes"),
        (lambda _: b"", "closed the connection"),
        (lambda first: struct.pack(">ii", 400, first) + b"half", "closed the connection"),
    ],
    ids=["wrong correlation id", "oversize", "nothing", "half an answer"],
)
@pytest.mark.row("I19")
def test_all_requests_in_flight_are_lost_in_order_when_the_stream_breaks(
    client: Client, answer: Callable[[int], bytes], words: str
) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        first = peer.read()
        _ = peer.read()
        peer.socket.sendall(answer(first.correlation_id))

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        send_raw(connection, "a", b"1")
        send_raw(connection, "b", b"2")
        client.until(lambda: bool(client.lost))
        tags, reason = client.lost[0]
        assert tags == ["a", "b"]
        assert words in reason
        assert connection.in_flight == 0
        assert connection.pending_bytes == 0


def test_an_answer_before_the_request_was_sent_whole_ends_the_connection(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        (_, _, _, correlation_id) = struct.unpack(">ihhi", peer.read_exactly(12))
        peer.send(correlation_id, b"too early")
        assert peer.socket.recv(1)
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, sockets=SocketOptions(send_buffer_bytes=16_384))
        client.until(lambda: connection.ready)
        send_raw(connection, "a", bytes(50_000_000))
        client.until(lambda: bool(client.lost))
        assert client.lost[0][0] == ["a"]
        assert "before it was sent whole" in client.lost[0][1]


def test_a_refused_connection_is_tried_again_after_its_backoff(client: Client) -> None:
    (port,) = free_ports(1)
    connection = client.open(port)
    client.until(lambda: len(client.lost) == 1)
    assert "refused" in client.lost[0][1]
    connection.connect()
    assert connection.state is ConnectionState.WAITING
    client.until(lambda: len(client.lost) == 2)


@pytest.mark.row("I24")
def test_a_name_with_a_dead_and_a_live_address_reaches_the_live_one(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        _ = peer.wait_for_end()

    def two(_host: str, port: int) -> tuple[list[Address], str]:
        # The broker listens on the second only.
        return [Address(int(socket.AF_INET), (host, port)) for host in ("127.0.0.2", "127.0.0.1")], ""

    client.resolver.close()
    client.resolver = Resolver(client.loop, two)
    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, "two-addresses")
        client.until(lambda: len(client.lost) == 1)
        assert "refused" in client.lost[0][1]
        connection.connect()
        client.until(lambda: connection.ready)
        _ = connection.close()


@pytest.mark.row("I11")
def test_a_name_nobody_knows_is_an_error_in_words(client: Client) -> None:
    _ = client.open(9092, "no-such-host.invalid")
    client.until(lambda: bool(client.lost))
    assert "no-such-host.invalid" in client.lost[0][1]


def test_a_name_that_hangs_is_given_up_after_the_setup_time_and_its_late_answer_dropped(client: Client) -> None:
    gate = threading.Semaphore(0)

    def hangs(host: str, port: int) -> tuple[list[Address], str]:
        assert gate.acquire(timeout=_WAIT_S)
        return [Address(int(socket.AF_INET), (host, port))], ""

    client.resolver.close()
    client.resolver = Resolver(client.loop, hangs)
    connection = client.open(9092, "slow-name", limits=LIMITS._replace(setup_timeout_s=0.1, setup_timeout_max_s=0.1))
    client.until(lambda: bool(client.lost))
    assert "resolving slow-name" in client.lost[0][1]
    gate.release()
    # A second question is answered after the first: what came of the first has been looked at by then.
    gate.release()
    answered: list[str] = []
    _ = client.resolver.resolve("another", 1, lambda addresses, error: answered.append(error))
    client.until(lambda: bool(answered))
    assert connection.state is ConnectionState.DISCONNECTED
    assert len(client.lost) == 1


@pytest.mark.row("I14")
def test_a_silent_peer_is_given_up_after_the_setup_time(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.read()
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        _ = client.open(broker.port, limits=LIMITS._replace(setup_timeout_s=0.1, setup_timeout_max_s=0.1))
        client.until(lambda: bool(client.lost))
        assert "took too long" in client.lost[0][1]


@pytest.mark.row("I14")
def test_an_address_that_swallows_everything_is_given_up_after_the_setup_time(client: Client) -> None:
    # A listener whose queue is full drops what comes: connects neither succeed nor fail.
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        _ = filler.connect_ex(full.getsockname())
    try:
        limits = LIMITS._replace(setup_timeout_s=0.2, setup_timeout_max_s=0.2)
        _ = client.open(full.getsockname()[1], limits=limits)
        client.until(lambda: bool(client.lost))
        assert "connecting to" in client.lost[0][1]
        assert "took too long" in client.lost[0][1]
    finally:
        for filler in fillers:
            filler.close()
        full.close()


@pytest.mark.row("I13")
def test_a_request_without_answer_closes_the_connection_and_loses_them_all(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        first = peer.read()
        _, _ = peer.read(), peer.read()
        peer.send(first.correlation_id, b"fine")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port, limits=LIMITS._replace(request_timeout_s=0.2))
        client.until(lambda: connection.ready)
        for tag in "abc":
            send_raw(connection, tag, b"x")
        client.until(lambda: bool(client.lost))
        assert client.answers == [("a", b"fine")]
        assert client.lost[0][0] == ["b", "c"]
        assert "did not answer within 0.2 s" in client.lost[0][1]


def test_an_unused_connection_is_closed(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        assert not peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        _ = client.open(broker.port, limits=LIMITS._replace(idle_s=0.1))
        client.until(lambda: bool(client.lost))
        assert client.lost[0] == ([], "unused for long")


def test_an_unreadable_answer_to_a_decoded_request_loses_its_tag_too(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = peer.read()
        peer.send(asked.correlation_id, b"\xff" * 60)
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        assert connection.send(MetadataRequest(topics=[]), "asked") is not None
        client.until(lambda: bool(client.lost))
        assert client.lost[0][0] == ["asked"]
        assert "no MetadataResponse" in client.lost[0][1]


@pytest.mark.row("I23")
def test_a_request_the_broker_has_no_version_for_is_not_sent(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet({18: (0, 4), 3: (0, 3)})
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        assert connection.send(MetadataRequest(topics=[]), "never", least=4) is None
        assert connection.in_flight == 0
        _ = connection.close()


@pytest.mark.row("I15")
def test_a_throttle_in_an_answer_keeps_the_next_request_back(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = peer.read()
        peer.send(asked.correlation_id, _metadata_answer(13, throttle_ms=200))
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        assert connection.send(MetadataRequest(topics=[]), "a") is not None
        client.until(lambda: bool(client.answers))
        told_at = monotonic()
        assert not connection.can_send(told_at)
        client.until(lambda: connection.can_send(monotonic()))
        assert monotonic() - told_at > 0.15
        _ = connection.close()


def test_a_write_that_fails_is_told_by_the_loop_and_never_from_inside_send(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        opened = connection._channel._socket
        assert opened is not None
        readable, _, _ = select.select([opened], [], [], _WAIT_S)
        assert readable
        send_raw(connection, "a", b"1")
        assert not connection.can_send(monotonic())
        assert client.lost == []
        client.until(lambda: bool(client.lost))
        assert client.lost[0][0] == ["a"]
        assert "reset" in client.lost[0][1]


# --- the owner's doings ----------------------------------------------------------------------------------------------


def test_a_produce_connection_ends_with_a_reset_and_a_plain_one_in_peace(client: Client) -> None:
    ends: list[bool] = []

    def script(peer: Peer) -> None:
        _ = peer.greet()
        ends.append(peer.wait_for_end())

    kafka = KafkaSettings.model_validate({"bootstrap.servers": "x:1", "request.timeout.ms": 12_345})
    # Without acknowledgements a reset would throw away what counts as delivered.
    every = (produce_options(kafka), produce_options(kafka, acks=0), control_options(kafka))
    with ScriptedBroker(script, script, script) as broker:
        for sockets in (options.sockets for options in every):
            connection = client.open(broker.port, sockets=sockets)
            client.until(lambda: connection.ready)  # noqa: B023 - called before the next round
            opened = connection._channel._socket
            assert opened is not None
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 12_345
            assert not opened.get_inheritable()
            _ = connection.close()
    assert ends == [True, False, False]


@pytest.mark.row("I20")
def test_closing_gives_back_what_was_in_flight_and_tells_nobody(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        buffer = bytearray(1_000_000)
        send_raw(connection, "a", memoryview(buffer))
        assert connection.close() == ["a"]
        assert client.lost == []
        # Nothing of the transport refers to the buffer: it may change its size again.
        buffer.append(1)


def test_the_owner_may_close_the_connection_from_inside_an_answer(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = [peer.read(), peer.read()]
        peer.socket.sendall(b"".join(struct.pack(">ii", 4, one.correlation_id) for one in asked))
        _ = peer.wait_for_end()

    left: list[str] = []
    with ScriptedBroker(script) as broker:
        connection = client.open(broker.port)
        client.until(lambda: connection.ready)
        client.on_answer = lambda: left.extend(connection.close())
        send_raw(connection, "a", b"1")
        send_raw(connection, "b", b"2")
        client.until(lambda: bool(left))
        assert [tag for tag, _ in client.answers] == ["a"]
        assert left == ["b"]


def test_the_owner_may_send_from_inside_ready(client: Client) -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet()
        asked = peer.read()
        peer.send(asked.correlation_id, b"quick")
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker:
        client.on_ready = lambda connection: send_raw(connection, "at once", b"x")
        connection = client.open(broker.port)
        client.until(lambda: bool(client.answers))
        assert client.answers == [("at once", b"quick")]
        _ = connection.close()


def test_a_node_that_moved_is_looked_for_at_its_new_address_without_backoff(client: Client) -> None:
    def stay(peer: Peer) -> None:
        _ = peer.greet()
        _ = peer.wait_for_end()

    with ScriptedBroker(stay) as old, ScriptedBroker(stay) as new:
        connection = client.open(old.port, limits=LIMITS._replace(reconnect=Backoff(60.0, 60.0)))
        client.until(lambda: connection.ready)
        send_raw(connection, "a", b"1")
        connection.move_to("127.0.0.1", old.port)
        assert connection.ready
        connection.move_to("127.0.0.1", new.port)
        assert client.lost[0][0] == ["a"]
        connection.connect()
        client.until(lambda: connection.ready)
        assert connection.incarnation == 2
        _ = connection.close()


def test_a_connection_is_made_again_and_counts_its_incarnations(client: Client) -> None:
    def once(peer: Peer) -> None:
        _ = peer.greet()

    def stay(peer: Peer) -> None:
        _ = peer.greet()
        _ = peer.wait_for_end()

    with ScriptedBroker(once, stay) as broker:
        connection = client.open(broker.port)
        client.until(lambda: len(client.lost) == 1)
        connection.connect()
        client.until(lambda: connection.ready and connection.incarnation == 2)
        _ = connection.close()
