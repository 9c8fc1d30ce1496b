"""Our connections, requests and metadata against real Kafka."""

import time

import pytest
from penstock.producer.protocol.error_codes import ProduceErrorClass, classify_produce_error
from penstock.producer.protocol.produce_request import PartitionProduceResponse

from tests.harness.batches import numbered
from tests.harness.kafka_cluster import Cluster
from tests.harness.metadata_client import MetadataClient
from tests.harness.produce_client import ProduceClient, identity, one
from tests.harness.readers import read_topic

from .conftest import own


def batch(producer_id: int, sequence: int) -> bytes:
    return numbered(producer_id, 0, sequence, timestamp=time.time_ns() // 1_000_000)


def verdict(outcome: PartitionProduceResponse) -> ProduceErrorClass:
    return classify_produce_error(outcome.code, record_count=1, log_start=outcome.log_start).error_class


def test_every_version_a_broker_offers_is_taken(kafka_one: Cluster, topic_name: str) -> None:
    topic = kafka_one.create_topic(topic_name, 1)
    topic_id, producer_id = identity(kafka_one, topic)
    sender = ProduceClient(*kafka_one.bootstrap.split(",")[0].rsplit(":", 1))
    try:
        newest = sender.connection.version_of(0, 3, 13)
        assert newest is not None
        for sequence, version in enumerate(range(3, newest + 1)):
            sender.send(f"v{version}", version, [one(topic, topic_id, 0, batch(producer_id, sequence))])
            (outcome,) = sender.answer(f"v{version}").outcomes
            assert (verdict(outcome), outcome.base_offset) == (ProduceErrorClass.ACKED, sequence)
            assert outcome.log_start == (0 if version >= 5 else -1)
        sender.send("gap", newest, [one(topic, topic_id, 0, batch(producer_id, 99))])
        assert verdict(sender.answer("gap").outcomes[0]) is ProduceErrorClass.OUT_OF_ORDER
        sender.send("unknown", newest, [one("no-such-topic", bytes(range(16)), 0, batch(producer_id, 0))])
        assert verdict(sender.answer("unknown").outcomes[0]) is ProduceErrorClass.CONFIRM_TOPIC
    finally:
        sender.close()
    assert len(list(read_topic(kafka_one, topic))) == newest - 2


def test_metadata_settings_and_producer_ids_come_from_a_real_broker(kafka_one: Cluster, topic_name: str) -> None:
    topic = kafka_one.create_topic(topic_name, 3, config={"max.message.bytes": "2000000"})
    with MetadataClient(kafka_one.bootstrap) as client:
        client.metadata.want(topic)
        client.metadata.want(topic + "-missing")
        client.metadata.request_producer_id()
        client.until(lambda: client.metadata.topic_settings(topic) is not None and bool(client.producer_ids))
        client.until(lambda: client.metadata.topic_error(topic + "-missing") is not None)
        client.until(lambda: client.metadata.producer_id_expiration_ms is not None)
        view = client.metadata.topic(topic)
        settings = client.metadata.topic_settings(topic)
        assert view is not None
        assert settings is not None
        assert {index: part.leader for index, part in view.partitions.items()} == kafka_one.leaders(topic)
        assert settings.message_bytes_max == 2_000_000
        assert settings.timestamp_type == "CreateTime"
        assert client.metadata.problems == {}


def test_a_topic_made_again_is_another_topic(kafka_one: Cluster, topic_name: str) -> None:
    topic = kafka_one.create_topic(topic_name, 2)
    with MetadataClient(kafka_one.bootstrap) as client:
        client.metadata.want(topic)
        client.until(lambda: client.metadata.topic(topic) is not None)
        kafka_one.delete_topic(topic)
        client.metadata.refresh()
        client.until(lambda: client.metadata.topic_error(topic) is not None)
        _ = kafka_one.create_topic(topic, 1)
        client.until(lambda: any(change.topics_replaced for change in client.changes))
        view = client.metadata.topic(topic)
        assert view is not None
        assert view.partition_count == 1


def test_a_broker_that_does_not_lead_names_the_one_that_does(kafka_three: Cluster, topic_name: str) -> None:
    topic = kafka_three.create_topic(topic_name, 1)
    topic_id, producer_id = identity(kafka_three, topic)
    with MetadataClient(kafka_three.bootstrap) as client:
        client.metadata.want(topic)
        client.until(lambda: client.metadata.topic(topic) is not None)
        view = client.metadata.cluster.partition(topic, 0)
        assert view is not None
        other = next(at for node, at in client.metadata.cluster.nodes.items() if node != view.leader)
        sender = ProduceClient(other.host, str(other.port))
        try:
            newest = sender.connection.version_of(0, 10, 13)
            assert newest is not None
            sender.send("wrong", newest, [one(topic, topic_id, 0, batch(producer_id, 0))])
            answer = sender.answer("wrong")
        finally:
            sender.close()
        (outcome,) = answer.outcomes
        assert verdict(outcome) is ProduceErrorClass.NEW_LEADER
        hint = outcome.leader_hint
        assert hint is not None
        assert (hint.leader, hint.leader_epoch) == (view.leader, view.leader_epoch)
        assert [end.node for end in answer.endpoints] == [view.leader]
        # What the hint says is known already: nothing changes.
        assert not client.metadata.apply_leader_hint(topic, 0, hint.leader, hint.leader_epoch)


def test_a_moved_leader_is_seen_with_a_newer_epoch(kafka_three: Cluster, topic_name: str) -> None:
    topic = kafka_three.create_topic(topic_name, 1)
    with MetadataClient(kafka_three.bootstrap) as client:
        client.metadata.want(topic)
        client.until(lambda: client.metadata.topic(topic) is not None)
        before = client.metadata.cluster.partition(topic, 0)
        assert before is not None
        target = next(node for node in before.replicas if node != before.leader)
        kafka_three.move_leaders(topic, {0: target})
        client.changes.clear()
        client.metadata.refresh()

        def moved() -> bool:
            after = client.metadata.cluster.partition(topic, 0)
            assert after is not None
            return after.leader == target and after.leader_epoch > before.leader_epoch

        client.until(moved)
        assert any((topic, 0) in change.leaders for change in client.changes)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_the_broker_that_is_asked_may_die_or_freeze_and_another_is_asked(
    kafka_three: Cluster, topic_name: str, how: str
) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, 3)
    with MetadataClient(cluster.bootstrap) as client:
        client.metadata.want(topic)
        client.until(lambda: client.metadata.topic(topic) is not None and client.metadata.connected_to is not None)
        asked = client.metadata.connected_to
        assert asked is not None
        node = cluster.nodes[asked.node]
        try:
            if how == "killed":
                node.kill()
            else:
                node.freeze()
            client.metadata.refresh()
            # A new leader for what it led is known within the time a frozen one is given up in, and an election takes.
            client.until(
                lambda: (
                    asked.node
                    not in {part.leader for part in client.metadata.cluster.topics[topic].partitions.values()}
                ),
                seconds=60,
            )
        finally:
            if how == "frozen":
                node.thaw()
            else:
                cluster.restart(asked.node)
