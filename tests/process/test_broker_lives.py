"""The broker started, stopped, killed and started again."""

import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.producer import InitProducerIdRequest
from penstock.broker.log.error_codes import ErrorCode

from tests.harness.batches import Rec, batch, numbered
from tests.harness.embedded import BrokerProcess, Caller, EmbeddedCluster, confluent, now_ms, produce
from tests.harness.ports import free_ports
from tests.harness.readers import read_topic

BROKER = [sys.executable, "-I", "-m", "penstock.broker.server"]


def test_producer_ids_of_all_nodes_and_starts_differ() -> None:
    ids: set[int] = set()
    with EmbeddedCluster(2, folders=True) as cluster:
        for _ in range(3):
            for node in range(2):
                with cluster.call(node) as caller:
                    for _ in range(10):
                        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
                        answer = caller.ask(request, 4)
                        assert (answer.error_code, answer.producer_epoch) == (0, 0)
                        ids.add(answer.producer_id)
                cluster.nodes[node].kill()
                cluster.nodes[node].start()
    assert len(ids) == 60


def test_a_killed_node_comes_back_with_its_log_and_recognises_the_last_batch_only() -> None:
    with EmbeddedCluster(folders=True) as cluster:
        topic = cluster.create_topic("kept", 1)
        at = now_ms()
        with cluster.call() as caller:
            assert [produce(caller, topic, numbered(7, 0, n, 1, at)) for n in range(4)] == [(0, n) for n in range(4)]
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        with cluster.call() as caller:
            assert produce(caller, topic, numbered(7, 0, 2, 1, at))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert produce(caller, topic, numbered(7, 0, 3, 1, at)) == (0, 3)
            assert produce(caller, topic, numbered(7, 0, 4, 1, at)) == (0, 4)
        assert cluster.offsets(topic) == {0: (0, 5)}


def test_a_node_killed_while_it_writes_loses_and_doubles_nothing_of_an_idempotent_producer() -> None:
    with EmbeddedCluster(2, folders=True) as cluster:
        topic = cluster.create_topic("killed", 4)
        producer = confluent(cluster, **{"retry.backoff.ms": 20, "reconnect.backoff.ms": 10})
        acknowledged: set[bytes] = set()
        failures: list[object] = []

        def told(error: object, message: object) -> None:
            if error is None:
                acknowledged.add(message.value())  # type: ignore[attr-defined]
            else:
                failures.append(error)

        sent = 0
        for kill in range(6):
            goal = len(acknowledged) + 2000
            while len(acknowledged) < goal:
                for _ in range(100):
                    producer.produce(topic, b"%d" % sent + b"x" * 1000, on_delivery=told)
                    sent += 1
                _ = producer.poll(0.02)
            cluster.nodes[kill % 2].kill()
            cluster.nodes[kill % 2].start()
        assert producer.flush(60) == 0
        assert failures == []
        values = [one.value for one in read_topic(cluster, topic)]
        assert len(values) == len(set(values)) == sent
        assert set(values) == acknowledged


def test_a_log_torn_by_hand_is_readable_up_to_the_tear() -> None:
    with EmbeddedCluster(folders=True) as cluster:
        topic = cluster.create_topic("torn", 1)
        with cluster.call() as caller:
            for number in range(3):
                assert produce(caller, topic, batch([Rec(b"%d" % number)])) == (0, number)
        cluster.nodes[0].kill()
        (path,) = (cluster.folder / "node-0").glob("*/0.log")
        _ = path.write_bytes(path.read_bytes()[:-3])
        cluster.nodes[0].start()
        assert cluster.offsets(topic) == {0: (0, 2)}
        assert [one.value for one in read_topic(cluster, topic)] == [b"0", b"1"]


def test_the_broker_says_loudly_that_it_is_not_for_production() -> None:
    with EmbeddedCluster() as cluster:
        assert "NOT FOR PRODUCTION" in cluster.nodes[0].said()


def test_an_orderly_end_is_exit_status_zero_and_so_is_the_end_of_the_commands() -> None:
    with EmbeddedCluster() as cluster:
        assert cluster.nodes[0].stop() == 0
        cluster.nodes[0].start()
        process = cluster.nodes[0].process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_second_broker_on_the_same_folder_or_port_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    argv = ["--listen", "127.0.0.1:0", "--log-dir", str(tmp_path / "log")]
    first = BrokerProcess(argv, tmp_path / "stderr")
    again = subprocess.run([*BROKER, *argv], capture_output=True, text=True, timeout=180, check=False)
    assert again.returncode == 1
    assert "in use by another broker" in again.stderr
    taken = f"127.0.0.1:{first.address[1]}"
    again = subprocess.run([*BROKER, "--listen", taken], capture_output=True, text=True, timeout=180, check=False)
    assert again.returncode == 1
    assert "in use" in again.stderr
    assert first.stop() == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--listen", "nowhere"], "'nowhere' is not host:port"),
        (["--nodes", "0=127.0.0.1:1"], "is not id@host:port"),
        (["--node-id", "3", "--nodes", "0@127.0.0.1:1"], "node 3 is not among the nodes"),
        (["--nodes", "0@127.0.0.1:1,1@127.0.0.1:2"], "several nodes need one catalogue folder"),
        (["--topic", "t"], "is not name:partitions"),
        (["--topic", "t:3:max.message.byte=1"], "unknown topic setting max.message.byte"),
        (["--topic", "t:3", "--topic", "t:4"], "a topic is named twice"),
    ],
)
def test_settings_that_cannot_work_are_told_and_exit_status_is_two(argv: list[str], said: str) -> None:
    ended = subprocess.run([*BROKER, *argv], capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_topic_named_at_the_start_exists_with_its_settings_and_keeps_its_partitions(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    argv = ["--listen", f"127.0.0.1:{port}", "--log-dir", str(tmp_path / "log")]
    node = BrokerProcess([*argv, "--topic", "t:2:max.message.bytes=200"], tmp_path / "stderr")
    with Caller(node.address) as caller:
        assert produce(caller, "t", batch([Rec(b"x" * 100)]))[0] == 0
        assert produce(caller, "t", batch([Rec(b"x" * 200)]))[0] == ErrorCode.MESSAGE_TOO_LARGE
    assert node.stop() == 0
    ended = subprocess.run([*BROKER, *argv, "--topic", "t:3"], capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 2
    assert "topic t exists with 2 partitions" in ended.stderr


def test_a_topic_is_made_by_asking_where_that_is_allowed() -> None:
    with EmbeddedCluster(arguments=["--auto-create-topics", "--default-partitions", "5"]) as cluster:
        producer = confluent(cluster, **{"allow.auto.create.topics": True})
        producer.produce("asked-for", b"x")
        assert producer.flush(30) == 0
        assert len(cluster.metadata("asked-for").topics["asked-for"].partitions) == 5


def test_a_node_whose_log_cannot_be_written_ends_and_has_what_it_acknowledged_when_it_is_back() -> None:
    with EmbeddedCluster(folders=True) as cluster:
        topic = cluster.create_topic("full", 1)
        node = cluster.nodes[0]
        # A limit on the size of files stands for a full disk.
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
        acknowledged = 0
        with cluster.call() as caller, suppress(EOFError, ConnectionResetError):
            while True:
                assert produce(caller, topic, batch([Rec(b"x" * 300)])) == (0, acknowledged)
                acknowledged += 1
        assert node.process.wait(60) == 1
        assert "File too large" in node.said()
        assert acknowledged == 10_000 // len(batch([Rec(b"x" * 300)]))
        node.start()
        assert cluster.offsets(topic) == {0: (0, acknowledged)}


def test_readiness_is_told_to_the_descriptor_that_was_named(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    argv = [*BROKER, "--listen", "127.0.0.1:0", "--ready-fd", str(writing)]
    with subprocess.Popen(argv, pass_fds=[writing], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            word, address = pipe.read().split()
        assert word == "ready"
        host, _, port = address.partition(":")
        with Caller((host, int(port))) as caller:
            assert caller.ask(ApiVersionsRequest(), 0).error_code == 0
        process.terminate()
        assert process.communicate(timeout=60)[0] == b""
        assert process.returncode == 0
