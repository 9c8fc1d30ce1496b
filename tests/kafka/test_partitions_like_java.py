"""A key goes to the partition that Kafka's own producer chooses for it, in daemon and direct producer."""

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from penstock.producer import DirectProducer

from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.kafka_node import VERSIONS, kafka_libs
from tests.harness.raw_session import RawSession
from tests.harness.readers import read_topic

SOURCE: Final = Path(__file__).parents[1] / "java/SendKeys.java"
PARTITIONS: Final = 48
KEYS: Final = 1_000
ODD: Final = (
    b"",
    b"\x00",
    b"\x00\x00\x00\x00",
    b"\xff" * 4,
    b"21",
    b"exactly-21-bytes-long",
    "größe-€-鍵-🗝".encode(),
    bytes(range(256)),
    b"k" * 100 * 1024,
)


def keys() -> list[bytes]:
    """A thousand different ones, the same every time."""
    chance = random.Random(794)
    found = dict.fromkeys(ODD)
    while len(found) < KEYS:
        found[chance.randbytes(chance.randrange(1, 64))] = None
    return list(found)


def chosen_by_java(cluster: Cluster, topic: str, given: Sequence[bytes]) -> list[int]:
    """Send them by the KafkaProducer of the cluster's version."""
    version = cluster.version if isinstance(cluster, OwnCluster) else VERSIONS[0]
    jars = str(kafka_libs(version) / "*")
    told = subprocess.run(
        ["java", "-cp", jars, str(SOURCE), cluster.bootstrap, topic],
        input=b"".join(struct.pack(">I", len(key)) + key for key in given),
        capture_output=True,
        check=True,
        timeout=240,
    )
    return [int(line) for line in told.stdout.split()]


def chosen_by_daemon(cluster: Cluster, topic: str, given: Sequence[bytes]) -> list[int]:
    with Daemon(cluster.bootstrap) as daemon:
        daemon.start()
        with RawSession(daemon.socket_path) as session:
            answer = session.acked(session.send(topic, [b"ours"] * len(given), keys=list(given)))
    assert answer.partitions is not None
    return answer.partitions


def chosen_by_direct_producer(cluster: Cluster, topic: str, given: Sequence[bytes]) -> list[int]:
    with DirectProducer({"bootstrap.servers": cluster.bootstrap}) as producer:
        futures = [producer.send(topic, b"ours", key) for key in given]
        return [future.result(60).partition for future in futures]


@pytest.mark.parametrize("chosen_by_us", [chosen_by_daemon, chosen_by_direct_producer], ids=["daemon", "direct"])
def test_a_thousand_keys_go_where_kafkas_producer_puts_them(
    kafka_one: Cluster, topic_name: str, chosen_by_us: Callable[[Cluster, str, Sequence[bytes]], list[int]]
) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    given = keys()
    java = chosen_by_java(kafka_one, topic, given)
    assert len(java) == KEYS
    assert len(set(java)) == PARTITIONS
    assert chosen_by_us(kafka_one, topic, given) == java
    where: dict[bytes | None, set[int]] = {}
    writers: dict[bytes | None, list[bytes | None]] = {}
    for each in read_topic(kafka_one, topic):
        where.setdefault(each.key, set()).add(each.partition)
        writers.setdefault(each.key, []).append(each.value)
    assert where == {key: {partition} for key, partition in zip(given, java, strict=True)}
    assert all(sorted(values, key=str) == [b"java", b"ours"] for values in writers.values())
