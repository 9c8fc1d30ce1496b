"""Every codec at several levels through the daemon, read back by Kafka's own console consumer."""

from typing import Final

import pytest
from penstock.client import Producer

from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.readers import read_topic_by_java

PARTITIONS: Final = 3
RECORDS: Final = 500
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS: Final[tuple[dict[str, int], ...]] = (
    {},
    {"compression.gzip.level": 1, "compression.lz4.level": 1, "compression.zstd.level": -5},
    {"compression.gzip.level": 9, "compression.lz4.level": 12, "compression.zstd.level": 19},
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("levels", LEVELS, ids=["defaults", "least", "most"])
def test_records_of_every_codec_are_read_by_kafkas_consumer(
    kafka_one: Cluster, topic_name: str, levels: dict[str, int]
) -> None:
    assert isinstance(kafka_one, OwnCluster)
    names = {codec: f"{topic_name}-{codec}" for codec in CODECS}
    tables = {f'topics."{name}"': {"compression.type": codec} for codec, name in names.items()}
    for name in names.values():
        _ = kafka_one.create_topic(name, PARTITIONS)
    with Daemon(
        kafka_one.bootstrap, kafka={f'"{name}"': level for name, level in levels.items()}, sections=tables
    ) as daemon:
        daemon.start()
        with Producer(daemon.socket_path, client_id="codecs") as producer:
            told = {
                codec: [
                    producer.send(
                        name, b"value %d" % i, b"key %d" % (i % 50), headers=[("n", b"%d" % i)], timestamp_ms=i + 1
                    )
                    for i in range(RECORDS)
                ]
                for codec, name in names.items()
            }
            for codec, futures in told.items():
                places = [future.result(60) for future in futures]
                found = {
                    (one.partition, one.offset): one
                    for one in read_topic_by_java(kafka_one, names[codec], version=kafka_one.version)
                }
                assert len(found) == RECORDS, codec
                for i, place in enumerate(places):
                    one = found[place.partition, place.offset]
                    assert (one.value, one.key) == (f"value {i}", f"key {i % 50}"), codec
                    assert (one.headers, one.timestamp_ms) == (f"n:{i}", i + 1), codec
        assert daemon.stop() == 0
