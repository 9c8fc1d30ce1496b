"""Who checks the checker: the same requests to real Kafka and to our broker, and what they answer side by side."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from penstock.broker.log.error_codes import ErrorCode

from tests.core.test_broker_batches import BROKEN
from tests.harness.batches import Head, Rec, batch, numbered
from tests.harness.embedded import Caller, EmbeddedCluster, produce_request
from tests.harness.kafka_cluster import Cluster, existing_bootstrap, unique_topic
from tests.harness.processes import wait_until
from tests.kafka.exchange_cases import SCRIPTS, STRICTER

LAST = (1 << 31) - 1


@pytest.fixture(scope="module")
def ours() -> Iterator[EmbeddedCluster]:
    if existing_bootstrap():
        pytest.skip("raw requests go to one node, and the cluster that KAFKA_BOOTSTRAP names may have more")
    with EmbeddedCluster() as cluster:
        yield cluster


def call(cluster: Cluster) -> Caller:
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    return Caller((host, int(port)))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make(cluster: Cluster, name: str, partitions: int, *, config: dict[str, str] | None = None) -> str:
    """A topic whose leaders know already that they lead: Metadata tells of them a moment earlier."""
    topic = cluster.create_topic(name, partitions, replicas=1, config=config)
    _ = wait_until(lambda: leads(cluster, topic, partitions), seconds=15, what=f"{topic} can be used")
    return topic


def leads(cluster: Cluster, topic: str, partitions: int) -> bool:
    """Whether all offsets of a topic are told."""
    kind = ListOffsetsRequest.ListOffsetsTopic
    parts = [
        kind.ListOffsetsPartition(partition_index=index, timestamp=-1, current_leader_epoch=-1)
        for index in range(partitions)
    ]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[kind(name=topic, partitions=parts)])
    with call(cluster) as caller:
        told = caller.ask(request, 7).topics[0].partitions
    return {part.error_code for part in told} == {0}


class Told(NamedTuple):
    """What an answer says of a batch, but for times that two brokers cannot share."""

    error: int
    base_offset: int
    log_start: int
    timed: bool
    bad_records: tuple[int, ...]


def tell(caller: Caller, topic: str, data: bytes, *, acks: int = -1, version: int = 9) -> Told:
    answer = caller.ask(produce_request(topic, data, acks=acks), version)
    assert isinstance(answer, ProduceResponse)
    (part,) = answer.responses[0].partition_responses
    bad = tuple(one.batch_index for one in part.record_errors)
    return Told(part.error_code, part.base_offset, part.log_start_offset, part.log_append_time_ms >= 0, bad)


def both(
    kafka: Cluster,
    ours: EmbeddedCluster,
    batches: list[bytes],
    *,
    config: dict[str, str] | None = None,
    version: int = 9,
) -> list[Told]:
    """Send the same batches to a new topic of each, and return what both answered."""
    name = unique_topic(["agrees"])
    told: list[list[Told]] = []
    for cluster in (kafka, ours):
        topic = make(cluster, name, 1, config=config)
        with call(cluster) as caller:
            told.append([tell(caller, topic, data, version=version) for data in batches])
        assert cluster.offsets(topic)[0][1] >= 0
    assert told[1] == told[0]
    return told[1]


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_batch_is_refused_as_kafka_refuses_it_or_more_strictly(
    kafka_one: Cluster, ours: EmbeddedCluster, what: str
) -> None:
    data, error, _ = BROKEN[what]
    name = unique_topic(["broken"])
    told: list[Told] = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, name, 1)
        with call(cluster) as caller:
            told.append(tell(caller, topic, data))
    theirs, own = told
    assert own.error == error
    if what in STRICTER:
        assert theirs.error == STRICTER[what]
    else:
        assert (own.error, own.base_offset, own.log_start) == (theirs.error, theirs.base_offset, theirs.log_start)


@pytest.mark.parametrize("codec", range(5))
def test_right_batches_of_every_codec_are_stored_byte_by_byte_as_kafka_stores_them(
    kafka_one: Cluster, ours: EmbeddedCluster, codec: int
) -> None:
    at = now_ms()
    records = [
        Rec(b"v" * 300, b"k", [("h", b"x"), ("n", None)], at),
        Rec(None, None, (), at - 5),
        Rec(b"", b"", (), at + 9),
    ]
    data = batch(records, Head(attributes=codec))
    name = unique_topic(["stored"])
    found: list[bytes] = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, name, 1)
        with call(cluster) as caller:
            assert [tell(caller, topic, data).base_offset for _ in range(2)] == [0, 3]
            part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            request = FetchRequest(
                replica_id=-1,
                max_wait_ms=1000,
                min_bytes=2 * len(data),
                max_bytes=1 << 20,
                isolation_level=0,
                topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
                forgotten_topics_data=[],
            )
            (answer,) = caller.ask(request, 11).responses[0].partitions
            found.append(answer.records)
    assert found[0] == found[1]
    assert len(found[0]) == 2 * len(data)


@pytest.mark.parametrize("what", SCRIPTS)
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_producer_state_is_judged_as_kafka_judges_it(
    kafka_one: Cluster, ours: EmbeddedCluster, what: str, kind: str
) -> None:
    at = now_ms()

    batches = [numbered(4_000_000, epoch, first, count, at) for epoch, first, count in SCRIPTS[what]]
    told = both(kafka_one, ours, batches, config={"message.timestamp.type": kind})
    assert {one.error for one in told} <= {0, 45, 47}


def test_timestamps_outside_of_the_bounds_are_refused_alike_also_when_in_the_log(
    kafka_one: Cluster, ours: EmbeddedCluster
) -> None:
    at = now_ms()
    day = 86_400_000
    config = {"message.timestamp.after.max.ms": str(day), "message.timestamp.before.max.ms": str(day)}
    times = (at, at + 2 * day, at - 2 * day, -1)
    told = both(
        kafka_one,
        ours,
        [batch([Rec(timestamp=at)]), batch([Rec(timestamp=one) for one in times]), batch([Rec(timestamp=at)])],
        config=config,
    )
    assert [one.error for one in told] == [0, ErrorCode.INVALID_TIMESTAMP, 0]


def test_records_without_a_key_on_a_compacted_topic_are_refused_alike(
    kafka_one: Cluster, ours: EmbeddedCluster
) -> None:
    at = now_ms()
    mixed = batch([Rec(key=b"k", timestamp=at), Rec(timestamp=at), Rec(key=b"", timestamp=at), Rec(timestamp=at)])
    keyed = batch([Rec(key=b"k", timestamp=at)])
    told = both(kafka_one, ours, [mixed, keyed], config={"cleanup.policy": "compact"})
    assert told[0].error == ErrorCode.INVALID_RECORD
    assert told[0].bad_records == (1, 3)


def alter(cluster: Cluster, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for done in cluster.admin.incremental_alter_configs([resource]).values():
        _ = done.result(60)


def test_a_limit_lowered_after_the_append_hides_the_duplicate_alike(kafka_one: Cluster, ours: EmbeddedCluster) -> None:
    at = now_ms()
    data = numbered(4_000_000, 0, 0, 50, at)
    told: list[list[Told]] = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, unique_topic(["lowered"]), 1)
        with call(cluster) as caller:
            found = [tell(caller, topic, data)]
            alter(cluster, topic, "max.message.bytes", "100")
            found += [tell(caller, topic, data), tell(caller, topic, numbered(4_000_000, 0, 77, 50, at))]
            alter(cluster, topic, "max.message.bytes", "100000")
            found += [tell(caller, topic, data), tell(caller, topic, numbered(4_000_000, 0, 77, 1, at))]
        told.append(found)
    assert told[0] == told[1]
    assert [one.error for one in told[1]] == [0, 10, 10, 0, 45]


@pytest.mark.parametrize("version", [3, 7, 9, 11])
def test_a_topic_a_partition_and_acks_that_are_not_there_are_answered_alike(
    kafka_one: Cluster, ours: EmbeddedCluster, version: int
) -> None:
    at = now_ms()
    data = batch([Rec(timestamp=at)])
    name = unique_topic(["nothing"])
    told: list[list[tuple[int, int, int]]] = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, name, 1)
        found = []
        with call(cluster) as caller:
            for request in (
                produce_request("no-such-topic", data),
                produce_request(topic, data, 7),
                produce_request(topic, data, acks=2),
            ):
                answer = caller.ask(request, version)
                assert isinstance(answer, ProduceResponse)
                (part,) = answer.responses[0].partition_responses
                found.append((part.error_code, part.base_offset, part.log_start_offset))
        told.append(found)
    assert told[0] == told[1]


def test_two_batches_for_a_partition_and_a_good_one_beside_it(kafka_one: Cluster, ours: EmbeddedCluster) -> None:
    data = batch([Rec(timestamp=now_ms())])
    kind = ProduceRequest.TopicProduceData
    told: list[dict[int, tuple[int, int]]] = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, unique_topic(["two"]), 2)
        parts = [
            kind.PartitionProduceData(index=0, records=data * 2),
            kind.PartitionProduceData(index=1, records=data),
        ]
        request = ProduceRequest(
            transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[kind(name=topic, partition_data=parts)]
        )
        with call(cluster) as caller:
            answer = caller.ask(request, 9)
        assert isinstance(answer, ProduceResponse)
        told.append(
            {part.index: (part.error_code, part.base_offset) for part in answer.responses[0].partition_responses}
        )
    assert told[0] == told[1] == {0: (ErrorCode.INVALID_RECORD, -1), 1: (0, 0)}


def test_producers_are_told_alike(kafka_one: Cluster, ours: EmbeddedCluster) -> None:
    at = now_ms()
    script = [(1, 0, 0, 5), (2, 3, 10, 1), (1, 0, 5, 1), (1, 0, 9, 1), (2, 4, 0, 2), (3, 0, LAST - 1, 4)]
    told = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, unique_topic(["producers"]), 1)
        with call(cluster) as caller:
            for number, epoch, first, count in script:
                _ = tell(caller, topic, numbered(4_000_000 + number, epoch, first, count, at))
            asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
            (part,) = caller.ask(DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
        states = [
            (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.current_txn_start_offset)
            for one in part.active_producers
        ]
        told.append((part.error_code, sorted(states)))
    assert told[0] == told[1]
    assert len(told[1][1]) == 3


def test_offsets_and_epochs_are_told_alike(kafka_one: Cluster, ours: EmbeddedCluster) -> None:
    told = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, unique_topic(["offsets"]), 1)
        found: list[object] = []
        with call(cluster) as caller:
            for times in ((1000, 3000, 2000), (4000, 4000), (500, 3500)):
                assert tell(caller, topic, batch([Rec(timestamp=at) for at in times])).error == 0
            for timestamp in (-1, -2, -3, 0, 1001, 3000, 3001, 4001):
                kind = ListOffsetsRequest.ListOffsetsTopic
                part = kind.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
                request = ListOffsetsRequest(
                    replica_id=-1, isolation_level=0, topics=[kind(name=topic, partitions=[part])]
                )
                (one,) = caller.ask(request, 7).topics[0].partitions
                found.append((timestamp, one.error_code, one.offset, one.timestamp, one.leader_epoch))
            for current, epoch in ((0, 0), (-1, 0), (0, 5), (9, 0)):
                asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
                end = asked.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
                epochs = OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked(topic=topic, partitions=[end])])
                (last,) = caller.ask(epochs, 4).topics[0].partitions
                found.append((current, epoch, last.error_code, last.leader_epoch, last.end_offset))
        told.append(found)
    assert told[0] == told[1]


def test_metadata_of_topics_that_are_there_and_are_not_is_alike(kafka_one: Cluster, ours: EmbeddedCluster) -> None:
    told = []
    for cluster in (kafka_one, ours):
        topic = make(cluster, unique_topic(["metadata"]), 2)
        found: list[object] = []
        with call(cluster) as caller:
            for version in range(1, 13):
                names = [topic, "no-such-topic", "not a topic"]
                asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
                answer = caller.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), version)
                by_name = {one.name: one for one in answer.topics}
                found += [(version, by_name[name].error_code, len(by_name[name].partitions)) for name in names]
        told.append(found)
    assert told[0] == told[1]
