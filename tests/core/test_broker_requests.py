"""What the broker says of itself and of its cluster, asked by bytes in every version it offers."""

import uuid

import pytest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from penstock.broker.cluster.node import PRODUCER_ID_BLOCK, BrokerNodeLimits
from penstock.broker.log.error_codes import ErrorCode
from penstock.broker.log.topics import leader_index
from penstock.broker.requests.dispatch import APIS

from tests.harness.batches import batch, numbered
from tests.harness.broker_calls import PEERS, Bench

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID


def versions(api: int) -> range:
    return range(APIS[api].lowest, APIS[api].highest + 1)


def spread(*, node: int = 0, limits: BrokerNodeLimits | None = None) -> Bench:
    """A node of three; of topic t it leads one partition."""
    return Bench(peers=PEERS, node_id=node, limits=limits or BrokerNodeLimits())


def led_by(bench: Bench, node: int) -> int:
    return next(index for index in range(3) if leader_index("t", index, 3) == node)


# ApiVersions


@pytest.mark.parametrize("version", versions(18))
def test_the_offered_versions_are_told(version: int) -> None:
    answer = Bench().ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), version)
    assert answer.error_code == 0
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {key: (api.lowest, api.highest) for key, api in APIS.items()}


# Metadata


def metadata(bench: Bench, version: int, *names: str, ids: tuple[uuid.UUID, ...] = ()) -> list[tuple[int, str | None]]:
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=uuid.UUID(int=0)) for name in names]
    topics += [MetadataRequest.MetadataRequestTopic(name=None, topic_id=one) for one in ids]
    answer = bench.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=True), version)
    return [(topic.error_code, topic.name) for topic in answer.topics]


@pytest.mark.parametrize("version", versions(3))
def test_metadata_names_nodes_topics_and_leaders(version: int) -> None:
    bench = spread()
    answer = bench.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True), version)
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == list(PEERS)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "t")
    assert sorted(part.leader_id for part in topic.partitions) == [0, 1, 2]
    assert all(part.replica_nodes == part.isr_nodes == [part.leader_id] for part in topic.partitions)
    assert [part.partition_index for part in topic.partitions] == [0, 1, 2]
    if version >= 7:
        assert {part.leader_epoch for part in topic.partitions} == {0}
    if version >= 2:
        assert answer.cluster_id == spread(node=2).node.cluster_id


@pytest.mark.parametrize("version", range(1, 13))
def test_metadata_of_a_topic_that_is_not_there_says_so_and_does_not_make_it(version: int) -> None:
    bench = Bench()
    assert metadata(bench, version, "t", "u", "no topic", "..") == [
        (0, "t"),
        (UNKNOWN, "u"),
        (ErrorCode.INVALID_TOPIC, "no topic"),
        (ErrorCode.INVALID_TOPIC, ".."),
    ]
    assert [topic.name for topic in bench.node.topics()] == ["t"]


def test_no_topics_asked_means_none_and_in_version_zero_all() -> None:
    assert Bench().ask(MetadataRequest(topics=[]), 9).topics == []
    assert [topic.name for topic in Bench().ask(MetadataRequest(topics=[]), 0).topics] == ["t"]


def test_metadata_makes_a_topic_where_the_broker_and_the_request_allow_it() -> None:
    bench = Bench(limits=BrokerNodeLimits(auto_create_topics=True, default_partitions=4))
    asked = MetadataRequest.MetadataRequestTopic(name="u")
    answer = bench.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 9)
    assert answer.topics[0].error_code == UNKNOWN
    answer = bench.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=True), 9)
    assert (answer.topics[0].error_code, len(answer.topics[0].partitions)) == (0, 4)


@pytest.mark.parametrize("version", [10, 11, 12])
def test_metadata_by_topic_id(version: int) -> None:
    bench = Bench()
    topic = bench.node.topic("t")
    assert topic is not None
    nobody = uuid.uuid4()
    found = metadata(bench, version, ids=(topic.id, nobody))
    assert found == [(0, "t"), (UNKNOWN_ID, None if version == 12 else "")]


# Produce to the wrong place


@pytest.mark.parametrize("version", [3, 9, 10, 12, 13])
def test_a_node_that_does_not_lead_says_who_does_from_version_ten(version: int) -> None:
    bench = spread()
    index = led_by(bench, 2)
    answer = bench.ask(bench.produce_request({index: [batch()]}), version)
    (part,) = answer.responses[0].partition_responses
    assert (part.error_code, part.base_offset, part.log_start_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    if version >= 10:
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 0)
        assert [(one.node_id, one.host, one.port) for one in answer.node_endpoints] == [PEERS[2]]


@pytest.mark.parametrize(("version", "error"), [(3, UNKNOWN), (12, UNKNOWN), (13, UNKNOWN_ID)])
def test_produce_to_a_topic_that_is_not_there(version: int, error: ErrorCode) -> None:
    part = Bench().produce(batch(), topic="u", version=version)
    assert (part.error_code, part.base_offset) == (error, -1)


@pytest.mark.parametrize("index", [-1, 3, 1 << 30])
def test_produce_to_a_partition_that_is_not_there(index: int) -> None:
    assert Bench().produce(batch(), partition=index).error_code == UNKNOWN


def test_produce_by_the_id_of_a_topic_that_was_made_again_is_refused_beside_the_new_one() -> None:
    bench = Bench()
    old = bench.node.topic("t")
    assert old is not None
    request = bench.produce_request({0: [numbered(7, 0, 6)]})
    assert bench.node.delete_topic(old, bench.clock.moment)
    assert bench.ask(request, 13).responses[0].partition_responses[0].error_code == UNKNOWN_ID
    assert bench.node.create_topic("t", 3, (), bench.clock.moment) is not None
    request.topic_data += bench.produce_request({0: [numbered(7, 0, 6)]}).topic_data
    answer = bench.ask(request, 13)
    assert [one.partition_responses[0].error_code for one in answer.responses] == [UNKNOWN_ID, 0]
    assert [one.topic_id for one in answer.responses] == [old.id, request.topic_data[1].topic_id]


# Producer ids and coordinators


@pytest.mark.parametrize("version", versions(22))
def test_every_producer_gets_an_id_of_its_own_with_epoch_zero(version: int) -> None:
    bench = Bench()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_id=5, producer_epoch=3)
    told = [bench.ask(request, version) for _ in range(3)]
    assert {one.error_code for one in told} == {0}
    assert {one.producer_epoch for one in told} == {0}
    assert len({one.producer_id for one in told}) == 3


def test_ids_of_other_nodes_and_starts_are_never_given() -> None:
    blocks = set()
    for node in range(3):
        for start in range(3):
            bench = Bench(peers=PEERS, node_id=node, start=start)
            first = bench.node.new_producer_id()
            assert first is not None
            blocks.add(first // PRODUCER_ID_BLOCK)
            assert first % PRODUCER_ID_BLOCK == 0
    assert len(blocks) == 9


def test_a_start_that_has_used_up_its_ids_gives_no_more() -> None:
    bench = Bench()
    for _ in range(PRODUCER_ID_BLOCK):
        last = bench.node.new_producer_id()
    assert last == PRODUCER_ID_BLOCK - 1
    answer = bench.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_nodes_in_processes_of_their_own_have_no_coordinator_of_transactions() -> None:
    found = spread(node=0).ask(FindCoordinatorRequest(key="x", key_type=1, coordinator_keys=["x"]), 4)
    assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    unknown = spread(node=0).ask(FindCoordinatorRequest(key="x", key_type=2, coordinator_keys=["x"]), 6)
    assert unknown.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


def test_without_a_coordinator_nobody_gets_a_transactional_identity() -> None:
    answer = Bench().ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1), 4)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.NOT_COORDINATOR, -1)


@pytest.mark.parametrize("version", versions(10))
def test_all_nodes_name_the_same_coordinator_of_a_group(version: int) -> None:
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    answers = [spread(node=node).ask(request, version) for node in range(3)]
    told = [one.coordinators[0] if version >= 4 else one for one in answers]
    assert {(one.error_code, one.node_id, one.host, one.port) for one in told} == {
        (0, told[0].node_id, *PEERS[told[0].node_id][1:])
    }


# Leaders


def test_leaders_are_balanced_and_the_same_for_everybody() -> None:
    for nodes in range(1, 6):
        for name in ("events", "a", "b" * 249):
            leaders = [leader_index(name, index, nodes) for index in range(nodes * 4)]
            assert sorted(leaders) == sorted(list(range(nodes)) * 4)
    assert [leader_index("events", index, 3) for index in range(3)] == [1, 2, 0]
