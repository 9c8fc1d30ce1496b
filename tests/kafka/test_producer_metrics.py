"""The direct producer's metrics against what real brokers have in their logs."""

import os
from typing import Final

import pytest
from penstock.api.metrics import MetricName
from penstock.producer import DirectProducer

from tests.harness.kafka_cluster import Cluster, OwnCluster

WAIT_S: Final = 60.0
RECORDS: Final = 3_000
WARM: Final = 4
"""One record alone on each partition."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_bytes_records_and_batches_are_those_of_the_brokers_logs(
    kafka_one: Cluster, topic_name: str, codec: str
) -> None:
    if not isinstance(kafka_one, OwnCluster):
        pytest.skip("the logs of others cannot be looked at")
    topic = kafka_one.create_topic(topic_name, WARM)
    (node,) = kafka_one.nodes.values()

    def stored(index: int) -> int:
        return sum(path.stat().st_size for path in (node.data_folder / f"{topic}-{index}").glob("*.log"))

    given = {"bootstrap.servers": kafka_one.bootstrap, "client.id": "measured", "compression.type": codec}
    with DirectProducer({**given, "metrics.recording.level": "DEBUG", "enable.metrics.push": False}) as producer:
        # A topic that was just made may be refused at first: what is measured begins afterwards.
        for index in range(WARM):
            _ = producer.send(topic, b"warm", partition=index).result(WAIT_S)
        before, sizes = producer.metrics(), [stored(index) for index in range(WARM)]
        futures = [producer.send(topic, os.urandom(20) * 10, partition=number % WARM) for number in range(RECORDS)]
        producer.flush(WAIT_S)
        assert [future.exception(WAIT_S) for future in futures] == [None] * RECORDS
        told = producer.metrics()
    grown = [stored(index) - size for index, size in enumerate(sizes)]

    def more(name: str, group: str = "producer-metrics", **tags: str) -> float:
        key = MetricName(group, name, (("client-id", "measured"), *tags.items()))
        return told[key] - before[key]

    of_topic = "producer-topic-metrics"
    assert more("record-retry-total") == more("record-error-total") == 0
    assert more("record-send-total") == more("record-send-total", of_topic, topic=topic) == RECORDS
    assert more("byte-total", of_topic, topic=topic) == sum(grown)
    for index, nbytes in enumerate(grown):
        of = {"topic": topic, "partition": str(index)}
        assert more("byte-total", "penstock-producer-partition-metrics", **of) == nbytes
        assert more("record-send-total", "penstock-producer-partition-metrics", **of) == RECORDS / WARM
    ratio = told[MetricName("producer-metrics", "compression-rate-avg", (("client-id", "measured"),))]
    assert ratio == 1 if codec == "none" else 0.1 < ratio < 1.0
    assert more("request-total") == more("response-total")
    assert more("outgoing-byte-total") > sum(grown)
    assert more("connection-creation-total") == more("connection-close-total") == 0
