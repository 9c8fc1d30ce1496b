"""Connections to the nodes of one `PartitionTable`: drains batches, journals their cuts, sends, and returns responses.

A cut must be in the journal before its batch reaches the transport (HO-12).
"""

from collections.abc import Callable
from typing import Final, Protocol

from ...runtime.logs import get
from ...runtime.loop import Loop
from ...wire.messages import Node, NodeLoad
from ..accumulator.batch import BatchBoundsJournal, ProducerBatch
from ..metadata.cluster import BrokerAddress
from ..network.connection import KafkaConnection
from ..network.resolver import Resolver
from ..network.socket_options import ALL_ACKS, NO_ACKS, ConnectionOptions
from ..network.traffic import UNCOUNTED, TrafficWatch
from ..protocol.error_codes import NONE, UNSUPPORTED_VERSION
from ..protocol.framing import StreamError
from ..protocol.produce_request import (
    API_KEY,
    TOPIC_ID_FROM,
    VERSION_MAX,
    VERSION_MIN,
    ZSTD_FROM,
    PartitionData,
    PartitionProduceResponse,
    TopicData,
    decode_produce_response,
    encode_produce_request,
)
from ..protocol.responses import ResponseOrBytes
from .gap_check import ReplicaMetadataRequest
from .idempotent import IdempotentPartition
from .leader_checks import LEAST_VERSION, LeaderCheckRequest, metadata_request, read_replica, read_results, request_for
from .node_latency import NodeLatencyStats
from .partitions import PartitionTable
from .ready_nodes import InFlightRequest, SendPermit

Tag = InFlightRequest[IdempotentPartition] | LeaderCheckRequest | ReplicaMetadataRequest
"""A request in flight on a connection."""


class LinkWatch(TrafficWatch, Protocol):
    """Observer of the traffic of all links, for metrics."""

    def request_sent(self, entries: list[tuple[IdempotentPartition, ProducerBatch]], now: float) -> None:
        """A Produce request with these batches was given to the transport."""

    def request_answered(self, node: int, latency_s: float, now: float) -> None:
        """A Produce request was answered after `latency_s`."""


class LinkRules:
    """Request settings that all links of a process share, and the endpoints they learn."""

    def __init__(
        self,
        *,
        client_id: str,
        request_bytes_max: int,
        request_timeout_ms: int,
        in_flight_max: int,
        zstd: bool,
        rng: Callable[[], float],
        acks: int = ALL_ACKS,
        transactional_id: str | None = None,
        watch: LinkWatch | None = None,
    ) -> None:
        self.client_id: Final = client_id
        self.request_bytes_max: Final = request_bytes_max
        self.request_timeout_ms: Final = request_timeout_ms
        self.in_flight_max: Final = in_flight_max
        self.versions: tuple[int, int] = (ZSTD_FROM if zstd else VERSION_MIN, VERSION_MAX)
        """Lowest and highest Produce version; the transaction version narrows them (TRX-2)."""
        self.transactional_id: Final = transactional_id
        self.watch: Final = watch
        self.rng: Final = rng
        self.acks: Final = acks
        self.endpoints: Final[dict[int, BrokerAddress]] = {}
        """Leader endpoints from Produce responses since the last `take_endpoints` (KIP-951)."""


class BrokerLink:
    """The connection to one node."""

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        node: Node,
        *,
        options: ConnectionOptions,
        rules: LinkRules,
        table: PartitionTable,
        journal: BatchBoundsJournal,
    ) -> None:
        self.node: Final = node.node
        self._rules: Final = rules
        self._table: Final = table
        self._journal: Final = journal
        self.latency_stats: Final = NodeLatencyStats()
        self._logged_reason = ""
        """The last connection error that was logged since the node was last connected."""
        self._clock: Final = options.system.now
        self.connection: Final[KafkaConnection[Tag]] = KafkaConnection(
            loop,
            resolver,
            node.host,
            node.port,
            options=options,
            owner=self,
            rng=rules.rng,
            traffic=UNCOUNTED if rules.watch is None else rules.watch.traffic(node.node, now=self._clock()),
        )

    # --- called by the connection ------------------------------------------------------------------------------------

    def connection_ready(self, connection: KafkaConnection[Tag]) -> None:
        """Log the connection, and check topic ids if Produce goes by topic name; the next round sends."""
        version = self._produce_version()
        if version is not None and version < TOPIC_ID_FROM:
            self._table.confirm_topics(self.node)
        self._logged_reason = ""
        get().info("node_connected", node=self.node, host=connection.host, port=connection.port)

    def connection_answered(self, connection: KafkaConnection[Tag], tag: Tag, answer: ResponseOrBytes) -> None:
        """Apply the response to a Produce request, a leader check or a replica query."""
        now = self._clock()
        if isinstance(tag, LeaderCheckRequest):
            self._table.check_answered(tag, read_results(tag.check, answer), now=now, chance=self._rules.rng())
            return
        if isinstance(tag, ReplicaMetadataRequest):
            self._table.replica_queries.complete(self.node, tag, read_replica(answer))
            return
        assert isinstance(answer, bytes), "Produce is sent as bytes and answered so"
        if self._rules.acks == NO_ACKS:
            self._table.request_answered(tag, _outcomes_without_acks(tag), now=now, chance=self._rules.rng())
            return
        try:
            told = decode_produce_response(tag.version, answer)
        except StreamError as error:
            self._table.request_lost(tag, str(error), now=now, chance=self._rules.rng())
            connection.disconnect(str(error))
            return
        connection.throttle(API_KEY, tag.version, told.throttle_ms, now)
        if self._rules.watch is not None:
            self._rules.watch.request_answered(self.node, now - tag.sent_at, now)
        self._rules.endpoints.update((place.node, BrokerAddress(*place)) for place in told.endpoints)
        self._table.request_answered(tag, told.outcomes, now=now, chance=self._rules.rng())

    def connection_lost(
        self,
        connection: KafkaConnection[Tag],  # noqa: ARG002 - there is one
        tags: list[Tag],
        reason: str,
    ) -> None:
        """Fail every request in flight: none will be answered."""
        if tags or reason != self._logged_reason:
            # Not for every attempt: a node may be down, or refuse the login, for days.
            get().warning("node_disconnected", node=self.node, reason=reason, requests=len(tags))
        self._logged_reason = reason
        self._lose(tags, reason)
        for lease in self._table.partitions.values():
            if lease.node == self.node:
                # Its partitions may have new leaders. One hint suffices: it refreshes all metadata.
                lease.hint(-1, -1)
                break

    def _lose(self, tags: list[Tag], reason: str) -> None:
        now = self._clock()
        for tag in tags:
            if isinstance(tag, LeaderCheckRequest):
                self._table.check_answered(tag, [], now=now, chance=self._rules.rng())
            elif isinstance(tag, ReplicaMetadataRequest):
                self._table.replica_queries.complete(self.node, tag, None)
            else:
                self._table.request_lost(tag, reason, now=now, chance=self._rules.rng())

    # --- rounds ------------------------------------------------------------------------------------------------------

    def send(self, now: float) -> None:
        """Send the leader checks, replica queries and batches that are ready; connect first if necessary."""
        questions = self._table.due_checks(self.node, now=now)
        has_batches = self._table.ready_partitions.has_work(self.node, now=now)
        if has_batches:
            self.latency_stats.update(could_send=self._takes_batch(now), now=now)
        asks_replica = self._table.replica_queries.has_request(self.node)
        if not questions and not has_batches and not asks_replica:
            return
        if not self.connection.ready:
            self.connection.connect()
            return
        for asked in questions:
            if self.connection.can_send(now):
                version = self.connection.send(request_for(asked), asked, least=LEAST_VERSION[asked.check], now=now)
                self._table.check_sent(asked, known=version is not None, now=now)
        if asks_replica and self.connection.can_send(now):
            about = self._table.replica_queries.take_request(self.node)
            _ = self.connection.send(metadata_request(about.topics), about, now=now)
        version = self._produce_version()
        if version is None:
            self._table.halt_node(
                self.node, UNSUPPORTED_VERSION, "the broker takes no Produce request that we can send"
            )
            return
        while self._takes_batch(now):
            permit = SendPermit(self.connection.incarnation, self._journal.free_slots, self._rules.in_flight_max)
            entries = self._table.drain(self.node, permit, bytes_max=self._rules.request_bytes_max, now=now)
            if not entries:
                return
            self._record(entries)
            self._send(version, entries, now)

    def _takes_batch(self, now: float) -> bool:
        return self.connection.in_flight < self._rules.in_flight_max and self.connection.can_send(now)

    def _produce_version(self) -> int | None:
        return self.connection.version_of(API_KEY, *self._rules.versions)

    def _record(self, entries: list[tuple[IdempotentPartition, ProducerBatch]]) -> None:
        """Journal the cuts of these batches and all other unjournaled cuts of their leases (8.5, JRN-5)."""
        for lease, _ in entries:
            if not lease.unjournaled:
                continue
            for batch in lease.unresolved:
                if batch.slot < 0:
                    batch.slot = self._journal.record(
                        lease.partition,
                        lease.generation,
                        batch.first,
                        batch.count,
                        producer_id=batch.producer_id,
                        epoch=batch.epoch,
                    )
            lease.unjournaled = 0
            if lease.replaced_slots:
                self._journal.release(lease.replaced_slots)
                lease.replaced_slots = []

    def _send(self, version: int, entries: list[tuple[IdempotentPartition, ProducerBatch]], now: float) -> None:
        if version >= TOPIC_ID_FROM and any(lease.topic_id is None for lease, _ in entries):
            version = TOPIC_ID_FROM - 1
        correlation_id = self.connection.next_correlation_id()
        framed = encode_produce_request(
            version,
            correlation_id,
            self._rules.client_id,
            self._rules.acks,
            self._rules.request_timeout_ms,
            _by_topic(entries),
            transactional_id=self._rules.transactional_id,
        )
        flight = self._table.ready_partitions.begin_request(self.node, self.connection.incarnation, version, entries)
        flight.sent_at = now
        self._table.request_sent(flight, now=now)
        if self._rules.watch is not None:
            self._rules.watch.request_sent(entries, now)
        self.connection.send_raw(
            framed.buffers,
            framed.size,
            correlation_id,
            flight,
            expects_answer=self._rules.acks != NO_ACKS,
            now=now,
        )

    def load(self, now: float, *, wanted: bool) -> NodeLoad:
        """The node's entry in `ShardLoad`. `wanted`: there are batches for the node, ready or waiting for a backoff."""
        return NodeLoad(
            self.node,
            self.connection.state.name.lower(),
            self.connection.in_flight,
            self._table.ready_partitions.queued(self.node),
            self.connection.round_trip_us,
            max(0, int((self.connection.throttled_until - now) * 1000)),
            self.connection.last_error,
            # Report 0 once nothing is left for the node: with a stale latency it would never be chosen again.
            round(self.latency_stats.waited_s * 1000) if wanted else 0,
        )

    def close(self, reason: str) -> None:
        """Close the connection of a node that this process no longer serves."""
        self._lose(self.connection.close(), reason)


def _outcomes_without_acks(flight: InFlightRequest[IdempotentPartition]) -> list[PartitionProduceResponse]:
    """Outcomes of a request with acks=0: every batch written counts as acknowledged, at an unknown offset."""
    by_id = flight.version >= TOPIC_ID_FROM
    return [
        PartitionProduceResponse(
            topic="" if by_id else lease.topic,
            topic_id=lease.topic_id if by_id else None,
            index=lease.index,
            code=NONE,
            base_offset=-1,
            log_append_ms=-1,
            log_start=-1,
            record_errors=[],
            message="",
            leader_hint=None,
        )
        for lease, _ in flight.entries
    ]


def _by_topic(entries: list[tuple[IdempotentPartition, ProducerBatch]]) -> list[TopicData]:
    """Group the batches by topic, as Produce requires."""
    topics: dict[str, TopicData] = {}
    parts: dict[str, list[PartitionData]] = {}
    for lease, batch in entries:
        assert batch.data is not None
        if lease.topic not in topics:
            parts[lease.topic] = []
            topics[lease.topic] = TopicData(lease.topic, lease.topic_id, parts[lease.topic])
        parts[lease.topic].append(PartitionData(lease.index, [batch.data], batch.size))
    return list(topics.values())


class BrokerLinks:
    """One link per node of the table."""

    def __init__(
        self,
        loop: Loop,
        options: ConnectionOptions,
        rules: LinkRules,
        table: PartitionTable,
        journal: BatchBoundsJournal,
    ) -> None:
        self._loop = loop
        self._resolver = Resolver(loop)
        self._options = options
        self._rules = rules
        self._table = table
        self._journal = journal
        self.by_node: dict[int, BrokerLink] = {}

    def follow(self) -> None:
        """Open, move and close links after the table's nodes changed."""
        for gone in self.by_node.keys() - self._table.nodes.keys():
            self.by_node.pop(gone).close("the node is served by another shard")
        for node in self._table.nodes.values():
            link = self.by_node.get(node.node)
            if link is None:
                self.by_node[node.node] = BrokerLink(
                    self._loop,
                    self._resolver,
                    node,
                    options=self._options,
                    rules=self._rules,
                    table=self._table,
                    journal=self._journal,
                )
            else:
                link.connection.move_to(node.host, node.port)

    def take_endpoints(self) -> dict[int, BrokerAddress]:
        """Leader endpoints from Produce responses since the last call, by node (KIP-951)."""
        if not self._rules.endpoints:
            return {}
        taken = dict(self._rules.endpoints)
        self._rules.endpoints.clear()
        return taken

    def tick(self, now: float) -> None:
        """Run what is due on every connection, then send."""
        for link in self.by_node.values():
            link.connection.tick(now)
            link.send(now)
            at = link.connection.next_deadline()
            if at is not None and at <= now:
                # `send` made a connection attempt due, or wrote a request that expects no response.
                link.connection.tick(now)

    def loads(self, now: float) -> list[NodeLoad]:
        """The entries of all nodes for `ShardLoad`."""
        busy = [lease for lease in self._table.partitions.values() if lease.unresolved or lease.queue.has_open]
        wanted = {lease.node for lease in busy}
        # Batches behind a full window are not ready to send, but still wait for the node.
        for node in {lease.node for lease in busy if lease.unresolved and lease.queue.has_open}:
            if node in self.by_node:
                self.by_node[node].latency_stats.update(could_send=False, now=now)
        return [link.load(now, wanted=node in wanted) for node, link in self.by_node.items()]

    def next_deadline(self, now: float) -> float | None:
        """When to call `tick` again, if nothing else happens."""
        wanted = [self._table.ready_partitions.next_deadline()]
        for node, link in self.by_node.items():
            wanted.append(link.connection.next_deadline())
            if link.connection.can_send(now):
                # Otherwise the connection's own deadline covers it.
                wanted.append(self._table.next_check_at(node))
            if link.connection.ready and link.connection.throttled_until > now:
                wanted.append(link.connection.throttled_until)
        return min((at for at in wanted if at is not None), default=None)

    def close(self) -> None:
        """Drop all connections."""
        for link in self.by_node.values():
            _ = link.connection.close()
        self._resolver.close()
