"""A connection's decisions, on a clock that the test moves."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from penstock.producer.network.addresses import Address, AddressRotation
from penstock.producer.network.connection_state import (
    NEXT,
    ConnectionLimits,
    ConnectionState,
    ConnectionStateMachine,
    Due,
)
from penstock.producer.protocol.api_versions import (
    ApiVersionsDowngrade,
    NodeApiVersions,
    decode_api_versions_response,
    encode_api_versions_request,
)
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.protocol.framing import ResponseReader, SendBuffer, StreamError

from tests.fakes.scripted_broker import RANGES, versions_body

LIMITS = ConnectionLimits(
    request_timeout_s=30.0,
    setup_timeout_s=10.0,
    setup_timeout_max_s=40.0,
    reconnect=Backoff(0.1, 1.0),
    idle_s=500.0,
    in_flight_max=3,
    answer_bytes_max=1000,
)
HERE = Address(2, ("127.0.0.1", 9092))
THERE = Address(2, ("127.0.0.2", 9092))
ELSEWHERE = Address(10, ("::1", 9092))
MIDDLE = 0.5
NO_WORD = re.compile(r"[^A-Z_]+")


def ready(now: float = 0.0, limits: ConnectionLimits = LIMITS) -> ConnectionStateMachine[str]:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(limits)
    core.request_connect()
    assert core.due(now, MIDDLE) is Due.CONNECT
    core.connecting(now)
    core.established()
    core.versions_received({0: (3, 13)}, now)
    return core


def send(
    core: ConnectionStateMachine[str], tag: str, now: float, size: int = 100, timeout_s: float | None = None
) -> int:
    correlation_id = core.next_correlation_id()
    core.sent(correlation_id, tag, size, now, timeout_s=timeout_s)
    return correlation_id


def test_every_state_has_its_row_and_the_end_state_an_empty_one() -> None:
    assert set(NEXT) == set(ConnectionState)
    assert NEXT[ConnectionState.CLOSED] == frozenset()
    assert all(ConnectionState.CLOSED in row for state, row in NEXT.items() if state is not ConnectionState.CLOSED)


def test_the_page_about_connections_shows_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/design/network.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    shown = {
        state.strip(): set(NO_WORD.sub(" ", after).split())
        for state, after in rows
        if state.strip() in ConnectionState.__members__
    }
    assert shown == {state.name: {after.name for after in row} for state, row in NEXT.items()}


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    with pytest.raises(AssertionError, match="DISCONNECTED to READY"):
        core.versions_received({}, 0.0)


def test_nothing_happens_until_somebody_wants_the_connection() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    assert core.next_deadline() is None
    assert core.due(1e9, MIDDLE) is None
    core.request_connect()
    core.request_connect()
    assert core.due(0.0, MIDDLE) is Due.CONNECT
    assert core.due(0.0, MIDDLE) is None


def test_the_backoff_grows_with_every_failure_and_ends_with_ready_alone() -> None:
    core = ready()
    waits: list[float] = []
    now = 0.0
    for _ in range(6):
        assert core.ended(now, MIDDLE, "lost") == []
        core.request_connect()
        assert core.due(now, MIDDLE) is None
        deadline = core.next_deadline()
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        assert core.due(now, MIDDLE) is Due.CONNECT
        core.connecting(now)
        core.established()
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    core.versions_received({}, now)
    _ = core.ended(now, MIDDLE, "lost")
    core.request_connect()
    deadline = core.next_deadline()
    assert deadline is not None
    assert deadline - now == pytest.approx(0.1)


def test_the_setup_time_of_an_address_begins_when_the_name_is_known() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    core.request_connect()
    _ = core.due(0.0, MIDDLE)
    assert core.next_deadline() == pytest.approx(10.0)
    core.connecting(9.0)
    assert core.due(18.9, MIDDLE) is None
    assert core.due(19.0, MIDDLE) is Due.SETUP_TIMED_OUT


def test_addresses_of_the_first_ones_family_come_first() -> None:
    turns = AddressRotation()
    turns.resolved([HERE, ELSEWHERE, THERE])
    assert [turns.next_address() for _ in range(4)] == [HERE, THERE, ELSEWHERE, None]


def test_a_name_that_cannot_be_resolved_waits_longer_for_the_name_server_each_time() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    now = 0.0
    times: list[float] = []
    for _ in range(3):
        core.request_connect()
        now = max(now, core.next_deadline() or 0.0)
        assert core.due(now, MIDDLE) is Due.CONNECT
        times.append((core.next_deadline() or 0.0) - now)
        _ = core.ended(now, MIDDLE, "no such name")
    assert times == pytest.approx([10.0, 20.0, 40.0])


def test_a_name_that_takes_too_long_to_resolve_is_given_up() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    core.request_connect()
    _ = core.due(5.0, MIDDLE)
    assert core.due(14.9, MIDDLE) is None
    assert core.due(15.0, MIDDLE) is Due.SETUP_TIMED_OUT


def test_the_setup_time_grows_with_failed_connects_and_is_reset_by_a_connect() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    now = 0.0
    times: list[float] = []
    for _ in range(4):
        core.request_connect()
        now = max(now, core.next_deadline() or 0.0)
        assert core.due(now, MIDDLE) is Due.CONNECT
        core.connecting(now)
        deadline = core.next_deadline()
        assert deadline is not None
        times.append(deadline - now)
        _ = core.ended(now, MIDDLE, "lost")
    assert times == pytest.approx([10.0, 20.0, 40.0, 40.0])


def test_a_broker_that_accepts_and_says_nothing_is_given_up() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    core.request_connect()
    _ = core.due(0.0, MIDDLE)
    core.connecting(0.0)
    core.established()
    assert core.due(10.0, MIDDLE) is Due.SETUP_TIMED_OUT


def test_answers_complete_the_oldest_request() -> None:
    core = ready()
    first, second = send(core, "a", 0.0), send(core, "b", 0.0)
    core.expect(first, 0)
    assert core.answered(0.5) == "a"
    core.expect(second, 0)
    assert core.answered(1.0) == "b"
    assert core.in_flight == 0
    assert core.round_trip_us > 0


def test_an_answer_out_of_turn_or_to_nothing_ends_the_stream() -> None:
    core = ready()
    with pytest.raises(StreamError, match="without a request"):
        core.expect(1, 0)
    _, second = send(core, "a", 0.0), send(core, "b", 0.0)
    with pytest.raises(StreamError, match="correlation id"):
        core.expect(second, 0)
    assert core.ended(0.0, MIDDLE, "lost") == ["a", "b"]


def test_an_answer_before_the_request_was_written_whole_ends_the_stream() -> None:
    core = ready()
    first = send(core, "a", 0.0, size=100)
    with pytest.raises(StreamError, match="before it was sent whole"):
        core.expect(first, 1)
    core.expect(first, 0)


def test_bytes_of_later_requests_do_not_matter_to_an_earlier_answer() -> None:
    core = ready()
    first = send(core, "a", 0.0, size=100)
    _ = send(core, "b", 0.0, size=50)
    core.expect(first, 50)


def test_one_request_without_answer_in_time_ends_the_connection() -> None:
    core = ready()
    _ = send(core, "slow", 0.0, timeout_s=200.0)
    _ = send(core, "fast", 1.0, timeout_s=50.0)
    assert core.next_deadline() == pytest.approx(51.0)
    assert core.due(51.0, MIDDLE) is None
    late = core.next_deadline()
    assert late is not None
    assert core.due(late, MIDDLE) is Due.REQUEST_TIMED_OUT


def test_a_throttle_keeps_requests_back_and_gives_those_in_flight_more_time() -> None:
    core = ready()
    _ = send(core, "a", 0.0)
    core.throttle(2_000, 1.0)
    assert not core.can_send(2.9)
    assert core.next_deadline() == pytest.approx(3.0)
    assert core.due(3.0, MIDDLE) is None
    assert core.can_send(3.0)
    assert core.next_deadline() == pytest.approx(32.0)
    core.throttle(0, 3.0)
    assert core.can_send(3.0)


def test_room_ends_at_the_limit_of_requests_in_flight() -> None:
    core = ready()
    for tag in "abc":
        assert core.can_send(0.0)
        _ = send(core, tag, 0.0)
    assert not core.can_send(0.0)
    with pytest.raises(AssertionError):
        _ = send(core, "d", 0.0)


def test_a_connection_unused_for_long_is_idle_but_never_with_a_request_in_flight() -> None:
    core = ready()
    assert core.due(499.0, MIDDLE) is None
    assert core.due(500.0, MIDDLE) is Due.IDLE
    core = ready()
    _ = send(core, "a", 499.0, timeout_s=1000.0)
    assert core.due(500.0, MIDDLE) is None


def test_requests_without_answer_are_done_when_their_last_byte_is_written() -> None:
    core = ready()
    core.sent(core.next_correlation_id(), "silent", 100, 0.0, expects_answer=False)
    assert not core.has_sent_unanswered(1)
    assert core.has_sent_unanswered(0)
    assert core.answered(0.0) == "silent"


def test_incarnations_count_the_times_the_connection_was_ready() -> None:
    core = ready()
    assert core.incarnation == 1
    _ = core.ended(0.0, MIDDLE, "lost")
    assert core.incarnation == 1
    assert core.versions == {}


def test_closing_gives_back_what_was_in_flight_and_is_final() -> None:
    core = ready()
    _ = send(core, "a", 0.0)
    assert core.close() == ["a"]
    assert core.close() == []
    core.request_connect()
    assert core.due(1e9, MIDDLE) is None
    assert core.next_deadline() is None


def test_another_address_of_the_node_owes_nothing_to_the_failures_of_the_old_one() -> None:
    core = ready()
    for _ in range(3):
        _ = core.ended(0.0, MIDDLE, "lost")
        core.address_changed()
        core.request_connect()
        assert core.due(0.0, MIDDLE) is Due.CONNECT


# --- TLS and logins --------------------------------------------------------------------------------------------------


def authenticating(limits: ConnectionLimits = LIMITS, now: float = 0.0) -> ConnectionStateMachine[str]:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(limits)
    again_authenticating(core, now)
    return core


def again_authenticating(core: ConnectionStateMachine[str], now: float) -> None:
    core.request_connect()
    assert core.due(now, MIDDLE) is Due.CONNECT
    core.connecting(now)
    core.established(encrypts=True)
    core.encrypted()
    core.versions_received({0: (3, 13)}, now, authenticates=True)


def test_a_connection_is_ready_only_when_it_is_encrypted_and_logged_in() -> None:
    core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS)
    core.request_connect()
    assert core.due(0.0, MIDDLE) is Due.CONNECT
    core.connecting(0.0)
    core.established(encrypts=True)
    assert core.state is ConnectionState.ENCRYPTING
    core.encrypted()
    assert core.state is ConnectionState.CHECKING_VERSIONS
    core.versions_received({0: (3, 13)}, 0.0, {"a.feature": 1}, authenticates=True)
    assert core.state is ConnectionState.AUTHENTICATING
    assert core.versions == {0: (3, 13)}
    assert (core.incarnation, core.can_send(0.0)) == (0, False)
    assert core.authenticated(0, 0.0, MIDDLE)
    assert (core.incarnation, core.can_send(0.0)) == (1, True)
    assert core.features == {"a.feature": 1}


@pytest.mark.parametrize("state", [ConnectionState.ENCRYPTING, ConnectionState.AUTHENTICATING])
def test_the_time_to_set_up_covers_tls_and_the_login(state: ConnectionState) -> None:
    core = authenticating() if state is ConnectionState.AUTHENTICATING else ConnectionStateMachine[str](LIMITS)
    if state is ConnectionState.ENCRYPTING:
        core.request_connect()
        _ = core.due(0.0, MIDDLE)
        core.connecting(0.0)
        core.established(encrypts=True)
    assert core.state is state
    assert core.due(9.9, MIDDLE) is None
    assert core.due(10.0, MIDDLE) is Due.SETUP_TIMED_OUT


def test_after_a_failed_login_at_least_a_second_passes_and_more_where_the_settings_have_more() -> None:
    for longest, expected in ((0.5, [1.0, 1.0, 1.0]), (60.0, [1.0, 2.0, 4.0, 8.0])):
        core: ConnectionStateMachine[str] = ConnectionStateMachine(LIMITS._replace(reconnect=Backoff(0.01, longest)))
        now = 0.0
        for wait_s in expected:
            again_authenticating(core, now)
            _ = core.ended(now, MIDDLE, "a wrong password", refused=True)
            assert core.authentication_failed
            core.request_connect()
            deadline = core.next_deadline()
            assert deadline is not None
            assert deadline - now == pytest.approx(wait_s)
            now = deadline


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_chance_never_shortens_the_second_after_a_failed_login(chance: float) -> None:
    core = authenticating()
    _ = core.ended(0.0, chance, "a wrong password", refused=True)
    core.request_connect()
    assert (core.next_deadline() or 0.0) >= 1.0


def test_an_end_in_the_middle_of_a_login_is_waited_for_like_a_failed_one() -> None:
    core = authenticating()
    _ = core.ended(0.0, MIDDLE, "gone")
    assert not core.authentication_failed
    assert core.failed_during_login
    core.request_connect()
    assert core.next_deadline() == pytest.approx(1.0)


def test_a_node_that_moved_is_not_punished_for_the_logins_of_the_old_one() -> None:
    core = authenticating()
    _ = core.ended(0.0, MIDDLE, "a wrong password", refused=True)
    core.address_changed()
    core.request_connect()
    assert core.due(0.0, MIDDLE) is Due.CONNECT


@pytest.mark.parametrize(("chance", "at"), [(0.0, 85.0), (0.5, 90.0), (0.999_999, 95.0)])
def test_a_session_is_renewed_when_most_of_its_life_is_over(chance: float, at: float) -> None:
    core = authenticating()
    assert core.authenticated(100_000, 0.0, chance)
    assert core.next_deadline() == pytest.approx(at)
    assert core.due(at - 0.01, MIDDLE) is None
    assert core.due(at + 0.01, MIDDLE) is Due.REAUTHENTICATE
    assert core.state is ConnectionState.REAUTHENTICATING
    assert not core.authenticated(100_000, at, chance)
    assert core.next_deadline() == pytest.approx(2 * at)


def test_a_session_that_is_shorter_than_a_second_is_not_renewed_all_the_time() -> None:
    core = authenticating()
    assert core.authenticated(1, 0.0, MIDDLE)
    assert core.due(0.99, MIDDLE) is None
    assert core.due(1.0, MIDDLE) is Due.REAUTHENTICATE


def test_a_session_is_renewed_after_what_is_in_flight_is_answered_and_a_throttle_is_over() -> None:
    core = authenticating()
    assert core.authenticated(10_000, 0.0, MIDDLE)
    first = send(core, "a", 8.0)
    assert core.due(9.5, MIDDLE) is None
    assert core.state is ConnectionState.DRAINING
    assert not core.can_send(9.5)
    assert core.next_deadline() == pytest.approx(38.0)
    core.expect(first, 0)
    assert core.answered(9.6) == "a"
    core.throttle(500, 9.6)
    assert core.next_deadline() == pytest.approx(10.1)
    assert core.due(9.7, MIDDLE) is None
    assert core.due(10.2, MIDDLE) is Due.REAUTHENTICATE
    assert core.due(10.2, MIDDLE) is None


def test_what_is_in_flight_for_too_long_ends_a_session_that_is_to_be_renewed() -> None:
    core = authenticating()
    assert core.authenticated(10_000, 0.0, MIDDLE)
    _ = send(core, "a", 8.0)
    assert core.due(9.5, MIDDLE) is None
    assert core.due(38.5, MIDDLE) is Due.REQUEST_TIMED_OUT
    assert core.ended(38.5, MIDDLE, "late") == ["a"]


def test_a_renewal_has_the_time_of_a_set_up() -> None:
    core = authenticating()
    assert core.authenticated(10_000, 0.0, MIDDLE)
    assert core.due(9.5, MIDDLE) is Due.REAUTHENTICATE
    assert core.next_deadline() == pytest.approx(19.5)
    assert core.due(19.5, MIDDLE) is Due.SETUP_TIMED_OUT


def test_a_session_ends_with_its_connection() -> None:
    core = authenticating()
    assert core.authenticated(10_000, 0.0, MIDDLE)
    _ = core.ended(1.0, MIDDLE, "gone")
    again_authenticating(core, 5.0)
    assert core.authenticated(0, 5.0, MIDDLE)
    assert core.due(400.0, MIDDLE) is None


# --- the stream of answers -------------------------------------------------------------------------------------------


def feed(reader: ResponseReader, data: bytes, step: int) -> list[bytes]:
    answers: list[bytes] = []
    while data:
        space = reader.space()
        piece, data = data[: min(step, len(space))], data[min(step, len(space)) :]
        space[: len(piece)] = piece
        answers += reader.received(len(piece))
    return answers


@given(st.lists(st.binary(min_size=4, max_size=1000), max_size=20), st.integers(1, 3000))
def test_answers_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], step: int) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    assert feed(ResponseReader(1000), stream, step) == bodies


@pytest.mark.parametrize("length", [-1, 0, 3, 1001, 2**31 - 1, -(2**31)])
def test_a_length_no_answer_may_have_ends_the_stream(length: int) -> None:
    with pytest.raises(StreamError, match="bytes"):
        _ = feed(ResponseReader(1000), struct.pack(">i", length) + b"x" * 10, 4)


def test_a_length_at_the_limit_is_taken() -> None:
    body = b"y" * 1000
    assert feed(ResponseReader(1000), struct.pack(">i", 1000) + body, 7) == [body]


def test_memory_follows_what_came_and_is_given_back_after_a_large_answer() -> None:
    reader = ResponseReader(100_000_000)
    assert feed(reader, struct.pack(">i", 90_000_000) + b"z" * 10, 100) == []
    assert len(reader._buffer) < 1 << 20
    reader = ResponseReader(100_000_000)
    large = b"z" * 3_000_000
    assert feed(reader, struct.pack(">i", len(large)) + large, 100_000) == [large]
    assert len(reader._buffer) < 1 << 20


# --- the stream of requests ------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=30), st.lists(st.integers(1, 40)))
def test_buffers_go_out_in_order_whatever_the_kernel_takes(buffers: list[bytes], takes: list[int]) -> None:
    outbox = SendBuffer()
    outbox.append(buffers)
    out = b""
    for take in [*takes, *[10**9] * (len(buffers) + 1)]:
        offered = b"".join(outbox.gather())
        taken = offered[:take]
        out += taken
        outbox.written(len(taken))
    assert out == b"".join(buffers)
    assert outbox.pending_bytes == 0
    assert outbox.gather() == []


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 40), st.integers(1, 40))
def test_pieces_are_what_is_left_from_the_front_and_never_larger_than_asked(
    buffers: list[bytes], piece_max: int, take: int
) -> None:
    outbox = SendBuffer()
    outbox.append(buffers)
    whole = b"".join(buffers)
    out = b""
    while piece := outbox.piece(piece_max):
        # As full as it can be: a record of TLS costs the same for one byte.
        assert bytes(piece) == whole[len(out) :][:piece_max]
        out += bytes(piece[:take])
        outbox.written(len(piece[:take]))
    assert out == whole
    assert outbox.pending_bytes == 0


def test_a_large_buffer_is_cut_without_a_copy() -> None:
    outbox = SendBuffer()
    large = bytes(100)
    outbox.append([b"ab", large])
    assert outbox.piece(10) == b"ab" + bytes(8)
    outbox.written(2)
    piece = outbox.piece(10)
    assert isinstance(piece, memoryview)
    assert piece.obj is large


def test_a_cleared_outbox_refers_to_nothing() -> None:
    outbox = SendBuffer()
    buffer = bytearray(10)
    outbox.append([memoryview(buffer)])
    outbox.clear()
    assert outbox.pending_bytes == 0
    # A bytearray that somebody views cannot change its size.
    buffer.append(1)


def test_a_gather_offers_no_more_buffers_than_one_system_call_takes() -> None:
    outbox = SendBuffer()
    outbox.append([b"x"] * 3000)
    assert len(outbox.gather()) == 1024


# --- ApiVersions -----------------------------------------------------------------------------------------------------

_HEADER = struct.pack(">i", 1)


def test_the_ranges_of_a_broker_are_read() -> None:
    for version in range(5):
        assert decode_api_versions_response(_HEADER + versions_body(version, RANGES), version) == NodeApiVersions(
            RANGES, 0
        )


def test_an_old_broker_is_asked_again_with_the_version_it_names() -> None:
    answer = _HEADER + versions_body(0, {18: (0, 2)}, code=35)
    assert decode_api_versions_response(answer, 4) == ApiVersionsDowngrade(2)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x01", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x01\x00\x12\x00\x00\x00\x02\x00\x00\x00\x00"],
    ids=["nothing", "one byte", "no entry", "null", "compact"],
)
def test_an_old_broker_whose_body_nobody_can_read_is_asked_again_with_the_first_version(body: bytes) -> None:
    assert decode_api_versions_response(_HEADER + struct.pack(">h", 35) + body, 4) == ApiVersionsDowngrade(0)


def test_a_broker_that_claims_the_version_it_refuses_is_asked_with_a_lower_one() -> None:
    answer = _HEADER + versions_body(0, {18: (0, 4)}, code=35)
    assert decode_api_versions_response(answer, 4) == ApiVersionsDowngrade(3)


def test_a_broker_that_refuses_even_the_first_version_is_not_asked_for_ever() -> None:
    with pytest.raises(StreamError, match="error 35"):
        _ = decode_api_versions_response(_HEADER + struct.pack(">h", 35), 0)


def test_another_error_or_half_an_answer_ends_the_connection() -> None:
    with pytest.raises(StreamError, match="error 33"):
        _ = decode_api_versions_response(_HEADER + versions_body(0, {}, code=33), 4)
    whole = _HEADER + versions_body(3, RANGES)
    for end in range(4, len(whole) - 6):
        with pytest.raises(StreamError):
            _ = decode_api_versions_response(whole[:end], 3)


def test_the_request_tells_who_asks() -> None:
    framed = encode_api_versions_request(4, 7, "my-client", "9.9")
    assert b"penstock" in framed
    assert b"9.9" in framed
    assert struct.unpack(">i", framed[:4])[0] == len(framed) - 4


def test_a_version_in_letters_that_brokers_refuse_is_told_in_others() -> None:
    framed = encode_api_versions_request(4, 7, "my-client", "0.1.dev3+g12_ab.")
    assert b"0.1.dev3-g12-ab" in framed
    assert b"+" not in framed


def test_an_old_brokers_throttle_was_waited_for_by_itself() -> None:
    for version, kept in ((1, 0), (2, 400), (4, 400)):
        body = bytearray(versions_body(version, RANGES))
        response = ApiVersionsResponse.decode(bytes(body), version=version)
        response.throttle_time_ms = 400
        assert decode_api_versions_response(_HEADER + bytes(response.encode()), version) == NodeApiVersions(
            RANGES, kept
        )


def test_the_features_that_the_cluster_has_turned_on_are_told_from_version_3_on() -> None:
    for version, told in ((2, {}), (3, {"transaction.version": 2}), (4, {"transaction.version": 2})):
        judged = decode_api_versions_response(
            _HEADER + versions_body(version, RANGES, features={"transaction.version": 2}), version
        )
        assert judged == NodeApiVersions(RANGES, 0, told)


def test_features_of_a_broker_that_does_not_know_the_cluster_yet_count_for_nothing() -> None:
    body = versions_body(4, RANGES, features={"transaction.version": 2}, epoch=-1)
    assert decode_api_versions_response(_HEADER + body, 4) == NodeApiVersions(RANGES, 0, {})


def test_features_hold_as_long_as_the_connection() -> None:
    core = ready()
    _ = core.ended(0.0, MIDDLE, "lost")
    core.request_connect()
    now = core.next_deadline() or 0.0
    assert core.due(now, MIDDLE) is Due.CONNECT
    core.connecting(now)
    core.established()
    core.versions_received({}, now, {"transaction.version": 2})
    assert core.features == {"transaction.version": 2}
    _ = core.ended(now, MIDDLE, "lost")
    assert core.features == {}
