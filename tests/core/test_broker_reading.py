"""Fetch, ListOffsets and OffsetForLeaderEpoch, asked by bytes in every version the broker offers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.log.topics import leader_index
from penstock.broker.requests.dispatch import APIS, RequestError, decode

from tests.harness.batches import NOW_MS, Head, Rec, batch
from tests.harness.broker_calls import PEERS, Bench

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def versions(api: int) -> range:
    return range(APIS[api].lowest, APIS[api].highest + 1)


def spread(*, node: int = 0, limits: BrokerNodeLimits | None = None) -> Bench:
    """A node of three; of topic t it leads one partition."""
    return Bench(peers=PEERS, node_id=node, limits=limits or BrokerNodeLimits())


# Fetch


def fetch_request(
    bench: Bench,
    *offsets: int,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    part_bytes: int = 1 << 20,
) -> FetchRequest:
    topic = bench.node.topic("t")
    assert topic is not None
    parts = [
        FetchRequest.FetchTopic.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=part_bytes)
        for index, offset in enumerate(offsets)
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=1,
        topics=[FetchRequest.FetchTopic(topic="t", topic_id=topic.id, partitions=parts)],
        forgotten_topics_data=[],
    )


def fetched(bench: Bench, request: FetchRequest, version: int = 11) -> list[tuple[int, int, int]]:
    """Error, high watermark and bytes of each partition."""
    parts = bench.ask(request, version).responses[0].partitions
    return [(part.error_code, part.high_watermark, len(part.records or b"")) for part in parts]


@pytest.mark.parametrize("version", versions(1))
def test_what_was_produced_is_fetched_with_its_offset_in_every_version(version: int) -> None:
    bench = Bench()
    data = batch((Rec(b"a"), Rec(b"b")))
    assert [bench.produce(data).base_offset for _ in range(2)] == [0, 2]
    (part, _, _) = bench.ask(fetch_request(bench, 3, 0, 0), version).responses[0].partitions
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 4, 4)
    # Offset, leader epoch and nothing else of the batch differ.
    assert part.records == (2).to_bytes(8, "big") + data[8:12] + bytes(4) + data[16:]


def test_a_fetch_returns_whole_batches_up_to_its_limits_and_at_least_one() -> None:
    bench = Bench()
    data = batch((Rec(b"x" * 100),))
    size = len(data)
    for index in range(3):
        for _ in range(4):
            assert bench.produce(data, partition=index).error_code == 0

    def sizes(**limits: int) -> list[int]:
        return [one[2] // size for one in fetched(bench, fetch_request(bench, 0, 0, 0, **limits))]

    assert sizes() == [4, 4, 4]
    assert sizes(part_bytes=2 * size) == [2, 2, 2]
    assert sizes(max_bytes=5 * size) == [4, 1, 0]
    assert sizes(max_bytes=1) == [1, 0, 0]
    assert sizes(part_bytes=1) == [1, 1, 1]


def test_a_fetch_outside_of_the_log_is_out_of_range_and_at_its_end_empty() -> None:
    bench = Bench()
    assert bench.produce(batch()).error_code == 0
    out = ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(bench, fetch_request(bench, 2, 0, -1)) == [(out, 1, 0), (0, 0, 0), (out, 0, 0)]
    assert fetched(bench, fetch_request(bench, 1)) == [(0, 1, 0)]


def test_a_fetch_waits_until_its_deadline_or_until_there_is_enough() -> None:
    bench = Bench()
    request = fetch_request(bench, 0, wait_ms=500, min_bytes=100)
    assert bench.exchange(request, 11) == DelayedResponse(100.5)
    assert bench.produce(batch()).error_code == 0
    assert bench.exchange(request, 11) == DelayedResponse(100.5)
    assert bench.produce(batch()).error_code == 0
    assert fetched(bench, request) == [(0, 2, 2 * len(batch()))]


def test_a_fetch_with_an_error_does_not_wait() -> None:
    bench = Bench()
    assert fetched(bench, fetch_request(bench, 0, 5, wait_ms=500))[1][0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert spread().reply(fetch_request(bench, 0, 0, 0, wait_ms=500), 11).data


def test_fetch_sessions_are_not_known() -> None:
    bench = Bench()
    request = fetch_request(bench, 0)
    request.session_id = 5
    assert bench.ask(request, 11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# ListOffsets, OffsetForLeaderEpoch


def listed(bench: Bench, *asked: int, version: int = 7, epoch: int = -1) -> list[tuple[int, int, int]]:
    """Error, offset and timestamp for each timestamp asked of partition 0."""
    found = []
    for timestamp in asked:
        part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=0, timestamp=timestamp, current_leader_epoch=epoch
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
        answer = bench.ask(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), version)
        (one,) = answer.topics[0].partitions
        found.append((one.error_code, one.offset, one.timestamp))
    return found


@pytest.mark.parametrize("codec", range(5))
def test_offsets_are_found_by_time_inside_of_batches(codec: int) -> None:
    bench = Bench()
    for times in ((10, 30, 20), (40, 40), (5, 35)):
        assert bench.produce(batch([Rec(timestamp=at) for at in times], Head(attributes=codec))).error_code == 0
    assert listed(bench, 0, 11, 30, 31, 41) == [(0, 0, 10), (0, 1, 30), (0, 1, 30), (0, 3, 40), (0, -1, -1)]
    assert listed(bench, -1, -2, -3) == [(0, 7, -1), (0, 0, -1), (0, 3, 40)]
    assert listed(bench, -4)[0][0] == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_log_begins_and_ends_at_zero_and_has_no_newest_record() -> None:
    assert listed(Bench(), -1, -2, -3, 0) == [(0, 0, -1), (0, 0, -1), (0, -1, -1), (0, -1, -1)]


def test_log_append_time_is_what_offsets_are_found_by() -> None:
    bench = Bench(settings=(("message.timestamp.type", "LogAppendTime"),))
    for _ in range(2):
        part = bench.produce(batch((Rec(timestamp=1), Rec(timestamp=2))))
        assert (part.error_code, part.log_append_time_ms) == (0, bench.clock.wall_ms)
        bench.clock.pass_ms(10)
    assert listed(bench, 3, NOW_MS + 1, NOW_MS + 11) == [(0, 0, NOW_MS), (0, 2, NOW_MS + 10), (0, -1, -1)]


@pytest.mark.parametrize("version", versions(2))
def test_list_offsets_in_every_version(version: int) -> None:
    bench = Bench()
    assert bench.produce(batch()).error_code == 0
    assert listed(bench, -1, version=version) == [(0, 1, -1)]


def test_a_leader_epoch_that_is_newer_than_the_only_one_is_unknown() -> None:
    assert listed(Bench(), -1, epoch=0)[0][0] == 0
    assert listed(Bench(), -1, epoch=1)[0][0] == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", versions(23))
@pytest.mark.parametrize(("asked", "told"), [(0, (0, 0, 2)), (1, (0, -1, -1))])
def test_the_only_epoch_ends_where_the_log_ends(version: int, asked: int, told: tuple[int, int, int]) -> None:
    bench = Bench()
    assert bench.produce(batch((Rec(), Rec()))).error_code == 0
    part = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=0, leader_epoch=asked
    )
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[part])
    answer = bench.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]), version)
    (one,) = answer.topics[0].partitions
    assert (one.error_code, one.leader_epoch, one.end_offset) == told


def test_reading_from_a_node_that_does_not_lead() -> None:
    bench = spread(node=(leader_index("t", 0, 3) + 1) % 3)
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert listed(bench, -1)[0][0] == error
    assert fetched(bench, fetch_request(bench, 0))[0][0] == error
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 9])
    parts = bench.ask(DescribeProducersRequest(topics=[topic]), 0).topics[0].partitions
    assert [part.error_code for part in parts] == [error, UNKNOWN]


# Bytes that are no requests


@settings(max_examples=400, deadline=None)
@given(
    api=st.sampled_from([*APIS, -1, 5, 70]),
    version=st.integers(-1, 20),
    rest=st.binary(max_size=200),
)
def test_any_bytes_are_a_request_or_refused_and_never_anything_else(api: int, version: int, rest: bytes) -> None:
    data = api.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + rest
    try:
        request = decode(data, arrived=0.0)
    except RequestError:
        return
    assert request.api == api


@pytest.mark.parametrize("api", [0, 1])
def test_a_request_cut_anywhere_is_refused(api: int) -> None:
    bench = Bench()
    request = fetch_request(bench, 0) if api == 1 else bench.produce_request({0: [batch()]})
    request.API_VERSION = 9
    request.with_header(1, "x")
    data = request.encode(header=True)
    for size in range(len(data)):
        with pytest.raises(RequestError):
            _ = decode(data[:size], arrived=0.0)
