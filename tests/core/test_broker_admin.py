"""Topics, settings and committed offsets, asked by bytes in every version the broker offers; and scripted faults."""

import pytest
from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from penstock.broker.cluster.faults import RULES_MAX, FailNext, Faults, TooManyRulesError
from penstock.broker.cluster.node import BrokerNodeLimits
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.requests.dispatch import APIS

from tests.harness.batches import Rec, batch
from tests.harness.broker_calls import PEERS, Bench

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID


def versions(api: int) -> range:
    return range(APIS[api].lowest, APIS[api].highest + 1)


def spread(*, node: int = 0, limits: BrokerNodeLimits | None = None) -> Bench:
    """A node of three; of topic t it leads one partition."""
    return Bench(peers=PEERS, node_id=node, limits=limits or BrokerNodeLimits())


# Committed offsets


def find_group(bench: Bench) -> None:
    """As a client does first; it makes the broker's own topic."""
    answer = bench.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    assert answer.error_code == 0


def commit(bench: Bench, offset: int, *, version: int, generation: int = -1, name: str = "t") -> int:
    find_group(bench)
    part = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=offset, committed_metadata="m"
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=[part])
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=generation, member_id="", group_instance_id=None, topics=[topic]
    )
    error: int = bench.ask(request, version).topics[0].partitions[0].error_code
    return error


def committed(bench: Bench, version: int, *, everything: bool = False) -> list[tuple[int, int, str | None]]:
    find_group(bench)
    if version >= 8:
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [kind.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
        group = kind(group_id="g", member_id=None, member_epoch=-1, topics=None if everything else topics)
        found = bench.ask(OffsetFetchRequest(groups=[group], require_stable=False), version).groups[0]
    else:
        asked = [OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        request = OffsetFetchRequest(group_id="g", topics=None if everything else asked, require_stable=False)
        found = bench.ask(request, version)
    parts = [part for topic in found.topics for part in topic.partitions]
    return [(part.partition_index, part.committed_offset, part.metadata) for part in parts]


@pytest.mark.parametrize("version", versions(8))
def test_offsets_are_committed_in_every_version(version: int) -> None:
    bench = Bench()
    assert commit(bench, 5, version=version) == 0
    assert commit(bench, 6, version=version) == 0
    assert committed(bench, 5) == [(0, -1, ""), (1, 6, "m")]


@pytest.mark.parametrize("version", versions(9))
def test_offsets_are_told_in_every_version(version: int) -> None:
    bench = Bench()
    assert committed(bench, version) == [(0, -1, ""), (1, -1, "")]
    assert commit(bench, 5, version=8) == 0
    assert committed(bench, version) == [(0, -1, ""), (1, 5, "m")]
    if version >= 2:
        assert committed(bench, version, everything=True) == [(1, 5, "m")]


def test_offsets_are_refused_where_they_have_no_place() -> None:
    bench = Bench(limits=BrokerNodeLimits(offsets_max=0))
    assert commit(bench, 5, version=8) == ErrorCode.KAFKA_STORAGE_ERROR
    assert commit(bench, 5, version=8, name="u") == UNKNOWN
    assert commit(bench, 5, version=8, generation=3) == ErrorCode.ILLEGAL_GENERATION
    errors = [commit(spread(node=node), 5, version=8) for node in range(3)]
    assert sorted(errors) == [0, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR]


# Administration


def create(bench: Bench, *, version: int = 7, only_check: bool = False, **fields: object) -> tuple[int, int]:
    """Error and number of partitions told for one topic to be made."""
    given = {"name": "u", "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []} | fields
    topic = CreateTopicsRequest.CreatableTopic(**given)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1, validate_only=only_check)
    (told,) = bench.ask(request, version).topics
    return told.error_code, told.num_partitions


def setting(name: str, value: str | None) -> CreateTopicsRequest.CreatableTopic.CreatableTopicConfig:
    return CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)


def test_a_topic_is_made_with_the_partitions_asked_for_or_the_default() -> None:
    bench = Bench(limits=BrokerNodeLimits(default_partitions=5))
    assert create(bench) == (0, 2)
    assert create(bench, name="v", num_partitions=-1, replication_factor=-1) == (0, 5)
    assert [(topic.name, topic.partitions) for topic in bench.node.topics()] == [("t", 3), ("u", 2), ("v", 5)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "t"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": ""}, ErrorCode.INVALID_TOPIC),
        ({"name": "."}, ErrorCode.INVALID_TOPIC),
        ({"name": "a/b"}, ErrorCode.INVALID_TOPIC),
        ({"name": "a" * 250}, ErrorCode.INVALID_TOPIC),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": 10_001}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": [setting("no.such.setting", "1")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [setting("max.message.bytes", "many")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [setting("compression.type", "lz4")]}, ErrorCode.INVALID_CONFIG),
        (
            {
                "num_partitions": -1,
                "assignments": [
                    CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])
                ],
            },
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
@pytest.mark.parametrize("version", [2, 7])
def test_a_topic_that_cannot_be_made_is_refused(version: int, fields: dict[str, object], error: ErrorCode) -> None:
    bench = Bench()
    assert create(bench, version=version, **fields)[0] == error
    assert len(bench.node.topics()) == 1


def test_checking_only_makes_nothing() -> None:
    bench = Bench()
    assert create(bench, only_check=True) == (0, 2)
    assert create(bench, name="t", only_check=True)[0] == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(bench.node.topics()) == 1


@pytest.mark.parametrize("version", versions(20))
def test_a_deleted_topic_is_gone_with_its_records(version: int) -> None:
    bench = Bench(limits=BrokerNodeLimits(log_bytes_max=len(batch())))
    assert bench.produce(batch()).error_code == 0
    topic = bench.node.topic("t")
    assert topic is not None

    def delete() -> int:
        state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.id)
        names = [] if version >= 6 else ["t"]
        request = DeleteTopicsRequest(topics=[state], topic_names=names, timeout_ms=1)
        error: int = bench.ask(request, version).responses[0].error_code
        return error

    assert delete() == 0
    assert delete() == (UNKNOWN_ID if version >= 6 else UNKNOWN)
    assert bench.node.create_topic("t", 1, (), bench.clock.moment) is not None
    assert bench.end() == 0
    # The deleted records take no room any more.
    assert bench.produce(batch()).error_code == 0


def configs(bench: Bench, kind: int, name: str, *keys: str, version: int = 4) -> tuple[int, dict[str, str | None]]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    (told,) = bench.ask(DescribeConfigsRequest(resources=[resource]), version).results
    return told.error_code, {one.name: one.value for one in told.configs}


@pytest.mark.parametrize("version", versions(32))
def test_the_settings_that_a_producer_asks_for_are_told(version: int) -> None:
    bench = Bench(settings=(("max.message.bytes", "500"),), limits=BrokerNodeLimits(producer_id_expiration_ms=77))
    error, told = configs(bench, 2, "t", version=version)
    assert error == 0
    assert told["max.message.bytes"] == "500"
    assert told["min.insync.replicas"] == "1"
    assert told["message.timestamp.type"] == "CreateTime"
    assert told["unclean.leader.election.enable"] == "false"
    assert configs(bench, 2, "t", "min.insync.replicas", version=version) == (0, {"min.insync.replicas": "1"})
    asked = configs(bench, 4, "0", "producer.id.expiration.ms", version=version)
    assert asked == (0, {"producer.id.expiration.ms": "77"})
    assert configs(bench, 2, "u", version=version) == (UNKNOWN, {})
    assert configs(bench, 4, "9", version=version) == (ErrorCode.INVALID_REQUEST, {})


def alter(bench: Bench, name: str, value: str | None, operation: int = 0, *, topic: str = "t", kind: int = 2) -> int:
    entry = IncrementalAlterConfigsRequest.AlterConfigsResource
    item = entry.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = entry(resource_type=kind, resource_name=topic, configs=[item])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    (told,) = {bench.ask(request, version).responses[0].error_code for version in versions(44)}
    error: int = told
    return error


def test_a_setting_is_changed_while_the_topic_is_in_use_and_put_back() -> None:
    bench = Bench()
    data = batch((Rec(b"x" * 200),))
    assert alter(bench, "max.message.bytes", "100") == 0
    assert bench.produce(data).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter(bench, "max.message.bytes", None, 1) == 0
    assert bench.produce(data).error_code == 0


def test_settings_that_cannot_be_changed_are_refused() -> None:
    bench = Bench()
    assert alter(bench, "max.message.bytes", "x") == ErrorCode.INVALID_CONFIG
    assert alter(bench, "no.such", "1") == ErrorCode.INVALID_CONFIG
    assert alter(bench, "no.such", None, 1) == ErrorCode.INVALID_CONFIG
    assert alter(bench, "cleanup.policy", "compact", 2) == ErrorCode.INVALID_CONFIG
    assert alter(bench, "max.message.bytes", "1", topic="u") == UNKNOWN
    assert alter(bench, "max.message.bytes", "1", topic="0", kind=4) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(60))
def test_the_cluster_is_described(version: int) -> None:
    answer = spread(node=1).ask(DescribeClusterRequest(), version)
    assert answer.controller_id == 1
    assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == list(PEERS)


# Faults


def test_a_fault_is_used_as_often_as_told_and_only_where_it_fits() -> None:
    faults = Faults()
    faults.add(FailNext(0, ErrorCode.INVALID_RECORD, 2, topic="t", partition=1))
    assert faults.for_partition(0, "t", 0) is None
    assert faults.for_partition(0, "u", 1) is None
    assert faults.for_partition(1, "t", 1) is None
    found = [faults.for_partition(0, "t", 1) for _ in range(3)]
    assert [one and one.error for one in found] == [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD, None]


def test_a_fault_for_ever_ends_when_it_is_cleared_and_rules_are_limited() -> None:
    faults = Faults()
    for _ in range(RULES_MAX):
        faults.add(FailNext(0, ErrorCode.INVALID_RECORD, -1))
    with pytest.raises(TooManyRulesError):
        faults.add(FailNext(0, ErrorCode.INVALID_RECORD, -1))
    assert all(faults.for_partition(0, "t", 0) for _ in range(5))
    faults.clear()
    assert faults.for_partition(0, "t", 0) is None
