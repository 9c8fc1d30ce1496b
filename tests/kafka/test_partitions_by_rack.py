"""Records without a key go to leaders in the own rack, as brokers name it."""

from collections.abc import Callable, Sequence

import pytest
from penstock.client import Producer
from penstock.producer import DirectProducer

from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster
from tests.harness.kafka_node import rack_of
from tests.harness.readers import read_topic

from .conftest import own

PARTITIONS = 6
OURS = 2
"""The node in our rack."""
BATCH_BYTES = 1024
SETTINGS: dict[str, str | int | bool] = {
    "partitioner.rack.aware": True,
    "client.rack": rack_of(OURS),
    "batch.size": BATCH_BYTES,
}
VALUES = [bytes([number]) * 3 * BATCH_BYTES for number in range(60)]


def through_daemon(cluster: Cluster, topic: str, values: Sequence[bytes]) -> None:
    with Daemon(cluster.bootstrap, kafka=SETTINGS) as daemon:
        daemon.start()
        with Producer(daemon.socket_path) as producer:
            for future in [producer.send_many(topic, [value]) for value in values]:
                _ = future.result(60)


def through_direct_producer(cluster: Cluster, topic: str, values: Sequence[bytes]) -> None:
    with DirectProducer({"bootstrap.servers": cluster.bootstrap, **SETTINGS}) as producer:
        for future in [producer.send(topic, value) for value in values]:
            _ = future.result(60)


@pytest.mark.parametrize("send", [through_daemon, through_direct_producer], ids=["daemon", "direct"])
def test_keyless_records_stay_in_the_rack(
    kafka_three: Cluster, topic_name: str, send: Callable[[Cluster, str, Sequence[bytes]], None]
) -> None:
    cluster = own(kafka_three)
    topic = cluster.create_topic(topic_name, PARTITIONS)
    # Said, not left to the cluster: a node that came back a moment ago leads nothing of a new topic.
    nodes = sorted(cluster.nodes)
    leaders = {partition: nodes[partition % len(nodes)] for partition in range(PARTITIONS)}
    cluster.move_leaders(topic, leaders)
    cluster.wait_told_by_all(topic, leaders)
    near = {partition for partition, leader in leaders.items() if leader == OURS}
    send(cluster, topic, VALUES)
    found = list(read_topic(cluster, topic))
    assert sorted(each.value or b"" for each in found) == VALUES
    assert {each.partition for each in found} == near
