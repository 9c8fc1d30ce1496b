"""Faults of other clients that the direct producer must not have, with its real thread and sockets against the embedded broker."""

import gc
import resource
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from penstock.api.errors import BrokerError, BufferExhaustedError, ExpiredMayBeWrittenError, PenstockError
from penstock.api.metadata import RecordMetadata
from penstock.producer import DirectProducer

from tests.fakes.holding_proxy import HoldingProxy
from tests.harness.embedded import BrokerProcess, EmbeddedCluster
from tests.harness.readers import read_topic

pytestmark = pytest.mark.process
WAIT_S: Final = 60.0
QUICK: Final = {
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "request.timeout.ms": 10_000,
    "delivery.timeout.ms": 60_000,
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2, folders=True) as running:
        yield running


def direct(cluster: EmbeddedCluster, **settings: object) -> DirectProducer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return DirectProducer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **QUICK, **given})


@contextmanager
def stopped(node: BrokerProcess) -> Iterator[None]:
    """It neither answers nor ends its connections."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)


def resident_bytes() -> int:
    """Memory of this process now. Not its highest mark so far, below which whatever earlier tests used could grow again unseen."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def values_of(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    return [one.value for one in read_topic(cluster, topic) if one.partition == partition]


@pytest.mark.fault("K1")
def test_a_producer_whose_retried_batch_expired_goes_on(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("silent", 1)
    leader = cluster.leader(topic, 0)
    with direct(cluster, delivery_timeout_ms=4000, request_timeout_ms=1000) as producer:
        _ = producer.send(topic, b"first").result(WAIT_S)
        with stopped(leader):
            lost = producer.send(topic, b"lost")
            assert isinstance(lost.exception(WAIT_S), ExpiredMayBeWrittenError)
        later = [producer.send(topic, b"%d" % number) for number in range(3)]
        offsets = [future.result(WAIT_S).offset for future in later]
    found = values_of(cluster, topic)
    assert [found[offset] for offset in offsets] == [b"0", b"1", b"2"]
    assert found in ([b"first", b"0", b"1", b"2"], [b"first", b"lost", b"0", b"1", b"2"])


@pytest.mark.fault("K2")
@pytest.mark.parametrize("error", ["MESSAGE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "INVALID_RECORD"])
def test_a_refused_record_harms_neither_its_partition_nor_other_topics(cluster: EmbeddedCluster, error: str) -> None:
    bad, good = cluster.create_topic("bad", 2), cluster.create_topic("good", 2)
    with direct(cluster) as producer:
        for topic in (bad, good):
            for partition in range(2):
                _ = producer.send(topic, b"before", partition=partition).result(WAIT_S)
        told = cluster.leader(bad, 0).command(op="fail_next", api=0, error=error, times=1, topic=bad, partition=0)
        assert told["ok"] is True
        refused = producer.send(bad, b"refused", partition=0)
        others = [
            producer.send(topic, b"%d" % number, partition=partition)
            for number in range(20)
            for topic, partition in ((bad, 1), (good, 0), (good, 1))
        ]
        failure = refused.exception(WAIT_S)
        assert isinstance(failure, BrokerError)
        assert failure.code == error
        others += [producer.send(bad, b"after", partition=0)]
        assert [future.exception(WAIT_S) for future in others] == [None] * 61
    assert values_of(cluster, bad) == [b"before", b"after"]


@pytest.mark.fault("K3")
def test_a_leader_that_is_gone_keeps_no_loop_busy_and_is_found_when_it_is_back(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("gone", 2)
    rounds: list[float] = []
    leaders = cluster.leaders(topic)
    lost, kept = (next(index for index, node in leaders.items() if node == wanted) for wanted in (1, 0))
    with direct(cluster) as producer:
        for partition in (lost, kept):
            _ = producer.send(topic, b"before", partition=partition).result(WAIT_S)
        sender = producer._thread._loop
        sender._loop.add_upkeep(rounds.append)
        cluster.nodes[1].kill()
        waiting = producer.send(topic, b"waiting", partition=lost)
        while not rounds or rounds[-1] < rounds[0] + 3.0:
            _ = producer.send(topic, b"other", partition=kept).result(WAIT_S)
            assert not producer._thread.join(0.1)
        assert len(rounds) < 100 * (rounds[-1] - rounds[0])
        assert not waiting.done()
        cluster.nodes[1].start()
        assert waiting.result(WAIT_S).partition == lost


@pytest.mark.fault("K4")
def test_five_requests_of_one_partition_are_on_the_wire_with_idempotence() -> None:
    with HoldingProxy() as wire, EmbeddedCluster(1, arguments=["--nodes", f"0@127.0.0.1:{wire.port}"]) as alone:
        wire.address = alone.nodes[0].address
        topic = alone.create_topic("distant", 1)
        given = {"bootstrap.servers": f"127.0.0.1:{wire.port}", "linger.ms": 0, "batch.size": 1}
        with DirectProducer(given) as producer:
            for _ in range(2):
                _ = producer.send(topic, b"first").result(WAIT_S)
            wire.hold(on=True)
            futures = [producer.send(topic, b"%d" % number) for number in range(20)]
            full = wire.wait_for(5, WAIT_S)
            count = len(wire.open)
            wire.hold(on=False)
            assert full
            assert count == 5
            offsets = [future.result(WAIT_S).offset for future in futures]
        assert offsets == list(range(2, 22))


@pytest.mark.fault("K5")
def test_with_a_broker_that_does_not_answer_memory_stays_inside_its_bound(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("stalled", 1)
    limit = 1 << 20
    with direct(cluster, buffer_memory=limit, max_block_ms=2, batch_size=16_384) as producer:
        assert len(producer.partitions_for(topic, WAIT_S)) == 1
        _ = producer.send(topic, b"first", partition=0).result(WAIT_S)
        with stopped(cluster.leader(topic, 0)):
            futures = [producer.send(topic, bytes(1000), partition=0) for _ in range(1500)]
            began = resident_bytes()
            refused = [producer.send(topic, bytes(1000), partition=0).exception(0) for _ in range(1000)]
            assert resident_bytes() - began < 4 << 20
            assert producer.held_bytes <= limit
            assert {type(error) for error in refused} == {BufferExhaustedError}
        outcomes = [future.exception(WAIT_S) for future in futures]
        taken = outcomes.count(None)
        assert limit // 4 < 1000 * taken < limit
        assert {type(error) for error in outcomes} == {type(None), BufferExhaustedError}
        assert producer.send(topic, bytes(1000), partition=0).exception(WAIT_S) is None
    assert len(values_of(cluster, topic)) == taken + 2


@pytest.mark.fault("K7")
def test_after_a_flush_every_future_tells_what_became_of_its_record(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("flushed", 4)
    with direct(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        for partition in range(4):
            _ = producer.send(topic, b"first", partition=partition)
        producer.flush(WAIT_S)
        told = cluster.leader(topic, 2).command(
            op="fail_next", api=0, error="TOPIC_AUTHORIZATION_FAILED", times=1, topic=topic, partition=2
        )
        assert told["ok"] is True
        futures = [producer.send(topic, b"%d" % number, partition=number % 4) for number in range(400)]
        producer.flush(WAIT_S)
        assert all(future.done() for future in futures)
        failed = [number for number, future in enumerate(futures) if future.exception(0) is not None]
    assert failed == list(range(2, 400, 4))
    found = [values_of(cluster, topic, partition) for partition in range(4)]
    for partition in (0, 1, 3):
        assert found[partition] == [b"first", *(b"%d" % number for number in range(partition, 400, 4))]
    assert found[2] == [b"first"], "what is said to have failed is not there"


@pytest.mark.fault("K14", "K16")
def test_sequences_that_a_broker_refuses_for_a_while_are_recovered_from_without_a_new_producer(
    cluster: EmbeddedCluster,
) -> None:
    topic = cluster.create_topic("outage", 2)
    with direct(cluster, delivery_timeout_ms=90_000) as producer:
        for partition in range(2):
            _ = producer.send(topic, b"first", partition=partition).result(WAIT_S)
        told = cluster.leader(topic, 0).command(
            op="fail_next", api=0, error="OUT_OF_ORDER_SEQUENCE_NUMBER", times=3, topic=topic, partition=0
        )
        assert told["ok"] is True
        futures = [producer.send(topic, b"%d" % number, partition=number % 2) for number in range(100)]
        assert [future.exception(90) for future in futures] == [None] * 100
    for partition in range(2):
        found = values_of(cluster, topic, partition)
        assert found == [b"first", *(b"%d" % number for number in range(partition, 100, 2))]


@pytest.mark.fault("K17")
def test_a_broker_that_takes_nothing_leaves_the_others_their_memory(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("slow", 2)
    leaders = cluster.leaders(topic)
    slow, well = (next(index for index, node in leaders.items() if node == wanted) for wanted in (1, 0))
    with direct(cluster, buffer_memory=1 << 20, max_block_ms=2_000, max_request_size=65_536) as producer:
        _ = producer.partitions_for(topic, WAIT_S)
        for partition in (slow, well):
            _ = producer.send(topic, b"first", partition=partition).result(WAIT_S)
        with stopped(cluster.nodes[1]):
            held = []
            while not (last := producer.send(topic, bytes(10_000), partition=slow)).done():
                held.append(last)
            assert isinstance(last.exception(0), BufferExhaustedError)
            passed = [producer.send(topic, bytes(10_000), partition=well) for _ in range(200)]
            assert [future.exception(WAIT_S) for future in passed] == [None] * 200
            assert not any(future.done() for future in held)
        assert [future.exception(WAIT_S) for future in held] == [None] * len(held)


@pytest.mark.fault("K18")
def test_who_never_asks_for_outcomes_is_slowed_down_and_not_refused(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("unpolled", 2)
    limit = 128 << 10
    with direct(cluster, buffer_memory=limit, batch_size=4096) as producer:
        for _ in range(40 * limit // 1000):
            _ = producer.send(topic, bytes(1000))
            assert producer.held_bytes <= limit
    assert len(list(read_topic(cluster, topic))) == 40 * limit // 1000


@pytest.mark.fault("K23")
def test_memory_does_not_grow_with_headers_and_callbacks(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("flat", 2)
    told = 0

    def count(metadata: RecordMetadata | None, error: PenstockError | None) -> None:
        nonlocal told
        told += metadata is not None

    with direct(cluster, linger_ms=5) as producer:

        def go_round() -> int:
            for number in range(5000):
                headers = [("trace", b"%d" % number), ("none", None)]
                _ = producer.send(topic, b"value", b"%d" % number, headers=headers, on_ack=count)
            _ = producer.send_many(topic, [b"v"] * 2000, headers=[[("h", b"%d" % n)] for n in range(2000)])
            producer.flush(WAIT_S)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            for _ in range(2):
                first = go_round()
            resident = resident_bytes()
            for _ in range(6):
                last = go_round()
        finally:
            tracemalloc.stop()
    assert told == 8 * 5000
    assert last - first < 512 * 1024, (
        "bytes, over 42,000 records: buffers that are kept for the next batches, nothing of each"
    )
    assert resident_bytes() - resident < 16 << 20
