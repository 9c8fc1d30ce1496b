"""A broker cluster with replicas in memory, under a clock that moves when it is told to, asked as a client would ask: by bytes."""

from dataclasses import dataclass, field

from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from penstock.broker.cluster.node import BrokerNodeLimits, PeerNode
from penstock.broker.cluster.responses import DelayedResponse
from penstock.broker.replication.replicated_cluster import ClusterTiming, ReplicatedCluster
from penstock.broker.requests.dispatch import ReceivedRequest, RequestReply, decode, with_pending
from penstock.broker.storage import MemoryLogStore

from .batches import numbered
from .broker_calls import Clock, Part

PEERS = tuple(PeerNode(number, "127.0.0.1", 19090 + number) for number in (1, 2, 3))
LATEST = -1


@dataclass
class Waiting:
    """A request that is not answered yet."""

    node: int
    request: ReceivedRequest
    kind: type[ApiMessage]
    version: int
    until: float


@dataclass
class ClusterBench:
    """Three nodes; topic `t` has one partition with three replicas, led by node `lead`."""

    clock: Clock = field(default_factory=Clock)
    limits: BrokerNodeLimits = field(default_factory=lambda: BrokerNodeLimits(default_replicas=3))
    timing: ClusterTiming = field(default_factory=ClusterTiming)
    settings: tuple[tuple[str, str], ...] = (("min.insync.replicas", "2"),)
    replicas: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        moment = self.clock.moment
        self.cluster = ReplicatedCluster(
            PEERS, log_store=MemoryLogStore(), moment=moment, limits=self.limits, timing=self.timing
        )
        _ = self.cluster.controller.create("t", 1, self.settings, 3)
        self.cluster.run_until_stable(moment)
        self.cluster.reassign("t", 0, self.replicas, moment)
        self.cluster.elect("t", 0, self.replicas[0], moment)

    @property
    def leader(self) -> int:
        """Who leads by the controller's word."""
        return self.cluster.controller.placements[self.cluster.key("t", 0)].leader

    @property
    def epoch(self) -> int:
        return self.cluster.controller.placements[self.cluster.key("t", 0)].epoch

    @property
    def in_sync(self) -> set[int]:
        return set(self.cluster.controller.placements[self.cluster.key("t", 0)].in_sync)

    def pass_s(self, seconds: float, *, step: float = 0.5) -> None:
        """Let time pass in steps, as a loop that looks at its clock would."""
        left = seconds
        while left > 0:
            self.clock.pass_ms(round(min(step, left) * 1000))
            left -= step
            self.cluster.upkeep(self.clock.moment)

    def log_end(self, node: int) -> int:
        partition = self.cluster.node(node).replica_by_key(self.cluster.key("t", 0))
        assert partition is not None
        return partition.log.end_offset

    def log(self, node: int) -> list[bytes]:
        """All batches of a node, seen by readers or not."""
        partition = self.cluster.node(node).replica_by_key(self.cluster.key("t", 0))
        assert partition is not None
        return partition.log.read(0, 1 << 40, below=1 << 40)

    def high_watermark(self, node: int) -> int:
        partition = self.cluster.node(node).replica_by_key(self.cluster.key("t", 0))
        assert partition is not None
        return partition.log.high_watermark

    # Requests

    def start(self, node: int, request: ApiMessage, version: int, client: str = "test") -> ApiMessage | Waiting:
        """Give a request in; it is answered, or waits."""
        request.API_VERSION = version
        request.with_header(1, client)
        asked = decode(request.encode(header=True), arrived=self.clock.now)
        kind = ResponseClassRegistry.get_response_class(request.header)
        return self._taken(node, asked, kind, version)

    def go_on(self, waiting: Waiting) -> ApiMessage | Waiting:
        """Give a request in again that waited."""
        return self._taken(waiting.node, waiting.request, waiting.kind, waiting.version)

    def _taken(self, node: int, request: ReceivedRequest, kind: type[ApiMessage], version: int) -> ApiMessage | Waiting:
        outcome = self.cluster.apply(node, request, self.clock.moment)
        if isinstance(outcome, DelayedResponse):
            return Waiting(node, with_pending(request, outcome), kind, version, outcome.deadline)
        assert isinstance(outcome, RequestReply)
        assert outcome.data, outcome.why
        return kind.decode(outcome.data, version=version, header=True, framed=True)

    def ask(self, node: int, request: ApiMessage, version: int, client: str = "test") -> ApiMessage:
        """A request that is answered at once."""
        answer = self.start(node, request, version, client)
        assert not isinstance(answer, Waiting)
        return answer

    def offer(
        self, data: bytes, *, node: int | None = None, acks: int = -1, timeout_ms: int = 2000, version: int = 11
    ) -> Part | Waiting:
        """Send a batch to a node, the leader if none is named."""
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=data)
        entry = ProduceRequest.TopicProduceData(
            name="t", topic_id=self.cluster.controller.topic("t").id, partition_data=[part]
        )
        request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=[entry])
        answer = self.start(self.leader if node is None else node, request, version)
        return answer if isinstance(answer, Waiting) else part_of(answer)

    def finish(self, waiting: Part | Waiting) -> Part:
        """The answer to a batch that waited and need not any more."""
        assert isinstance(waiting, Waiting)
        answer = self.go_on(waiting)
        assert not isinstance(answer, Waiting)
        return part_of(answer)

    def send(
        self, sequence: int, *, count: int = 1, epoch: int = 0, node: int | None = None, acks: int = -1, pid: int = 7
    ) -> tuple[int, int]:
        """Error and base offset of a batch that is answered at once."""
        found = self.offer(numbered(pid, epoch, sequence, count, self.clock.wall_ms), node=node, acks=acks)
        assert not isinstance(found, Waiting)
        return found.error_code, found.base_offset

    def told(self, node: int) -> list[tuple[int, int, int]] | int:
        """Id, epoch and last sequence of the producers that a node tells of, or its error."""
        asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
        (part,) = self.ask(node, DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions
        if part.error_code:
            code: int = part.error_code
            return code
        return [(one.producer_id, one.producer_epoch, one.last_sequence) for one in part.active_producers]

    def latest(self, node: int, *, epoch: int = -1, timestamp: int = LATEST) -> tuple[int, int]:
        """Error and offset of ListOffsets."""
        kind = ListOffsetsRequest.ListOffsetsTopic
        part = kind.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[kind(name="t", partitions=[part])])
        (one,) = self.ask(node, request, 7).topics[0].partitions
        return one.error_code, one.offset

    def epoch_end(self, node: int, asked: int, *, current: int = -1) -> tuple[int, int, int]:
        """Error, epoch and end offset of OffsetForLeaderEpoch."""
        kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=asked)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic="t", partitions=[part])])
        (one,) = self.ask(node, request, 4).topics[0].partitions
        return one.error_code, one.leader_epoch, one.end_offset

    def metadata(self, node: int) -> tuple[int, int, int, set[int]]:
        """Error, leader, leader epoch and in-sync replicas, as a node tells them."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
        (one,) = self.ask(node, request, 9).topics[0].partitions
        return one.error_code, one.leader_id, one.leader_epoch, set(one.isr_nodes)

    def fetched(self, node: int, offset: int = 0) -> bytes:
        """What a consumer reads."""
        part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=0,
            topics=[FetchRequest.FetchTopic(topic="t", partitions=[part])],
            forgotten_topics_data=[],
        )
        (one,) = self.ask(node, request, 11).responses[0].partitions
        assert one.error_code == 0, one.error_code
        return bytes(one.records or b"")


def part_of(answer: ApiMessage) -> Part:
    """The answer's only partition."""
    (part,) = answer.responses[0].partition_responses
    assert isinstance(part, Part)
    return part
