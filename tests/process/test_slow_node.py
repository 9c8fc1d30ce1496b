"""Records without a key leave the partitions of a broker that has stopped, and come back to them when it goes on."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as NotDoneError

import pytest
from penstock.client import Future, Producer, RecordMetadata, WaitTimeoutError
from penstock.producer import DirectProducer

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.stack import Stack

pytestmark = pytest.mark.process
WAIT_S = 60.0
ROUND_S = 2.0
PARTITIONS = 6
TIMEOUT_MS = 300
BATCH_BYTES = 1024
VALUE = bytes(3 * BATCH_BYTES)
"""Worth a change of partition each."""
SETTINGS = {
    "batch.size": BATCH_BYTES,
    "linger.ms": 0,
    "partitioner.availability.timeout.ms": TIMEOUT_MS,
    "request.timeout.ms": 60_000,
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        yield found


def led_by(cluster: EmbeddedCluster, topic: str, node: int) -> set[int]:
    found = {partition for partition, leader in cluster.leaders(topic).items() if leader == node}
    assert 0 < len(found) < PARTITIONS
    return found


def sent(producer: Producer | DirectProducer, topic: str, count: int) -> list[Future[RecordMetadata]]:
    """Keyless records, each in a frame and a batch of its own."""
    return [producer.send(topic, VALUE) for _ in range(count)]


def places(futures: Sequence[Future[RecordMetadata]], seconds: float) -> list[int | None]:
    """Partitions of those that are delivered within this time, None for others."""
    found: list[int | None] = []
    for future in futures:
        try:
            found.append(future.result(seconds).partition)
        except (WaitTimeoutError, NotDoneError):
            found.append(None)
            seconds = 0.0
    return found


def leaves_the_stopped_node(producer: Producer | DirectProducer, cluster: EmbeddedCluster, topic: str) -> None:
    well = led_by(cluster, topic, 0)
    every = [producer.send(topic, VALUE, partition=partition) for partition in range(PARTITIONS)]
    assert sorted(place or 0 for place in places(every, WAIT_S)) == list(range(PARTITIONS))
    stopped = cluster.nodes[1].process
    stopped.send_signal(signal.SIGSTOP)
    try:

        def has_left() -> bool:
            every.extend(sent(producer, topic, 20))
            found = places(every[-20:], ROUND_S)
            return None not in found

        wait_until(has_left, seconds=WAIT_S, what="keyless records go elsewhere")
        futures = sent(producer, topic, 100)
        assert set(places(futures, WAIT_S)) == well
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert None not in places(every, WAIT_S), "what went to the stopped broker before arrives"

    def is_back() -> bool:
        return not well.issuperset(places(sent(producer, topic, 20), WAIT_S))

    wait_until(is_back, seconds=WAIT_S, what="keyless records go to the broker again")


@pytest.mark.fault("K17")
def test_through_the_daemon(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("slow", partitions=PARTITIONS)
    with (
        Stack(cluster.bootstrap, shards=2, kafka=SETTINGS) as stack,
        Producer(stack.socket_path, linger_ms=0, batch_bytes=1) as producer,
    ):
        leaves_the_stopped_node(producer, cluster, "slow")


@pytest.mark.fault("K17")
def test_through_the_direct_producer(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("slow", partitions=PARTITIONS)
    with DirectProducer({"bootstrap.servers": cluster.bootstrap, **SETTINGS}) as producer:
        leaves_the_stopped_node(producer, cluster, "slow")
