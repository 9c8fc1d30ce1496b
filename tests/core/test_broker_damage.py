"""Requests of every API and version with bytes changed: answered or refused, and the broker goes on."""

import random
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.requests.dispatch import APIS, RequestError, RequestReply, apply, decode

from tests.harness.batches import batch
from tests.harness.broker_calls import Bench

TOPIC_ID = Bench().node.topics()[0].id


def samples() -> Iterator[ApiMessage]:
    """A right request of every API."""
    produce = ProduceRequest.TopicProduceData
    part = produce.PartitionProduceData(index=0, records=batch())
    data = [produce(name="t", topic_id=TOPIC_ID, partition_data=[part])]
    yield ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)
    fetch = FetchRequest.FetchTopic
    wanted = fetch(topic="t", topic_id=TOPIC_ID, partitions=[fetch.FetchPartition(partition=0, partition_max_bytes=99)])
    yield FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=99, topics=[wanted], forgotten_topics_data=[])
    offsets = ListOffsetsRequest.ListOffsetsTopic
    asked = offsets(name="t", partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=5)])
    yield ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[asked])
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=uuid.UUID(int=0)) for name in ("t", "u")]
    yield MetadataRequest(topics=topics)
    commit = OffsetCommitRequest.OffsetCommitRequestTopic
    one = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    yield OffsetCommitRequest(group_id="g", member_id="", topics=[commit(name="t", partitions=[one])])
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    named = group(group_id="g", topics=[group.OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    single = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    yield OffsetFetchRequest(group_id="g", topics=[single], groups=[named])
    yield FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    yield ApiVersionsRequest(client_software_name="x", client_software_version="1")
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name="cleanup.policy", value="compact")
    yield CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name="u", num_partitions=1, replication_factor=1, assignments=[], configs=[config]
            )
        ],
        timeout_ms=1,
    )
    state = DeleteTopicsRequest.DeleteTopicState(name="u", topic_id=uuid.UUID(int=0))
    yield DeleteTopicsRequest(topics=[state], topic_names=["u"], timeout_ms=1)
    trimmed = DeleteRecordsRequest.DeleteRecordsTopic
    until = trimmed.DeleteRecordsPartition(partition_index=0, offset=0)
    yield DeleteRecordsRequest(topics=[trimmed(name="t", partitions=[until])], timeout_ms=1)
    yield InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epoch = epochs(topic="t", partitions=[epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)])
    yield OffsetForLeaderEpochRequest(replica_id=-1, topics=[epoch])
    resource = DescribeConfigsRequest.DescribeConfigsResource
    yield DescribeConfigsRequest(resources=[resource(resource_type=2, resource_name="t", configuration_keys=["x"])])
    altered = IncrementalAlterConfigsRequest.AlterConfigsResource
    item = altered.AlterableConfig(name="retention.ms", config_operation=0, value="5")
    yield IncrementalAlterConfigsRequest(resources=[altered(resource_type=2, resource_name="t", configs=[item])])
    yield DescribeClusterRequest()
    yield DescribeProducersRequest(topics=[DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])])
    added = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
    yield AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[added],
    )
    who = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
    yield AddOffsetsToTxnRequest(**who, group_id="g")
    yield EndTxnRequest(**who, committed=True)
    kept = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    read = kept.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    yield TxnOffsetCommitRequest(**who, group_id="g", topics=[kept(name="t", partitions=[read])])
    spoken = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    yield JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=1_000,
        member_id="",
        protocol_type="consumer",
        protocols=[spoken],
    )
    given = SyncGroupRequest.SyncGroupRequestAssignment(member_id="m", assignment=b"a")
    yield SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[given])
    yield HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    gone = LeaveGroupRequest.MemberIdentity(member_id="m")
    yield LeaveGroupRequest(group_id="g", member_id="m", members=[gone])
    yield DescribeTransactionsRequest(transactional_ids=["x"])
    yield ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[1])


def encoded(request: ApiMessage, version: int) -> bytes:
    request.API_VERSION = version
    request.with_header(1, "client")
    data: bytes = request.encode(header=True)
    return data


RIGHT = [
    (key, version, encoded(request, version))
    for key, request in ((request.API_KEY, request) for request in samples())
    for version in range(APIS[key].lowest, APIS[key].highest + 1)
]


def test_every_api_has_a_sample() -> None:
    assert {key for key, _, _ in RIGHT} == set(APIS)


@pytest.mark.parametrize(("key", "version", "data"), RIGHT, ids=[f"{key}-v{version}" for key, version, _ in RIGHT])
def test_bytes_changed_anywhere_do_no_harm(key: int, version: int, data: bytes) -> None:
    bench = Bench()
    chance = random.Random(f"{key} {version}")
    answered = 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(4, len(data))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        try:
            request = decode(bytes(damaged), arrived=0.0)
        except RequestError:
            continue
        assert isinstance(apply(bench.node, request, bench.clock.moment), RequestReply | DelayedResponse)
        answered += 1
    assert answered > 0
    assert isinstance(apply(bench.node, decode(data, arrived=0.0), bench.clock.moment), RequestReply)


@settings(max_examples=300, deadline=None)
@given(which=st.sampled_from(RIGHT), rest=st.binary(max_size=60), keep=st.integers(8, 60))
def test_any_end_of_a_request_does_no_harm(which: tuple[int, int, bytes], rest: bytes, keep: int) -> None:
    bench = Bench()
    try:
        request = decode(which[2][:keep] + rest, arrived=0.0)
    except RequestError:
        return
    assert isinstance(apply(bench.node, request, bench.clock.moment), RequestReply | DelayedResponse)
