"""The router's metadata client against real broker processes (our own, and one that is told what to say)."""

from collections.abc import Iterator
from time import monotonic

import pytest
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.producer import InitProducerIdResponse

from tests.fakes.scripted_broker import Peer, ScriptedBroker
from tests.harness.embedded import EmbeddedCluster
from tests.harness.kafka_cluster import unique_topic
from tests.harness.metadata_client import MetadataClient
from tests.harness.ports import free_ports


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3) as cluster:
        yield cluster


def test_topics_are_learnt_with_ids_leaders_and_settings(three: EmbeddedCluster) -> None:
    name = three.create_topic(unique_topic(["metadata"]), 6, config={"max.message.bytes": "2000000"})
    with MetadataClient(three.bootstrap) as client:
        client.metadata.want(name)
        client.until(lambda: client.metadata.topic(name) is not None)
        topic = client.metadata.topic(name)
        assert topic is not None
        assert topic.partition_count == 6
        assert topic.topic_id is not None
        assert {index: part.leader for index, part in topic.partitions.items()} == three.leaders(name)
        assert set(client.metadata.cluster.nodes) == {0, 1, 2}
        client.until(lambda: client.metadata.topic_settings(name) is not None)
        settings = client.metadata.topic_settings(name)
        assert settings is not None
        assert settings.message_bytes_max == 2_000_000
        client.until(lambda: client.metadata.producer_id_expiration_ms is not None)
        assert client.metadata.problems == {}
        assert any(name in change.topics_added for change in client.changes)


@pytest.mark.row("J20")
def test_a_leader_older_than_the_epoch_of_an_earlier_life_is_not_believed(three: EmbeddedCluster) -> None:
    name = three.create_topic(unique_topic(["seeded"]), 2)
    with MetadataClient(three.bootstrap) as client:
        client.metadata.want(name)
        client.until(lambda: client.metadata.topic(name) is not None)
        first = client.metadata.topic(name)
    assert first is not None
    with MetadataClient(three.bootstrap) as client:
        client.metadata.seed(name, first.topic_id, {0: 99})
        client.metadata.want(name)
        client.until(lambda: client.metadata.topic(name) is not None)
        second = client.metadata.topic(name)
        assert second is not None
        assert (second.partitions[0].leader, second.partitions[0].leader_epoch) == (-1, 99)
        assert second.partitions[1] == first.partitions[1]


@pytest.mark.row("J6")
def test_a_topic_that_nobody_uses_is_dropped_and_learnt_again_when_it_is_wanted(three: EmbeddedCluster) -> None:
    used, idle = (three.create_topic(unique_topic([name]), 1) for name in ("used", "idle"))
    with MetadataClient(three.bootstrap, **{"metadata.max.idle.ms": 5_000, "metadata.max.age.ms": 1_000}) as client:
        client.metadata.want(idle)

        def is_known_while_the_other_is_used(name: str) -> bool:
            client.metadata.want(used)
            return client.metadata.topic(name) is not None

        client.until(lambda: is_known_while_the_other_is_used(idle))
        client.until(lambda: not is_known_while_the_other_is_used(idle))
        assert client.changes[-1].topics_dropped == (idle,)
        assert client.metadata.topic_settings(idle) is None
        assert client.metadata.topic(used) is not None
        client.metadata.want(idle)
        client.until(lambda: client.metadata.topic(idle) is not None)


def test_a_producer_id_is_asked_only_when_it_is_needed(three: EmbeddedCluster) -> None:
    with MetadataClient(three.bootstrap) as client:
        client.until(lambda: len(client.metadata.cluster.nodes) == 3)
        assert client.producer_ids == []
        client.metadata.request_producer_id()
        client.until(lambda: bool(client.producer_ids))
        client.metadata.request_producer_id()
        client.until(lambda: len(client.producer_ids) == 2)
        assert len({producer_id for producer_id, _ in client.producer_ids}) == 2


def test_a_missing_topic_is_missing_from_the_second_answer_on_and_found_once_it_is_made(three: EmbeddedCluster) -> None:
    name = unique_topic(["missing"])
    with MetadataClient(three.bootstrap) as client:
        client.metadata.want(name)
        client.until(lambda: client.metadata.topic_error(name) is not None)
        assert client.metadata.topic_error(name) == "UNKNOWN_TOPIC_OR_PARTITION"
        assert client.metadata.topic(name) is None
        assert [change.topics_missing for change in client.changes if change.topics_missing] == [(name,)]
        three.create_topic(name, 2)
        client.until(lambda: client.metadata.topic(name) is not None)
        assert client.metadata.topic_error(name) is None
        assert any(name in change.topics_recovered for change in client.changes)


def test_a_topic_is_never_made_by_asking_for_it(three: EmbeddedCluster) -> None:
    name = unique_topic(["never"])
    with MetadataClient(three.bootstrap) as client:
        client.metadata.want(name)
        client.until(lambda: client.metadata.topic_error(name) is not None)
    assert name not in three.metadata().topics


def test_bootstrap_addresses_that_refuse_are_passed_over(three: EmbeddedCluster) -> None:
    (dead,) = free_ports(1)
    with MetadataClient(f"127.0.0.1:{dead},{three.bootstrap}") as client:
        client.until(lambda: len(client.metadata.cluster.nodes) == 3)


def test_a_name_that_cannot_be_resolved_is_passed_over_and_told(three: EmbeddedCluster) -> None:
    with MetadataClient("no-such-host.invalid:9092") as client:
        client.until(lambda: "no-such-host.invalid" in client.metadata.problems.get("brokers", ""))
    with MetadataClient(f"no-such-host.invalid:9092,{three.bootstrap}") as client:
        client.until(lambda: len(client.metadata.cluster.nodes) == 3)


def test_no_broker_at_all_is_a_problem_in_words_and_not_a_busy_loop() -> None:
    (dead,) = free_ports(1)
    with MetadataClient(f"127.0.0.1:{dead}", **{"reconnect.backoff.ms": 100}) as client:
        client.until(lambda: "refused" in client.metadata.problems.get("brokers", ""))
        # From here on only the end of a backoff wakes it: a second of rounds is a handful, not thousands.
        end = monotonic() + 1.0
        assert client.until(lambda: monotonic() >= end) < 100


def test_another_broker_is_asked_when_the_one_that_was_dies() -> None:
    with EmbeddedCluster(3, folders=True) as cluster:
        name = cluster.create_topic(unique_topic(["dies"]), 3)
        with MetadataClient(cluster.bootstrap) as client:
            client.metadata.want(name)
            client.until(lambda: client.metadata.topic(name) is not None and client.metadata.connected_to is not None)
            asked = client.metadata.connected_to
            assert asked is not None
            cluster.nodes[asked.node].kill()
            client.until(
                lambda: client.metadata.connected_to is not None and client.metadata.connected_to.node != asked.node
            )
            client.metadata.request_producer_id()
            client.until(lambda: bool(client.producer_ids))


@pytest.mark.row("I27")
def test_all_brokers_gone_and_back_are_found_again() -> None:
    with EmbeddedCluster(2, folders=True) as cluster, MetadataClient(cluster.bootstrap) as client:
        client.until(lambda: client.metadata.connected_to is not None and len(client.metadata.cluster.nodes) == 2)
        for node in cluster.nodes:
            node.kill()
        client.until(lambda: client.metadata.connected_to is None)
        cluster.nodes[1].start()
        client.metadata.request_producer_id()
        client.until(lambda: bool(client.producer_ids))
        assert client.metadata.problems == {}


# --- answers that no honest broker gives -----------------------------------------------------------------------------


def _metadata(version: int, port: int, *, cluster: str = "c", code: int = 0) -> bytes:
    row = MetadataResponse.MetadataResponseBroker(node_id=5, host="127.0.0.1", port=port, rack=None)
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=[row],
        cluster_id=cluster,
        controller_id=5,
        topics=[],
        error_code=code,
        version=version,
    )
    return b"\0" + bytes(response.encode())


def _producer_id(version: int, code: int, producer_id: int) -> bytes:
    response = InitProducerIdResponse(
        throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=0, version=version
    )
    return b"\0" + bytes(response.encode())


def test_a_forbidden_producer_id_is_a_problem_until_it_is_granted() -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet({3: (0, 12), 18: (0, 4), 22: (0, 4)})
        asked = peer.read()
        peer.send(asked.correlation_id, _metadata(12, broker.port))
        asked = peer.read()
        assert asked.api_key == 22
        peer.send(asked.correlation_id, _producer_id(4, 31, -1))
        asked = peer.read()
        peer.send(asked.correlation_id, _producer_id(4, 0, 77))
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker, MetadataClient(f"127.0.0.1:{broker.port}") as client:
        client.metadata.request_producer_id()
        client.until(lambda: "CLUSTER_AUTHORIZATION_FAILED" in client.metadata.problems.get("producer_id", ""))
        client.until(lambda: client.producer_ids == [(77, 0)])
        assert "producer_id" not in client.metadata.problems


def test_a_broker_of_another_cluster_is_not_believed() -> None:
    def first(peer: Peer) -> None:
        _ = peer.greet({3: (0, 12), 18: (0, 4)})
        asked = peer.read()
        peer.send(asked.correlation_id, _metadata(12, broker.port, cluster="ours"))

    def second(peer: Peer) -> None:
        _ = peer.greet({3: (0, 12), 18: (0, 4)})
        asked = peer.read()
        peer.send(asked.correlation_id, _metadata(12, broker.port + 1, cluster="theirs"))
        _ = peer.wait_for_end()

    with ScriptedBroker(first, second) as broker, MetadataClient(f"127.0.0.1:{broker.port}") as client:
        client.until(lambda: client.metadata.cluster.cluster_id == "ours")
        client.until(lambda: "belongs to cluster theirs, not ours" in client.metadata.problems.get("brokers", ""))
        assert client.metadata.cluster.nodes[5].port == broker.port


def test_an_answer_that_is_no_metadata_ends_the_connection_and_the_next_one_is_believed() -> None:
    def first(peer: Peer) -> None:
        _ = peer.greet({3: (0, 12), 18: (0, 4)})
        asked = peer.read()
        peer.send(asked.correlation_id, b"\xff" * 40)
        _ = peer.wait_for_end()

    def second(peer: Peer) -> None:
        _ = peer.greet({3: (0, 12), 18: (0, 4)})
        asked = peer.read()
        peer.send(asked.correlation_id, _metadata(12, broker.port))
        _ = peer.wait_for_end()

    with ScriptedBroker(first, second) as broker, MetadataClient(f"127.0.0.1:{broker.port}") as client:
        client.until(lambda: "no MetadataResponse" in client.metadata.problems.get("brokers", ""))
        client.until(lambda: 5 in client.metadata.cluster.nodes)
        assert client.metadata.problems == {}


@pytest.mark.row("I23")
def test_a_broker_without_a_version_we_speak_is_named() -> None:
    def script(peer: Peer) -> None:
        _ = peer.greet({3: (0, 2), 18: (0, 4)})
        _ = peer.wait_for_end()

    with ScriptedBroker(script) as broker, MetadataClient(f"127.0.0.1:{broker.port}") as client:
        client.until(lambda: "no version of Metadata" in client.metadata.problems.get("brokers", ""))
