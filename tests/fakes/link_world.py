"""Links of a shard over a network whose every step the test takes: real leases, accumulator, sender and connections."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kafka.protocol.producer.produce import ProduceResponse
from penstock.config.model import KafkaSettings
from penstock.producer.network.socket_options import ALL_ACKS, produce_options
from penstock.producer.sender.broker_link import BrokerLink, BrokerLinks, LinkRules, LinkWatch
from penstock.wire.messages import BatchBounds, Node, Nodes

from .fake_net import MIDDLE, FakeNet, FakeSocket
from .scripted_broker import RANGES, Asked
from .shard_bench import TOPIC, ShardBench

BUDGET = 1 << 20


class LoggedJournal:
    """Keeps cuts where the bench looks for them, and tells the network's log of events when each was recorded."""

    free_slots = 1000

    def __init__(self, net: FakeNet, bench: ShardBench) -> None:
        self._net = net
        self._bench = bench

    def record(self, partition: int, generation: int, first: int, count: int, *, producer_id: int, epoch: int) -> int:
        self._net.events.append(f"cut of {partition}")
        self._bench.serial += 1
        self._bench.journal[self._bench.serial] = BatchBounds(first, count, epoch)
        return self._bench.serial

    def release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            del self._bench.journal[slot]


class LinkWorld:
    """`send` is a round of the loop; brokers answer when the test says so."""

    def __init__(
        self,
        net: FakeNet,
        *,
        nodes: int = 1,
        acks: int = ALL_ACKS,
        request_timeout_ms: int = 30_000,
        watch: LinkWatch | None = None,
    ) -> None:
        self.net = net
        self.bench = ShardBench()
        self.net.now = self.bench.now
        kafka = KafkaSettings.model_validate({"bootstrap.servers": "x:1", "request.timeout.ms": request_timeout_ms})
        options = produce_options(kafka, acks=acks)._replace(system=net.system)
        rules = LinkRules(
            client_id="shard", request_bytes_max=1 << 20, request_timeout_ms=request_timeout_ms, in_flight_max=5,
            zstd=False, rng=lambda: MIDDLE, acks=acks, watch=watch,
        )  # fmt: skip
        self.links = BrokerLinks(
            cast("Any", net.loop),
            options,
            rules,
            self.bench.table,
            LoggedJournal(net, self.bench),
        )
        self.place(*range(1, nodes + 1))

    def place(self, *nodes: int) -> None:
        """These are the nodes now."""
        rows = [Node(node, f"10.0.0.{node}", 9092, "", BUDGET) for node in nodes]
        self.bench.table.apply(Nodes(rows), now=self.net.now)
        self.links.follow()

    def link(self, node: int = 1) -> BrokerLink:
        return self.links.by_node[node]

    def socket(self, node: int = 1) -> FakeSocket:
        """The newest towards a node."""
        return [made for made in self.net.sockets if made.address[0] == f"10.0.0.{node}"][-1]

    def send(self, now: float | None = None) -> None:
        """A round. What the leaders are asked first has been answered, beside the connection."""
        self.net.now = self.net.now if now is None else now
        self.bench.now = self.net.now
        self.bench.tell()
        self.bench.fill()
        self.links.tick(self.net.now)
        self.bench._told()

    def connect(self, node: int = 1, ranges: dict[int, tuple[int, int]] | None = None, *, throttle_ms: int = 0) -> None:
        """The connection that was just begun gets ready."""
        self.socket(node).accept()
        _ = self.socket(node).greet({**RANGES, 0: (3, 12), **(ranges or {})}, throttle_ms)
        self.send()

    def answer(
        self, parts: Sequence[int], *, node: int = 1, code: int = 0, offset: int = 1, throttle_ms: int = 0
    ) -> Asked:
        """The next Produce request of a node is answered."""
        asked = self.socket(node).read()
        assert asked.api_key == 0
        self.socket(node).answer(asked, produce_answer(asked.version, parts, code, offset, throttle_ms))
        self.bench._told()
        return asked

    def warm(self, parts: Sequence[int], node: int = 1) -> None:
        """One batch of each partition is acknowledged on the connection: from here on several may be in flight."""
        for part in parts:
            self.bench.put(part, 1)
        self.send()
        if not self.link(node).connection.ready:
            self.connect(node)
        _ = self.answer(parts, node=node)


def produce_answer(version: int, parts: Sequence[int], code: int, offset: int, throttle_ms: int) -> bytes:
    rows = [
        ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
            index=part, error_code=code, base_offset=offset, log_append_time_ms=-1, log_start_offset=0,
            record_errors=[], error_message=None, current_leader=None,
        )
        for part in parts
    ]  # fmt: skip
    topic = ProduceResponse.TopicProduceResponse(name=TOPIC, partition_responses=rows)
    response = ProduceResponse(responses=[topic], throttle_time_ms=throttle_ms, node_endpoints=[], version=version)
    return (b"\0" if version >= 9 else b"") + bytes(response.encode())


@contextmanager
def link_world(**options: Any) -> Iterator[LinkWorld]:
    world = LinkWorld(FakeNet(), **options)
    try:
        yield world
    finally:
        world.links.close()
