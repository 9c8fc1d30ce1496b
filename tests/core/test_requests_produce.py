"""Produce requests byte for byte as the library encodes them, and answers read with and without the fast path."""

import random
import struct
import uuid
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from penstock.producer.protocol.framing import StreamError
from penstock.producer.protocol.produce_request import (
    LeaderHint,
    NodeEndpoint,
    PartitionData,
    PartitionProduceResponse,
    TopicData,
    decode_produce_response,
    encode_produce_request,
)

VERSIONS: Final = range(3, 14)
_ID: Final = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)

Shape = list[tuple[str, list[tuple[int, bytes]]]]


def theirs(
    version: int, correlation_id: int, client_id: str, shape: Shape, transactional_id: str | None = None
) -> bytes:
    request_topic = ProduceRequest.TopicProduceData
    topics = [
        request_topic(
            name=name,
            topic_id=uuid.uuid5(_ID, name),
            partition_data=[request_topic.PartitionProduceData(index=index, records=data) for index, data in rows],
        )
        for name, rows in shape
    ]
    request = ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=topics, version=version
    )
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


def ours(version: int, correlation_id: int, client_id: str, shape: Shape, transactional_id: str | None = None) -> bytes:
    topics = [
        TopicData(name, uuid.uuid5(_ID, name).bytes, [PartitionData(i, [d[:7], d[7:]], len(d)) for i, d in rows])
        for name, rows in shape
    ]
    framed = encode_produce_request(
        version, correlation_id, client_id, -1, 30_000, topics, transactional_id=transactional_id
    )
    joined = b"".join(framed.buffers)
    assert len(joined) == framed.size
    return joined


SHAPES: Final[list[Shape]] = [
    [("t", [(0, b"x" * 61)])],
    [("orders", [(0, b"a" * 100), (7, b"b" * 127), (2, b"c" * 128)]), ("é-topic", [(1, b"d" * 20_000)])],
    [(f"topic-{number}", [(index, bytes([index]) * (index + 1)) for index in range(130)]) for number in range(3)],
    [],
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=["one", "several", "many", "none"])
def test_a_request_is_byte_for_byte_the_librarys(version: int, shape: Shape) -> None:
    assert ours(version, 77, "penstock", shape) == theirs(version, 77, "penstock", shape)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["t", "zahlungen-ü", "x" * 300])
def test_a_transactional_id_is_byte_for_byte_the_librarys(version: int, name: str) -> None:
    shape = SHAPES[1]
    assert ours(version, 77, "penstock", shape, name) == theirs(version, 77, "penstock", shape, name)


@given(
    st.integers(3, 13),
    st.integers(0, 2**31 - 1),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.lists(
        st.tuples(
            st.text("abc.-_", min_size=1, max_size=200),
            st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=300)), min_size=1, max_size=5),
        ),
        max_size=4,
        unique_by=lambda topic: topic[0],
    ),
)
def test_any_request_is_byte_for_byte_the_librarys(version: int, correlation: int, client: str, shape: Shape) -> None:
    assert ours(version, correlation, client, shape) == theirs(version, correlation, client, shape)


def test_the_payload_is_referred_to_and_never_copied() -> None:
    payload = bytearray(b"z" * 1000)
    view = memoryview(payload)
    framed = encode_produce_request(9, 1, "c", -1, 1000, [TopicData("t", None, [PartitionData(0, [view], 1000)])])
    assert any(buffer is view for buffer in framed.buffers)


def test_a_topic_without_id_cannot_go_by_id() -> None:
    with pytest.raises(AssertionError):
        _ = encode_produce_request(13, 1, "c", -1, 1000, [TopicData("t", None, [PartitionData(0, [b"x"], 1)])])


# --- answers ---------------------------------------------------------------------------------------------------------

_TOPIC: Final = ProduceResponse.TopicProduceResponse
_ROW: Final = _TOPIC.PartitionProduceResponse


def encode(
    version: int,
    topics: list[ProduceResponse.TopicProduceResponse],
    throttle_ms: int = 0,
    nodes: list[ProduceResponse.NodeEndpoint] | None = None,
) -> bytes:
    response = ProduceResponse(responses=topics, throttle_time_ms=throttle_ms, version=version)
    if nodes is not None:
        response.node_endpoints = nodes
    return (b"\0" if version >= 9 else b"") + bytes(response.encode())


def topic(
    name: str, rows: list[ProduceResponse.TopicProduceResponse.PartitionProduceResponse]
) -> ProduceResponse.TopicProduceResponse:
    return _TOPIC(name=name, topic_id=uuid.uuid5(_ID, name), partition_responses=rows)


def expected(
    version: int, name: str, index: int, code: int, offset: int, append_ms: int, start: int
) -> PartitionProduceResponse:
    by_id = version >= 13
    return PartitionProduceResponse(
        "" if by_id else name,
        uuid.uuid5(_ID, name).bytes if by_id else None,
        index,
        code,
        offset,
        append_ms,
        start if version >= 5 else -1,
        [],
        "",
        None,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_usual_answer_is_read_partition_by_partition(version: int) -> None:
    rows = [
        _ROW(index=i, error_code=code, base_offset=10**12 + i, log_append_time_ms=5, log_start_offset=3)
        for i, code in enumerate([0, 6, 45])
    ]
    answer = decode_produce_response(
        version, encode(version, [topic("a", rows), topic("b", rows[:1])], throttle_ms=250)
    )
    assert answer.throttle_ms == 250
    assert answer.endpoints == []
    assert answer.outcomes == [
        *(expected(version, "a", i, code, 10**12 + i, 5, 3) for i, code in enumerate([0, 6, 45])),
        expected(version, "b", 0, 0, 10**12, 5, 3),
    ]


@pytest.mark.parametrize("version", range(8, 14))
def test_record_errors_and_messages_are_read(version: int) -> None:
    errors = [
        _ROW.BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="no key"),
        _ROW.BatchIndexAndErrorMessage(batch_index=9, batch_index_error_message=None),
    ]
    row = _ROW(
        index=4,
        error_code=87,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=errors,
        error_message="one or more records were rejected",
    )
    (outcome,) = decode_produce_response(version, encode(version, [topic("a", [row])])).outcomes
    assert outcome.code == 87
    assert outcome.record_errors == [(3, "no key"), (9, "")]
    assert outcome.message == "one or more records were rejected"
    assert outcome.leader_hint is None


@pytest.mark.parametrize("version", range(10, 14))
def test_a_leader_hint_comes_with_the_address_of_its_node(version: int) -> None:
    leader = _ROW.LeaderIdAndEpoch(leader_id=2, leader_epoch=11)
    row = _ROW(index=0, error_code=6, base_offset=-1, log_append_time_ms=-1, log_start_offset=-1, current_leader=leader)
    fine = _ROW(index=1, error_code=0, base_offset=8, log_append_time_ms=-1, log_start_offset=0)
    node = ProduceResponse.NodeEndpoint(node_id=2, host="broker-2", port=9092, rack=None)
    answer = decode_produce_response(version, encode(version, [topic("a", [row, fine])], nodes=[node]))
    assert [outcome.leader_hint for outcome in answer.outcomes] == [LeaderHint(2, 11), None]
    assert answer.endpoints == [NodeEndpoint(2, "broker-2", 9092, "")]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_of_an_answer_is_an_error_and_never_a_wrong_answer(version: int) -> None:
    rows = [_ROW(index=i, error_code=0, base_offset=i, log_append_time_ms=-1, log_start_offset=0) for i in range(3)]
    whole = encode(version, [topic("a", rows)])
    for end in range(len(whole)):
        with pytest.raises(StreamError):
            _ = decode_produce_response(version, whole[:end])


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_behind_an_answer_are_an_error(version: int) -> None:
    row = _ROW(index=0, error_code=0, base_offset=1, log_append_time_ms=-1, log_start_offset=0)
    with pytest.raises(StreamError, match="3 bytes behind"):
        _ = decode_produce_response(version, encode(version, [topic("a", [row])]) + b"abc")


@pytest.mark.parametrize("version", VERSIONS)
def test_random_bytes_are_an_answer_or_an_error_but_never_a_crash(version: int) -> None:
    chance = random.Random(version)
    for _ in range(300):
        noise = chance.randbytes(chance.randrange(0, 120))
        try:
            _ = decode_produce_response(version, noise)
        except StreamError:
            continue


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_a_count_that_promises_billions_costs_nothing(version: int) -> None:
    bomb = struct.pack(">i", 2**31 - 1) if version < 9 else b"\x00\xff\xff\xff\xff\x07"
    with pytest.raises(StreamError):
        _ = decode_produce_response(version, bomb)
