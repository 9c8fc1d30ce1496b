"""One Produce connection on a loop of its own, framed and read by our code; requests by hand."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from penstock.config.model import KafkaSettings
from penstock.producer.network.connection import KafkaConnection
from penstock.producer.network.resolver import Resolver
from penstock.producer.network.socket_options import produce_options
from penstock.producer.protocol.produce_request import (
    PartitionData,
    ProduceResponseData,
    TopicData,
    decode_produce_response,
    encode_produce_request,
)
from penstock.producer.protocol.responses import ResponseOrBytes
from penstock.runtime.loop import Loop

from .kafka_cluster import Cluster
from .metadata_client import MetadataClient

_WAIT_S: Final = 10.0


class ProduceClient:
    """One Produce connection, one request at a time or several."""

    def __init__(self, host: str, port: int | str) -> None:
        self.loop = Loop()
        self.resolver = Resolver(self.loop)
        self.answers: dict[str, ProduceResponseData] = {}
        self.versions: dict[str, int] = {}
        self.lost: list[str] = []
        options = produce_options(KafkaSettings.model_validate({"bootstrap.servers": "unused:1"}))
        self.connection: KafkaConnection[str] = KafkaConnection(
            self.loop, self.resolver, host, int(port), options=options, owner=self, rng=lambda: 0.5
        )
        self.connection.connect()
        self._wait_ready()

    def connection_ready(self, connection: KafkaConnection[str]) -> None:
        """`ready` tells."""

    def connection_answered(self, connection: KafkaConnection[str], tag: str, answer: ResponseOrBytes) -> None:
        assert isinstance(answer, bytes)
        self.answers[tag] = decode_produce_response(self.versions[tag], answer)

    def connection_lost(self, connection: KafkaConnection[str], tags: list[str], reason: str) -> None:
        self.lost += tags

    def send(self, tag: str, version: int, topics: list[TopicData]) -> None:
        correlation_id = self.connection.next_correlation_id()
        framed = encode_produce_request(version, correlation_id, "penstock", -1, 30_000, topics)
        self.versions[tag] = version
        self.connection.send_raw(framed.buffers, framed.size, correlation_id, tag)

    def answer(self, tag: str) -> ProduceResponseData:
        self.until(lambda: tag in self.answers)
        return self.answers[tag]

    def close(self) -> None:
        _ = self.connection.close()
        self.resolver.close()
        self.loop.close()

    def _wait_ready(self) -> None:
        self.until(lambda: self.connection.ready)

    def until(self, true: Callable[[], bool]) -> None:
        end = monotonic() + _WAIT_S
        while not true():
            assert monotonic() < end, f"waited in vain: {self.connection.last_error}"
            self.connection.tick(monotonic())
            deadline = self.connection.next_deadline()
            _ = self.loop.run_once(end if deadline is None else min(end, deadline))


def identity(cluster: Cluster, topic: str) -> tuple[bytes, int]:
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
