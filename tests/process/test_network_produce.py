"""Produce over our connections, framed and read by us, against our own strict broker."""

from collections.abc import Iterator
from time import monotonic

import pytest
from penstock.producer.protocol.error_codes import ProduceErrorClass, classify_produce_error
from penstock.producer.protocol.produce_request import PartitionData, TopicData

from tests.harness.batches import numbered
from tests.harness.embedded import EmbeddedCluster
from tests.harness.kafka_cluster import unique_topic
from tests.harness.produce_client import ProduceClient, identity, one
from tests.harness.readers import read_topic


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


def test_every_version_is_taken_and_all_of_it_is_in_the_log(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique_topic(["versions"]), 1)
    topic_id, producer_id = identity(cluster, topic)
    sender = ProduceClient(*cluster.nodes[0].address)
    try:
        for sequence, version in enumerate(range(3, 14)):
            sender.send(f"v{version}", version, [one(topic, topic_id, 0, numbered(producer_id, 0, sequence))])
            (outcome,) = sender.answer(f"v{version}").outcomes
            assert (outcome.code, outcome.base_offset) == (0, sequence)
            assert (outcome.topic, outcome.topic_id) == (("", topic_id) if version == 13 else (topic, None))
    finally:
        sender.close()
    assert len(list(read_topic(cluster, topic))) == 11


def test_several_requests_on_the_wire_are_answered_each_for_its_own(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique_topic(["several"]), 4)
    topic_id, producer_id = identity(cluster, topic)
    sender = ProduceClient(*cluster.nodes[0].address)
    try:
        for sequence in range(5):
            batches = [PartitionData(index, [numbered(producer_id, 0, sequence)], 0) for index in range(4)]
            parts = [part._replace(size=len(part.buffers[0])) for part in batches]
            sender.send(str(sequence), 13, [TopicData(topic, topic_id, parts)])
        assert sender.connection.in_flight == 5
        for sequence in range(5):
            outcomes = sender.answer(str(sequence)).outcomes
            assert sorted((out.index, out.code, out.base_offset) for out in outcomes) == [
                (index, 0, sequence) for index in range(4)
            ]
    finally:
        sender.close()


def test_refusals_and_repeats_are_judged(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique_topic(["judged"]), 1)
    topic_id, producer_id = identity(cluster, topic)
    sender = ProduceClient(*cluster.nodes[0].address)

    def verdict(
        tag: str, version: int, data: bytes, *, by_id: bytes = topic_id, name: str = topic
    ) -> ProduceErrorClass:
        sender.send(tag, version, [one(name, by_id, 0, data)])
        (outcome,) = sender.answer(tag).outcomes
        return classify_produce_error(outcome.code, record_count=1, log_start=outcome.log_start).error_class

    try:
        first, second = numbered(producer_id, 0, 0), numbered(producer_id, 0, 1)
        damaged = second[:-1] + bytes([second[-1] ^ 1])
        assert verdict("new", 9, first) is ProduceErrorClass.ACKED
        assert verdict("again", 9, first) is ProduceErrorClass.ACKED
        assert verdict("gap", 9, numbered(producer_id, 0, 7)) is ProduceErrorClass.OUT_OF_ORDER
        assert verdict("damaged", 9, damaged) is ProduceErrorClass.RETRY
        assert verdict("unknown name", 9, second, name="no-such-topic") is ProduceErrorClass.CONFIRM_TOPIC
        assert verdict("unknown id", 13, second, by_id=bytes(range(16))) is ProduceErrorClass.CONFIRM_TOPIC
        assert verdict("next", 13, second) is ProduceErrorClass.ACKED
    finally:
        sender.close()


def test_requests_of_a_broker_that_is_killed_are_lost_in_order() -> None:
    with EmbeddedCluster() as cluster:
        topic = cluster.create_topic(unique_topic(["killed"]), 1)
        topic_id, producer_id = identity(cluster, topic)
        sender = ProduceClient(*cluster.nodes[0].address)
        try:
            cluster.nodes[0].kill()
            for sequence in range(3):
                if sender.connection.can_send(monotonic()):
                    sender.send(str(sequence), 13, [one(topic, topic_id, 0, numbered(producer_id, 0, sequence))])
            sender.until(lambda: bool(sender.lost))
            assert sender.lost == sorted(sender.lost)
            assert sender.lost[0] == "0"
            assert sender.connection.pending_bytes == 0
        finally:
            sender.close()
