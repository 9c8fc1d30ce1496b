"""Calls of several threads about one transactional producer, and values that no request can carry."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pytest
from penstock.api.errors import (
    CommittedNotVisibleError,
    CommitTimeoutError,
    RefusedError,
    TransactionAbortableError,
    TransactionStateError,
)
from penstock.api.partitioning import Partitioner
from penstock.config.load import ConfigError
from penstock.producer import DirectProducer

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_committed

pytestmark = pytest.mark.process
PATIENCE_S: Final = 20.0
PRODUCE: Final = 0
SMALL: Final[dict[str, Any]] = {"buffer.memory": 40_000, "batch.size": 4_000, "max.request.size": 20_000}


class Group(NamedTuple):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, arguments=["--transaction-version", str(request.param)]) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:90]
    yield cluster.create_topic(name, 3)
    for op in ("clear", "free_markers"):
        _ = cluster.nodes[0].command(op=op)


def made(
    cluster: EmbeddedCluster, topic: str, partitioner: Partitioner | None = None, **settings: object
) -> DirectProducer:
    given: dict[str, object] = {"linger.ms": 0, "max.block.ms": 20_000, "transactional.id": topic} | settings
    producer = DirectProducer({"bootstrap.servers": cluster.bootstrap, **given}, partitioner=partitioner)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    return sorted(one.value or b"" for one in read_committed(cluster, topic))


@pytest.mark.parametrize("columns", [False, True], ids=["send", "send_many"])
def test_a_record_whose_transaction_ends_before_it_is_taken_is_in_none(
    cluster: EmbeddedCluster, topic: str, *, columns: bool
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> int:
        asked.set()
        assert go_on.wait(PATIENCE_S)
        return 0

    with made(cluster, topic, partitioner=slow) as producer, ThreadPoolExecutor(1) as other:
        _ = producer.send(topic, b"first", partition=0)
        late: Future[object]
        if columns:
            late = other.submit(producer.send_many, topic, [b"meant for the first"])
        else:
            late = other.submit(producer.send, topic, b"meant for the first")
        assert asked.wait(PATIENCE_S)
        producer.commit_transaction()
        producer.begin_transaction()
        go_on.set()
        with pytest.raises(TransactionStateError, match="has ended"):
            _ = late.result(PATIENCE_S)
        _ = producer.send(topic, b"second", partition=0)
        producer.commit_transaction()
    assert values(cluster, topic) == [b"first", b"second"]


def test_columns_that_were_taken_in_part_before_their_transaction_was_committed_say_which(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with (
        made(cluster, topic, **SMALL) as producer,
        ThreadPoolExecutor(1) as other,
    ):
        _ = producer.send(topic, b"", partition=0).result(PATIENCE_S)
        _ = cluster.nodes[0].command(op="delay_answer", api=PRODUCE, ms=700, times=2)
        records = [b"%03d" % i + bytes(1_000) for i in range(100)]
        sent = other.submit(producer.send_many, topic, records, partitions=0)
        _ = wait_until(lambda: producer.held_bytes > 20_000, seconds=PATIENCE_S, what="memory is full", every=0.01)
        producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(RefusedError) as told:
            _ = sent.result(PATIENCE_S).result(PATIENCE_S)
        (refused,) = told.value.refused
        assert refused.first > 0
        assert refused.first + refused.count == len(records)
        producer.commit_transaction()
    assert values(cluster, topic) == sorted([b"", *records[: refused.first]])


def test_a_commit_that_is_committed_when_the_producer_is_closed_is_told_as_such(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with ThreadPoolExecutor(1) as other:
        producer = made(cluster, topic)
        _ = producer.send(topic, b"kept").result(PATIENCE_S)
        _ = cluster.nodes[0].command(op="hold_markers")
        waiting = other.submit(producer.commit_transaction)
        manager = producer._sender._loop.transactions.manager  # type: ignore[union-attr]
        _ = wait_until(lambda: manager.awaiting_visibility, seconds=PATIENCE_S, what="it is committed")
        producer.close()
        with pytest.raises(CommittedNotVisibleError):
            waiting.result(PATIENCE_S)
    _ = cluster.nodes[0].command(op="free_markers")
    assert values(cluster, topic) == [b"kept"]


def test_send_tells_why_after_a_commit_that_failed_and_after_an_abort(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        _ = cluster.nodes[0].command(op="fail_next", api=PRODUCE, error="INVALID_RECORD", times=5)
        _ = producer.send(topic, b"refused")
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        with pytest.raises(TransactionAbortableError, match="INVALID_RECORD"):
            _ = producer.send(topic, b"too late")
        producer.abort_transaction()
        with pytest.raises(TransactionStateError, match="begin_transaction"):
            _ = producer.send(topic, b"between two")


def test_a_call_keeps_its_time_where_a_callback_holds_up_the_thread(cluster: EmbeddedCluster, topic: str) -> None:
    held, let_go = threading.Event(), threading.Event()

    def stuck(*_: object) -> None:
        held.set()
        assert let_go.wait(PATIENCE_S)

    with made(cluster, topic) as producer:
        try:
            _ = producer.send(topic, b"kept", on_ack=stuck)
            assert held.wait(PATIENCE_S)
            for timeout in (0, 1):
                with pytest.raises(CommitTimeoutError, match="callback"):
                    producer.commit_transaction(timeout)
        finally:
            let_go.set()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
    assert values(cluster, topic) == [b"kept"]


def test_a_call_that_waits_for_nothing_begins_all_the_same(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        _ = producer.send(topic, b"kept")

        def committed() -> bool:
            try:
                producer.commit_transaction(0)
            except CommitTimeoutError:
                return False
            except CommittedNotVisibleError:
                return True
            return True

        _ = wait_until(committed, seconds=PATIENCE_S, what="it is committed", every=0.01)
    assert values(cluster, topic) == [b"kept"]


@pytest.mark.parametrize("committing", [False, True], ids=["open", "committing"])
def test_a_close_does_not_wait_for_ever_for_brokers_that_are_gone(*, committing: bool) -> None:
    with EmbeddedCluster(1) as cluster:
        topic = cluster.create_topic("t", 1)
        brief: dict[str, Any] = {
            "delivery.timeout.ms": 1_500,
            "request.timeout.ms": 1_000,
            "transaction.timeout.ms": 1_000,
        }
        producer = made(cluster, topic, **brief)
        _ = producer.send(topic, b"x").result(PATIENCE_S)
        cluster.nodes[0].kill()
        if committing:
            with pytest.raises(CommitTimeoutError):
                producer.commit_transaction(0.1)
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


@pytest.mark.parametrize(
    ("offsets", "group"),
    [
        ({("t", 0): 1 << 63}, "g"),
        ({("t", 1 << 31): 1}, "g"),
        ({("t", 0): (1, 1 << 31, "")}, "g"),
        ({("t", 0): (1, None, "m" * 40_000)}, "g"),
        ({("t\ud800", 0): 1}, "g"),
        ({("t", 0): 1}, "g\ud800"),
        ({("t", 0): 1}, "g" * 40_000),
        ({("t", 0): 1}, Group("g", 1 << 31, "m")),
        ({("t", 0): 1}, Group("g", 1, 5)),  # type: ignore[arg-type]
    ],
)
def test_offsets_and_groups_that_no_request_can_carry_are_the_callers_errors(
    cluster: EmbeddedCluster, topic: str, offsets: dict[tuple[str, int], object], group: object
) -> None:
    with made(cluster, topic) as producer:
        with pytest.raises((TypeError, ValueError)):
            producer.send_offsets_to_transaction(offsets, group)  # type: ignore[arg-type]
        _ = producer.send(topic, b"goes on")
        producer.commit_transaction()


@pytest.mark.parametrize("name", ["x" * 40_000, "\ud800"])
def test_a_transactional_id_that_no_request_can_carry_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        _ = DirectProducer(bootstrap_servers="127.0.0.1:1", transactional_id=name)
