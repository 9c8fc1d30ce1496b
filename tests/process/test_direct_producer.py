"""The direct producer with its real thread and sockets, against the embedded broker."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from penstock.api.errors import ClosedError, MetadataTimeoutError, OutcomeUnknownError
from penstock.api.interceptors import Interceptor
from penstock.api.metadata import RecordMetadata
from penstock.api.records import Headers
from penstock.producer import DirectProducer

from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic

pytestmark = pytest.mark.process
ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_S: Final = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    return cluster.create_topic(request.node.name[:60], 4)


def test_threads_share_a_producer_and_every_partition_keeps_each_threads_order(
    cluster: EmbeddedCluster, topic: str
) -> None:
    many, threads = 2000, 4
    places: list[list[tuple[int, int]]] = [[] for _ in range(threads)]
    with DirectProducer(bootstrap_servers=cluster.bootstrap, linger_ms=1) as producer:

        def work(name: int) -> None:
            futures = [producer.send(topic, b"%d:%d" % (name, i), b"%d" % (i % 7)) for i in range(many)]
            places[name] = [(m.partition, m.offset) for m in (future.result(PATIENCE_S) for future in futures)]

        workers = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert producer.held_bytes == 0
    found = {(each.partition, each.offset): each.value for each in read_topic(cluster, topic)}
    assert len(found) == many * threads
    for name, told in enumerate(places):
        assert [found[place] for place in told] == [b"%d:%d" % (name, i) for i in range(many)]
        for partition in range(4):
            offsets = [offset for index, offset in told if index == partition]
            assert offsets == sorted(offsets)


@pytest.mark.fault("K22")
def test_columns_come_back_with_places_where_a_reader_finds_them(cluster: EmbeddedCluster, topic: str) -> None:
    values: list[bytes | None] = [None if i % 10 == 0 else b"v%d" % i for i in range(5000)]
    keys = [b"k%d" % (i % 100) for i in range(5000)]
    start = time.time_ns() // 1_000_000 - 5000
    with DirectProducer(bootstrap_servers=cluster.bootstrap) as producer:
        done = producer.send_many(
            topic,
            values,
            keys,
            headers=[[("i", b"%d" % i)] for i in range(5000)],
            timestamps_ms=[start + i for i in range(5000)],
        ).result(PATIENCE_S)
    found = {(each.partition, each.offset): each for each in read_topic(cluster, topic)}
    assert done.count == len(found) == 5000
    assert done.partitions is not None
    following = {run.partition: iter([]) for run in done.runs}
    places = {
        partition: [run.offset + i for run in done.runs if run.partition == partition for i in range(run.count)]
        for partition in following
    }
    for i, partition in enumerate(done.partitions):
        each = found[partition, places[partition].pop(0)]
        assert (each.value, each.key, each.timestamp_ms) == (values[i], keys[i], start + i)
        assert list(each.headers) == [("i", b"%d" % i)]


@pytest.mark.fault("K5", "K18")
def test_memory_is_bounded_and_senders_wait_for_it(cluster: EmbeddedCluster, topic: str) -> None:
    limit = 256 << 10
    highest = 0
    with DirectProducer(bootstrap_servers=cluster.bootstrap, buffer_memory=limit) as producer:
        futures = []
        for _ in range(5000):
            futures.append(producer.send(topic, bytes(1000)))
            highest = max(highest, producer.held_bytes)
        assert [future.exception(PATIENCE_S) for future in futures if future.exception(PATIENCE_S) is not None] == []
    assert limit // 2 < highest <= limit


def test_callbacks_run_on_the_senders_thread_and_may_send_and_close(cluster: EmbeddedCluster, topic: str) -> None:
    told: list[int] = []
    ended = threading.Event()
    producer = DirectProducer(bootstrap_servers=cluster.bootstrap)

    def again(metadata: object, error: object) -> None:
        assert metadata is not None, error
        told.append(threading.get_ident())
        if len(told) < 3:
            _ = producer.send(topic, b"again", on_ack=again)
        else:
            producer.close()
            ended.set()

    _ = producer.send(topic, b"first", on_ack=again)
    assert ended.wait(PATIENCE_S)
    assert len(set(told)) == 1
    assert told[0] != threading.get_ident()
    with pytest.raises(ClosedError):
        _ = producer.send(topic, b"late")


def test_a_topic_that_is_not_there_fails_after_max_block_and_a_close_does_not_wait_for_it(
    cluster: EmbeddedCluster,
) -> None:
    with DirectProducer(bootstrap_servers=cluster.bootstrap, max_block_ms=300) as producer:
        error = producer.send("nowhere", b"value").exception(0)
        assert isinstance(error, MetadataTimeoutError)
        assert error.cause == "UNKNOWN_TOPIC_OR_PARTITION"


def test_without_brokers_a_close_with_a_limit_ends_in_time_and_tells_that_nothing_was_sent() -> None:
    producer = DirectProducer(bootstrap_servers="127.0.0.1:1", max_block_ms=200)
    assert isinstance(producer.send("events", b"value").exception(0), MetadataTimeoutError)
    producer.close(1)
    producer.close()


@pytest.mark.fault("K19")
def test_a_child_has_a_producer_of_its_own_and_the_parents_goes_on(cluster: EmbeddedCluster, topic: str) -> None:
    producer = DirectProducer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
    assert len(producer.partitions_for(topic)) == 4
    open_one = producer.send(topic, b"the parent's", b"key")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert isinstance(open_one.exception(0), OutcomeUnknownError)
            future = producer.send(topic, b"the child's", b"key")
            producer.close(PATIENCE_S)
            _ = os.write(writing, b"%d" % future.result(0).partition)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    partition = int(os.read(reading, 10))
    os.close(reading)
    os.close(writing)
    producer.close(PATIENCE_S)
    assert open_one.result(0).partition == partition
    assert {each.value for each in read_topic(cluster, topic)} == {b"the parent's", b"the child's"}


def test_a_producer_nobody_holds_ends_by_itself_and_its_descriptors_go(cluster: EmbeddedCluster, topic: str) -> None:
    before = threading.active_count()
    producer = DirectProducer(bootstrap_servers=cluster.bootstrap)
    future = producer.send(topic, b"value")
    (sender,) = [thread for thread in threading.enumerate() if thread.name == "penstock-sender"]
    del producer
    _ = gc.collect()
    assert future.result(PATIENCE_S).offset >= 0
    sender.join(PATIENCE_S)
    assert threading.active_count() == before


def test_what_was_sent_arrives_though_the_program_ends_without_a_close(cluster: EmbeddedCluster, topic: str) -> None:
    program = (
        "from penstock.producer import DirectProducer\n"
        f"producer = DirectProducer(bootstrap_servers={cluster.bootstrap!r}, linger_ms=20000)\n"
        f"producer.send({topic!r}, b'at the end')\n"
    )
    _ = subprocess.run([sys.executable, "-c", program], check=True, timeout=180, cwd=ROOT)
    assert [each.value for each in read_topic(cluster, topic)] == [b"at the end"]


def test_importing_the_producers_parts_brings_no_direct_producer() -> None:
    program = "import penstock.producer, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=180)
    assert "penstock.producer.direct.producer" not in done.stdout.split()
    assert "kafka" not in done.stdout.split()


def test_callbacks_and_interceptors_that_exit_keep_nobody_else_from_being_told(
    cluster: EmbeddedCluster, topic: str
) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(3)

    class Leaving(Interceptor):
        def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
            leave()

    class Watching(Interceptor):
        def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
            told.append(metadata.offset)

    for interceptors in ([], [Leaving(), Watching()]):
        told: list[int] = []
        with DirectProducer(bootstrap_servers=cluster.bootstrap, linger_ms=100, interceptors=interceptors) as producer:
            futures = [producer.send(topic, b"v", partition=0, on_ack=leave) for _ in range(3)]
            futures[1].add_done_callback(leave)
            offsets = [future.result(PATIENCE_S).offset for future in futures]
            # The thread goes on.
            assert producer.send(topic, b"w", partition=0).result(PATIENCE_S).offset == offsets[-1] + 1
        assert told == ([*offsets, offsets[-1] + 1] if interceptors else [])
