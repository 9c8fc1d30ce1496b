"""Transactions on the embedded broker as real processes, by clients that are not ours: what they commit is read, what they abort is not."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from tests.harness.embedded import EmbeddedCluster, ReplicatedCluster
from tests.harness.processes import Deadline

PATIENCE_S = 60.0


def producer(bootstrap: str, name: str, **more: object) -> Producer:
    """A transactional producer that has its identity."""
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 5, "log_level": 0} | more)
    made.init_transactions(PATIENCE_S)
    return made


def read_to_end(bootstrap: str, topic: str, *, isolated: bool = True) -> list[bytes]:
    """All values of a topic's first partition up to where a reader of this isolation may read."""
    level = "read_committed" if isolated else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = Deadline(PATIENCE_S, "the end of the partition")
        while True:
            message = consumer.poll(deadline.left())
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                return found
            value = message.value()
            assert value is not None
            found.append(value)
    finally:
        consumer.close()


@pytest.fixture(params=["one node", "three nodes"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "one node":
        with EmbeddedCluster(arguments=["--topic", "t:1", "--topic", "out:1"]) as one:
            yield one.bootstrap
    else:
        with ReplicatedCluster(arguments=["--topic", "t:1", "--topic", "out:1"]) as three:
            yield three.bootstrap


def test_readers_of_committed_records_see_what_was_committed_and_nothing_else(bootstrap: str) -> None:
    one = producer(bootstrap, "one")
    for number in range(6):
        one.begin_transaction()
        one.produce("t", b"%d" % number, partition=0)
        if number % 2:
            one.flush(PATIENCE_S)
            one.abort_transaction(PATIENCE_S)
        else:
            one.commit_transaction(PATIENCE_S)
    assert read_to_end(bootstrap, "t") == [b"0", b"2", b"4"]
    assert read_to_end(bootstrap, "t", isolated=False) == [b"%d" % number for number in range(6)]


def test_a_second_producer_of_the_same_id_fences_the_first(bootstrap: str) -> None:
    old = producer(bootstrap, "same")
    old.begin_transaction()
    old.produce("t", b"old", partition=0)
    assert old.flush(PATIENCE_S) == 0
    new = producer(bootstrap, "same")
    new.begin_transaction()
    new.produce("t", b"new", partition=0)
    new.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    assert read_to_end(bootstrap, "t") == [b"new"]


def test_what_is_consumed_transformed_and_produced_in_a_transaction_is_there_once(bootstrap: str) -> None:
    feeder = producer(bootstrap, "feeder")
    feeder.begin_transaction()
    for number in range(20):
        feeder.produce("t", b"%d" % number, partition=0)
    feeder.commit_transaction(PATIENCE_S)
    done = 0
    for turn in range(3):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "workers",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        worker = producer(bootstrap, "worker")
        consumer.subscribe(["t"])
        deadline = Deadline(PATIENCE_S, "records for the group")
        worker.begin_transaction()
        values: list[bytes] = []
        while len(values) < 5:
            message = consumer.poll(deadline.left())
            assert message is not None
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            values.append(value)
            worker.produce("out", value + b"!", partition=0)
        worker.send_offsets_to_transaction(
            [TopicPartition("t", 0, int(values[-1]) + 1)], consumer.consumer_group_metadata(), PATIENCE_S
        )
        if turn == 1:
            worker.abort_transaction(PATIENCE_S)
        else:
            worker.commit_transaction(PATIENCE_S)
            done += 5
        consumer.close()
    assert read_to_end(bootstrap, "out") == [b"%d!" % number for number in range(done)]


def test_a_reader_waits_for_markers_that_are_held_and_never_sees_what_lost_its_marker() -> None:
    with EmbeddedCluster(arguments=["--topic", "t:1"]) as cluster:
        (node,) = cluster.nodes
        one = producer(cluster.bootstrap, "one")
        assert node.command(op="hold_markers", transactional_id="one")["ok"]
        one.begin_transaction()
        one.produce("t", b"late", partition=0)
        one.commit_transaction(PATIENCE_S)
        assert read_to_end(cluster.bootstrap, "t") == []
        assert node.command(op="free_markers")["ok"]
        other = producer(cluster.bootstrap, "other")
        assert read_to_end(cluster.bootstrap, "t") == [b"late"]
        assert node.command(op="lose_markers", topic="t", times=1)["ok"]
        other.begin_transaction()
        other.produce("t", b"lost", partition=0)
        other.commit_transaction(PATIENCE_S)
        assert read_to_end(cluster.bootstrap, "t") == [b"late"]
        assert read_to_end(cluster.bootstrap, "t", isolated=False) == [b"late", b"lost"]


def test_a_transaction_survives_its_coordinator() -> None:
    with ReplicatedCluster(arguments=["--topic", "t:1", "--session-ms", "500", "--replica-lag-ms", "1000"]) as cluster:
        one = producer(cluster.bootstrap, "one", **{"retry.backoff.ms": 20, "reconnect.backoff.max.ms": 100})
        told: list[bytes] = []
        for turn in range(6):
            one.begin_transaction()
            one.produce("t", b"%d" % turn, partition=0)
            home = cluster.do("coordinator", transactional_id="one")
            if turn % 2:
                assert one.flush(PATIENCE_S) == 0
            cluster.do("kill" if turn % 3 else "stop", node=home["node"])
            one.commit_transaction(PATIENCE_S)
            told.append(b"%d" % turn)
            cluster.do("start", node=home["node"])
        assert read_to_end(cluster.bootstrap, "t") == told


def test_commands_about_transactions_that_make_no_sense_are_refused() -> None:
    with EmbeddedCluster() as cluster:
        (node,) = cluster.nodes
        for wrong in (
            {"op": "hold_markers", "topic": 5},
            {"op": "lose_markers", "partition": "0"},
            {"op": "coordinator"},
            {"op": "limit", "name": "transaction_version", "value": 3},
            {"op": "limit", "name": "marker_delay_ms", "value": -1},
        ):
            assert node.command(**wrong)["ok"] is False
        told = node.command(op="coordinator", group="g")
        assert told == {"ok": True, "topic": "__consumer_offsets", "partition": 3, "node": 0}
        for name, value in (("marker_delay_ms", 5), ("coordinator_load_ms", 0), ("transaction_version", 1)):
            assert node.command(op="limit", name=name, value=value)["ok"] is True
        for name in ("transactional_id_expiration_ms", "offsets_retention_ms"):
            assert node.command(op="limit", name=name, value=1000)["ok"] is True


def test_a_client_written_in_python_runs_transactions_and_reads_in_a_group(bootstrap: str) -> None:
    servers = bootstrap.split(",")
    one = KafkaProducer(bootstrap_servers=servers, transactional_id="python")
    one.init_transactions()
    for number in range(4):
        one.begin_transaction()
        _ = one.send("t", b"%d" % number)
        one.flush(PATIENCE_S)
        if number % 2:
            one.abort_transaction()
        else:
            one.commit_transaction()
    one.close()
    reader = KafkaConsumer(
        "t",
        bootstrap_servers=servers,
        group_id="python",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    found = [next(reader).value for _ in range(2)]
    reader.close()
    assert found == [b"0", b"2"]
