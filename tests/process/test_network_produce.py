"""Produce over our connections, framed and read by us, against our own strict broker."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

import pytest
from penstock.config.model import Kafka
from penstock.producer.core.requests import (
    PartitionData,
    ProduceAnswer,
    TopicData,
    frame_produce,
    read_produce,
)
from penstock.producer.core.verdicts import Verdict, judge_produce
from penstock.producer.network import Answer, Connection
from penstock.producer.resolver import Resolver
from penstock.producer.sockets import produce_options
from penstock.runtime.loop import Loop

from tests.harness.batches import numbered
from tests.harness.embedded import EmbeddedCluster
from tests.harness.kafka_cluster import unique_topic
from tests.harness.metadata_client import MetadataClient
from tests.harness.readers import read_topic

_WAIT_S: Final = 10.0


class Sender:
    """One Produce connection, one request at a time or several."""

    def __init__(self, host: str, port: int) -> None:
        self.loop = Loop()
        self.resolver = Resolver(self.loop)
        self.answers: dict[str, ProduceAnswer] = {}
        self.versions: dict[str, int] = {}
        self.lost: list[str] = []
        options = produce_options(Kafka.model_validate({"bootstrap.servers": "unused:1"}))
        self.connection: Connection[str] = Connection(
            self.loop, self.resolver, host, port, options=options, owner=self, rng=lambda: 0.5
        )
        self.connection.connect()
        self._until_ready()

    def connection_ready(self, connection: Connection[str]) -> None:
        """`ready` tells."""

    def connection_answered(self, connection: Connection[str], tag: str, answer: Answer) -> None:
        assert isinstance(answer, bytes)
        self.answers[tag] = read_produce(self.versions[tag], answer)

    def connection_lost(self, connection: Connection[str], tags: list[str], reason: str) -> None:
        self.lost += tags

    def send(self, tag: str, version: int, topics: list[TopicData]) -> None:
        correlation_id = self.connection.next_correlation_id()
        framed = frame_produce(version, correlation_id, "penstock", -1, 30_000, topics)
        self.versions[tag] = version
        self.connection.send_raw(framed.buffers, framed.size, correlation_id, tag)

    def answer(self, tag: str) -> ProduceAnswer:
        self._round(lambda: tag in self.answers)
        return self.answers[tag]

    def close(self) -> None:
        _ = self.connection.close()
        self.resolver.close()
        self.loop.close()

    def _until_ready(self) -> None:
        self._round(lambda: self.connection.ready)

    def _round(self, true: Callable[[], bool]) -> None:
        end = monotonic() + _WAIT_S
        while not true():
            assert monotonic() < end, f"waited in vain: {self.connection.last_error}"
            self.connection.tick(monotonic())
            deadline = self.connection.next_deadline()
            _ = self.loop.run_once(end if deadline is None else min(end, deadline))


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


def known(cluster: EmbeddedCluster, topic: str) -> tuple[bytes, int]:
    """Topic id, and a fresh producer id."""
    with MetadataClient(cluster.bootstrap) as client:
        client.metadata.want(topic)
        client.metadata.request_producer_id()
        client.until(lambda: client.metadata.topic(topic) is not None and bool(client.producer_ids))
        view = client.metadata.topic(topic)
        assert view is not None
        assert view.topic_id is not None
        return view.topic_id, client.producer_ids[0][0]


def one(topic: str, topic_id: bytes, index: int, data: bytes) -> TopicData:
    # In two pieces, as a header before a body.
    return TopicData(topic, topic_id, [PartitionData(index, [data[:61], memoryview(data)[61:]], len(data))])


def test_every_version_is_taken_and_all_of_it_is_in_the_log(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique_topic(["versions"]), 1)
    topic_id, producer_id = known(cluster, topic)
    sender = Sender(*cluster.nodes[0].address)
    try:
        for sequence, version in enumerate(range(3, 14)):
            sender.send(f"v{version}", version, [one(topic, topic_id, 0, numbered(producer_id, 0, sequence))])
            (outcome,) = sender.answer(f"v{version}").outcomes
            assert (outcome.code, outcome.base_offset) == (0, sequence)
            assert (outcome.topic, outcome.topic_id) == (("", topic_id) if version == 13 else (topic, None))
    finally:
        sender.close()
    assert len(list(read_topic(cluster, topic))) == 11


def test_several_requests_on_the_wire_are_answered_each_for_its_own(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique_topic(["several"]), 4)
    topic_id, producer_id = known(cluster, topic)
    sender = Sender(*cluster.nodes[0].address)
    try:
        for sequence in range(5):
            batches = [PartitionData(index, [numbered(producer_id, 0, sequence)], 0) for index in range(4)]
            parts = [part._replace(size=len(part.buffers[0])) for part in batches]
            sender.send(str(sequence), 13, [TopicData(topic, topic_id, parts)])
        assert sender.connection.in_flight == 5
        for sequence in range(5):
            outcomes = sender.answer(str(sequence)).outcomes
            assert sorted((out.index, out.code, out.base_offset) for out in outcomes) == [
                (index, 0, sequence) for index in range(4)
            ]
    finally:
        sender.close()


def test_refusals_and_repeats_are_judged(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique_topic(["judged"]), 1)
    topic_id, producer_id = known(cluster, topic)
    sender = Sender(*cluster.nodes[0].address)

    def verdict(tag: str, version: int, data: bytes, *, by_id: bytes = topic_id, name: str = topic) -> Verdict:
        sender.send(tag, version, [one(name, by_id, 0, data)])
        (outcome,) = sender.answer(tag).outcomes
        return judge_produce(outcome.code, record_count=1, log_start=outcome.log_start).verdict

    try:
        first, second = numbered(producer_id, 0, 0), numbered(producer_id, 0, 1)
        damaged = second[:-1] + bytes([second[-1] ^ 1])
        assert verdict("new", 9, first) is Verdict.ACKED
        assert verdict("again", 9, first) is Verdict.ACKED
        assert verdict("gap", 9, numbered(producer_id, 0, 7)) is Verdict.OUT_OF_ORDER
        assert verdict("damaged", 9, damaged) is Verdict.RETRY
        assert verdict("unknown name", 9, second, name="no-such-topic") is Verdict.CONFIRM_TOPIC
        assert verdict("unknown id", 13, second, by_id=bytes(range(16))) is Verdict.CONFIRM_TOPIC
        assert verdict("next", 13, second) is Verdict.ACKED
    finally:
        sender.close()


def test_requests_of_a_broker_that_is_killed_are_lost_in_order() -> None:
    with EmbeddedCluster() as cluster:
        topic = cluster.create_topic(unique_topic(["killed"]), 1)
        topic_id, producer_id = known(cluster, topic)
        sender = Sender(*cluster.nodes[0].address)
        try:
            cluster.nodes[0].kill()
            for sequence in range(3):
                if sender.connection.has_room(monotonic()):
                    sender.send(str(sequence), 13, [one(topic, topic_id, 0, numbered(producer_id, 0, sequence))])
            sender._round(lambda: bool(sender.lost))
            assert sender.lost == sorted(sender.lost)
            assert sender.lost[0] == "0"
            assert sender.connection.pending_bytes == 0
        finally:
            sender.close()
