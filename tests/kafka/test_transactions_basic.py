"""Transactions of the direct producer on real brokers: 3.9.2 (version 1) and 4.3.1 (both versions), read by Kafka's own consumer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from penstock.api.errors import (
    CommitFailedError,
    PenstockError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionStateError,
)
from penstock.producer import DirectProducer
from penstock.producer.direct.transactions_api import ConsumerGroup

from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.transaction_runs import read_committed_by_java, set_transaction_version

from .conftest import own

PATIENCE_S: Final = 30.0
BOTH: Final = pytest.mark.parametrize("level", [1, 2], ids=["v1", "v2"])
READ_S: Final = 60.0


@contextmanager
def finalised(cluster: OwnCluster, level: int) -> Iterator[None]:
    """The cluster has this version of transactions meanwhile; Kafka 3.9 knows the first only."""
    if cluster.version.startswith("3."):
        if level > 1:
            pytest.skip(f"Kafka {cluster.version} has no version {level}")
        yield
        return
    set_transaction_version(cluster, level)
    try:
        yield
    finally:
        set_transaction_version(cluster, 2)


def made(cluster: Cluster, transactional_id: str, **settings: object) -> DirectProducer:
    given: dict[str, object] = {"linger_ms": 5, "max_block_ms": 30_000, "transactional_id": transactional_id} | settings
    return DirectProducer(bootstrap_servers=cluster.bootstrap, **given)


def seen(cluster: Cluster, topic: str) -> list[str]:
    return sorted(value for _, value in read_committed_by_java(cluster, topic, seconds=READ_S))


def committed(cluster: Cluster, topic: str, group: str) -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 2})
    try:
        found = reader.committed([TopicPartition(topic, i) for i in range(3)], timeout=15)
    finally:
        reader.close()
    return {one.partition: one.offset for one in found if one.offset >= 0}


@BOTH
def test_commits_aborts_offsets_and_fencing_are_what_kafkas_own_consumer_sees(
    kafka_one: Cluster, topic_name: str, level: int
) -> None:
    cluster = own(kafka_one)
    topic = cluster.create_topic(topic_name, 3)
    expected: list[str] = []
    with finalised(cluster, level):
        first = made(cluster, topic)
        first.init_transactions()
        for number in range(20):
            first.begin_transaction()
            records = [f"{number:02d}-{i}" for i in range(7)]
            futures = [first.send(topic, value.encode(), partition=i % 3) for i, value in enumerate(records)]
            if number % 4 == 3:
                if number % 8 == 3:
                    _ = futures[0].result(PATIENCE_S)
                first.abort_transaction()
                assert all(isinstance(one.exception(0), TransactionAbortedError | None) for one in futures)
            else:
                first.send_offsets_to_transaction({(topic, 0): number, (topic, 2): 2 * number}, f"g-{topic}")
                first.commit_transaction()
                assert [one.exception(0) for one in futures] == [None] * len(records)
                expected += records
        assert committed(cluster, topic, f"g-{topic}") == {0: 18, 2: 36}
        first.begin_transaction()
        _ = first.send(topic, b"left open").result(PATIENCE_S)
        with made(cluster, topic) as second:
            second.init_transactions()
            second.begin_transaction()
            _ = second.send(topic, b"the second's")
            second.commit_transaction()
        expected.append("the second's")
        with pytest.raises((ProducerFencedError, TransactionAbortableError)):
            first.commit_transaction()
        with pytest.raises((ProducerFencedError, TransactionStateError)):
            first.abort_transaction()
        with pytest.raises(ProducerFencedError):
            first.begin_transaction()
        first.close()
        assert seen(cluster, topic) == sorted(expected)


@BOTH
def test_offsets_of_a_member_that_was_replaced_are_refused_and_the_next_transaction_works(
    kafka_one: Cluster, topic_name: str, level: int
) -> None:
    cluster = own(kafka_one)
    topic = cluster.create_topic(topic_name, 1)

    class Gone:
        group_id = f"g-{topic}"
        generation_id = 3
        member_id = "long-gone"
        group_instance_id = None

    gone: ConsumerGroup = Gone()
    with finalised(cluster, level), made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"never")
        with pytest.raises(CommitFailedError):
            producer.send_offsets_to_transaction({(topic, 0): 5}, gone)
        with pytest.raises(PenstockError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        _ = producer.send(topic, b"next")
        producer.commit_transaction()
        assert seen(cluster, topic) == ["next"]


def test_the_version_of_transactions_may_change_under_a_producer(kafka_one: Cluster, topic_name: str) -> None:
    cluster = own(kafka_one)
    if cluster.version.startswith("3."):
        pytest.skip(f"Kafka {cluster.version} has one version")
    topic = cluster.create_topic(topic_name, 2)
    expected: list[str] = []
    for level in (1, 2):
        with finalised(cluster, level), made(cluster, topic) as producer:
            producer.init_transactions()
            for number in range(3):
                producer.begin_transaction()
                value = f"{level}-{number}"
                _ = producer.send(topic, value.encode())
                producer.commit_transaction()
                expected.append(value)
    assert seen(cluster, topic) == sorted(expected)
