"""The direct producer and real Kafka: every codec at several levels, read back by Kafka's own console consumer."""

from typing import Final

import pytest
from penstock.producer import DirectProducer

from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.readers import read_topic_by_java

PARTITIONS: Final = 3
SETTINGS: Final[tuple[dict[str, object], ...]] = (
    {"compression.type": "none"},
    {"compression.type": "gzip"},
    {"compression.type": "gzip", "compression.gzip.level": 9},
    {"compression.type": "snappy"},
    {"compression.type": "lz4"},
    {"compression.type": "lz4", "compression.lz4.level": 12},
    {"compression.type": "zstd"},
    {"compression.type": "zstd", "compression.zstd.level": -5},
    {"compression.type": "zstd", "compression.zstd.level": 19},
    {"enable.idempotence": "false", "acks": "1", "compression.type": "lz4"},
)


@pytest.mark.timeout(600)
def test_records_of_every_codec_and_level_are_where_the_futures_say(kafka_one: Cluster, topic_name: str) -> None:
    assert isinstance(kafka_one, OwnCluster)
    for number, settings in enumerate(SETTINGS):
        topic = kafka_one.create_topic(f"{topic_name}-{number}", PARTITIONS)
        with DirectProducer({"bootstrap.servers": kafka_one.bootstrap, **settings}, linger_ms=2) as producer:
            single = [
                producer.send(
                    topic, b"value %d" % i, b"key %d" % (i % 50), headers=[("n", b"%d" % i)], timestamp_ms=i + 1
                )
                for i in range(500)
            ]
            many = producer.send_many(
                topic, [b"column %d" % i for i in range(500)], [b"key %d" % i for i in range(500)]
            )
            told = [future.result(60) for future in single]
            assert many.result(60).count == 500
        found = {
            (one.partition, one.offset): one for one in read_topic_by_java(kafka_one, topic, version=kafka_one.version)
        }
        assert len(found) == 1000, settings
        for i, place in enumerate(told):
            one = found[place.partition, place.offset]
            assert (one.value, one.key) == (f"value {i}", f"key {i % 50}"), settings
            assert (one.headers, one.timestamp_ms) == (f"n:{i}", i + 1), settings
        assert {one.value for one in found.values()} >= {f"column {i}" for i in range(500)}
