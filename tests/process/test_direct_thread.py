"""The sender thread of the direct producer against Penstock's own broker, with a front that only seals chunks."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from penstock.config.direct import direct_settings
from penstock.producer.accumulator.chunk_store import ChunkStore, SealedChunk
from penstock.producer.delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind, DeliveryOutcome, Failed
from penstock.producer.direct.sender_thread import SenderThread
from penstock.producer.metadata.cluster import Cluster
from penstock.producer.telemetry.metrics import ProducerMetrics
from penstock.runtime.clock import monotonic

from tests.fakes.segments import Row, slice_bytes
from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic

WAIT_S = 60.0


class SealingFront:
    """Every chunk it is given is due at once."""

    def __init__(self) -> None:
        self.arena = ChunkStore(1 << 14, 1 << 20)
        self.changed = threading.Condition()
        self.outcomes: list[DeliveryOutcome] = []
        self.cluster = Cluster()
        self.over = False
        self.failure: DeliveryFailure | None = None
        self._due: deque[SealedChunk] = deque()
        self._next: dict[tuple[str, int], int] = {}

    @property
    def flushing(self) -> bool:
        return False

    @property
    def nodes_under_pressure(self) -> frozenset[int]:
        return frozenset()

    def put(self, topic: str, index: int, values: Sequence[bytes]) -> None:
        first = self._next.get((topic, index), 0)
        self._next[topic, index] = first + len(values)
        now_ms = time.time_ns() // 1_000_000
        data = bytearray(slice_bytes(topic, index, first, [Row(value) for value in values], wall_ms=now_ms))
        segment = self.arena.put(data, len(data))
        created_ms = int(time.monotonic() * 1000)
        self._due.append(SealedChunk(topic, index, segment, len(data), first, len(values), created_ms, now_ms))

    def drain(self, now: float, *, all_chunks: bool) -> list[SealedChunk]:
        taken: list[SealedChunk] = []
        while self._due:
            taken.append(self._due.popleft())
        return taken

    def next_deadline(self, now: float) -> float | None:
        return None

    def settle(self, outcomes: Sequence[DeliveryOutcome]) -> None:
        with self.changed:
            self.outcomes += outcomes
            self.changed.notify_all()

    def update_partition_load(self, waited_s: Callable[[int], float]) -> None:
        pass  # it chooses no partitions

    def brokers_lost(self, reason: str, *, refused: bool) -> None:
        pass  # nobody waits for metadata here

    def cluster_changed(self, cluster: Cluster) -> None:
        with self.changed:
            self.cluster = cluster
            self.changed.notify_all()

    def sender_ended(self, failure: DeliveryFailure | None) -> None:
        with self.changed:
            self.over, self.failure = True, failure
            self.changed.notify_all()

    def wait_for(self, count: int) -> list[DeliveryOutcome]:
        """Until so many records have their outcome."""
        with self.changed:
            done = self.changed.wait_for(lambda: sum(one.count for one in self.outcomes) >= count, WAIT_S)
        assert done, self.outcomes
        return self.outcomes


@contextmanager
def started(
    cluster: EmbeddedCluster, settings: Mapping[str, object] | None = None
) -> Iterator[tuple[SealingFront, SenderThread]]:
    front = SealingFront()
    given = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **(settings or {})}
    checked = direct_settings(given)
    thread = SenderThread(checked, front, front.arena, ProducerMetrics(checked, None, now=monotonic()))
    thread.start()
    try:
        yield front, thread
    finally:
        thread.close(0)
        assert thread.join(WAIT_S)


def values_of(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [found.value for found in read_topic(cluster, topic)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as nodes:
        yield nodes


def test_records_go_to_their_leaders_and_come_back_with_offsets(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("joined", 4)
    with started(cluster) as (front, thread):
        thread.want_topic(topic)
        for index in range(4):
            for part in range(50):
                front.put(topic, index, [f"{index}-{part}-{n}".encode() for n in range(20)])
        thread.wake()
        outcomes = front.wait_for(4000)
        assert all(isinstance(one, Delivered) for one in outcomes)
        for index in range(4):
            told = [one for one in outcomes if thread.topic_of(one.partition) == (topic, index)]
            assert [one.first for one in told] == [sum(prior.count for prior in told[:n]) for n in range(len(told))]
            assert all(isinstance(one, Delivered) and one.base_offset == one.first for one in told)
        thread.close(None)
        assert thread.join(WAIT_S)
        assert front.over
        assert front.failure is None


@pytest.mark.fault("K15")
def test_records_outlive_a_broker_that_is_killed_and_are_in_the_log_once() -> None:
    with EmbeddedCluster(1, folders=True) as alone:
        topic = alone.create_topic("killed", 1)
        with started(alone, {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20}) as (front, thread):
            thread.want_topic(topic)
            front.put(topic, 0, [b"first"])
            thread.wake()
            front.wait_for(1)
            for part in range(100):
                front.put(topic, 0, [f"{part}".encode()])
                thread.wake()
                if part == 50:
                    alone.nodes[0].kill()
            alone.nodes[0].start()
            outcomes = front.wait_for(101)
            assert all(isinstance(one, Delivered) for one in outcomes)
        assert values_of(alone, topic) == [b"first", *(f"{part}".encode() for part in range(100))]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_without_idempotence_records_reach_the_log_in_order(cluster: EmbeddedCluster, acks: str) -> None:
    topic = cluster.create_topic(f"plain-{acks}", 1)
    with started(cluster, {"enable.idempotence": False, "acks": acks}) as (front, thread):
        thread.want_topic(topic)
        for part in range(50):
            front.put(topic, 0, [f"{part}".encode()])
        thread.wake()
        outcomes = front.wait_for(50)
        assert all(isinstance(one, Delivered) for one in outcomes)
        assert {one.base_offset >= 0 for one in outcomes if isinstance(one, Delivered)} == {acks != "0"}
        thread.close(None)
        assert thread.join(WAIT_S)
    assert values_of(cluster, topic) == [f"{part}".encode() for part in range(50)]


def test_records_for_a_topic_that_does_not_exist_expire_and_say_why(cluster: EmbeddedCluster) -> None:
    given = {"delivery.timeout.ms": 300, "request.timeout.ms": 300}
    with started(cluster, given) as (front, thread):
        thread.want_topic("never-made")
        front.put("never-made", 0, [b"a"])
        thread.wake()
        (outcome,) = front.wait_for(1)
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind is DeliveryFailureKind.EXPIRED
        assert "no leader is known" in outcome.failure.message


def test_records_that_expire_while_a_broker_cannot_be_reached_say_why_it_cannot() -> None:
    with EmbeddedCluster(1) as alone:
        topic = alone.create_topic("away", 1)
        with started(alone, {"delivery.timeout.ms": 1_000, "request.timeout.ms": 1_000}) as (front, thread):
            thread.want_topic(topic)
            front.put(topic, 0, [b"before"])
            thread.wake()
            front.wait_for(1)
            alone.nodes[0].kill()
            front.put(topic, 0, [b"after"])
            thread.wake()
            outcome = front.wait_for(2)[-1]
            assert isinstance(outcome, Failed)
            assert "no connection to node 0 (127.0.0.1:" in outcome.failure.message
            assert "Connection refused" in outcome.failure.message


def test_a_forced_close_fails_what_is_left_and_ends_the_thread(cluster: EmbeddedCluster) -> None:
    with started(cluster) as (front, thread):
        front.put("never-made", 0, [b"a", b"b"])
        thread.close(0)
        assert thread.join(WAIT_S)
        assert front.over
        (outcome,) = front.wait_for(2)
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind is DeliveryFailureKind.CLOSED


def test_a_forked_child_that_forgets_the_thread_takes_nothing_from_its_parent(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("forked", 1)
    with started(cluster) as (front, thread):
        thread.want_topic(topic)
        front.put(topic, 0, [b"before"])
        thread.wake()
        front.wait_for(1)
        child = os.fork()
        if not child:
            thread.after_fork()
            os._exit(0 if not thread.is_current and thread.join(0) else 1)
        assert os.waitpid(child, 0)[1] == 0
        front.put(topic, 0, [b"after"])
        thread.wake()
        assert all(isinstance(one, Delivered) for one in front.wait_for(2))
