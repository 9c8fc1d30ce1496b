"""A broker node in memory, asked as a client would ask: by bytes."""

from dataclasses import dataclass, field
from typing import TypeAlias

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from penstock.broker.catalogue import MemoryCatalogue
from penstock.broker.cluster.node import BrokerNode, BrokerNodeLimits, PeerNode
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.log.ports import BrokerTime, LogStore, TopicStore
from penstock.broker.log.topics import BrokerTopic
from penstock.broker.requests.dispatch import RequestReply, apply, decode
from penstock.broker.storage import MemoryLogStore

from .batches import NOW_MS

CORRELATION = 77
Part: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse


@dataclass
class Clock:
    """Time that moves when it is told to."""

    now: float = 100.0
    wall_ms: int = NOW_MS

    @property
    def moment(self) -> BrokerTime:
        return BrokerTime(self.now, self.wall_ms)

    def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000
        self.wall_ms += milliseconds


@dataclass
class KeptLogs:
    """A log store that outlives its node, as a folder would."""

    batches: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)

    def load(self, topic: BrokerTopic, partition: int) -> list[bytes]:
        return list(self.batches.get((topic.id.hex, partition), []))

    def append(self, topic: BrokerTopic, partition: int, data: bytes) -> None:
        self.batches.setdefault((topic.id.hex, partition), []).append(data)

    def start_offset(self, topic: BrokerTopic, partition: int) -> int:
        return self.starts.get((topic.id.hex, partition), 0)

    def keep_start(self, topic: BrokerTopic, partition: int, offset: int) -> None:
        self.starts[topic.id.hex, partition] = offset

    def discard(self, topic: BrokerTopic) -> None:
        for key in [key for key in self.batches if key[0] == topic.id.hex]:
            del self.batches[key]


PEERS = (PeerNode(0, "127.0.0.1", 19092), PeerNode(1, "127.0.0.1", 19093), PeerNode(2, "127.0.0.1", 19094))


@dataclass
class Bench:
    """One node under test; topic `t` has three partitions."""

    clock: Clock = field(default_factory=Clock)
    limits: BrokerNodeLimits = field(default_factory=BrokerNodeLimits)
    topics: TopicStore = field(default_factory=MemoryCatalogue)
    logs: LogStore = field(default_factory=MemoryLogStore)
    peers: tuple[PeerNode, ...] = PEERS[:1]
    node_id: int = 0
    start: int = 0
    settings: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _ = self.topics.create("t", 3, self.settings)
        self.node = self._node()

    def _node(self) -> BrokerNode:
        return BrokerNode(
            self.node_id,
            self.peers,
            start=self.start,
            limits=self.limits,
            topic_store=self.topics,
            log_store=self.logs,
            moment=self.clock.moment,
        )

    def restart(self) -> None:
        """End the process and start it again, with what its stores kept."""
        self.start += 1
        self.node = self._node()

    def exchange(self, request: ApiMessage, version: int) -> RequestReply | DelayedResponse:
        request.API_VERSION = version
        request.with_header(CORRELATION, "test")
        data = request.encode(header=True)
        return apply(self.node, decode(data, arrived=self.clock.now), self.clock.moment)

    def reply(self, request: ApiMessage, version: int) -> RequestReply:
        """What is sent at once."""
        reply = self.exchange(request, version)
        assert isinstance(reply, RequestReply), reply
        return reply

    def ask(self, request: ApiMessage, version: int) -> ApiMessage:
        """Send a request and decode the answer."""
        reply = self.reply(request, version)
        assert not reply.close, reply.why
        kind = ResponseClassRegistry.get_response_class(request.header)
        answer = kind.decode(reply.data, version=version, header=True, framed=True)
        assert answer.header.correlation_id == CORRELATION
        return answer

    def produce(self, data: bytes, *, partition: int = 0, version: int = 9, acks: int = -1, topic: str = "t") -> Part:
        """Send one batch and return what is said about its partition."""
        answer = self.ask(self.produce_request({partition: [data]}, acks=acks, topic=topic), version)
        (part,) = answer.responses[0].partition_responses
        return part

    def produce_request(
        self, batches: dict[int, list[bytes]], *, acks: int = -1, topic: str = "t", transactional_id: str | None = None
    ) -> ProduceRequest:
        found = self.node.topic(topic)
        data = ProduceRequest.TopicProduceData(
            name=topic,
            topic_id=found.id if found else BrokerTopic("no such topic", 0, 1).id,
            partition_data=[
                ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=one)
                for index, several in batches.items()
                for one in several
            ],
        )
        return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[data])

    def end(self, partition: int = 0) -> int:
        """The end of a partition's log."""
        topic = self.node.topic("t")
        assert topic is not None
        found = self.node.partition(topic, partition)
        assert not isinstance(found, int)
        return found.log.end_offset
