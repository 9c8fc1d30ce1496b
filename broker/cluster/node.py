"""One node of the cluster: its identity, the topics it knows, and the logs of its replicas."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ..groups.offsets_table import GroupTable
from ..log import internal_topics
from ..log.batches import Verify
from ..log.error_codes import ErrorCode
from ..log.partition_log import PartitionLog
from ..log.ports import BrokerTime, LogStore, TopicStore
from ..log.topics import BrokerTopic, TopicRules
from ..transactions.pending_ends import PendingEnds
from ..transactions.table import TransactionTable
from .acls import Authorizer
from .faults import Faults, MarkerRules
from .leadership import BrokerMetadataCache, ReplicaPlacement, StaticBrokerMetadata
from .quotas import Quotas

NODES_MAX: Final = 1024
PRODUCER_ID_BLOCK: Final = 1 << 20
"""Producer ids that one start of one node may allocate."""

STARTS_MAX: Final = 1 << 31
NO_ID: Final = uuid.UUID(int=0)
EVERYTHING: Final = 1 << 62


class PeerNode(NamedTuple):
    """A node and the address at which clients reach it."""

    node_id: int
    host: str
    port: int


class BrokerNodeLimits(NamedTuple):
    """Limits that the operator chose."""

    auto_create_topics: bool = False
    default_partitions: int = 1
    default_replicas: int = 1
    log_bytes_max: int = 4 << 30
    """Total for all logs of this node; batches beyond it are rejected."""

    verify: Verify = Verify.RECORDS
    producer_id_expiration_ms: int = 86_400_000
    producer_id_check_interval_s: float = 600.0
    offsets_max: int = 100_000
    """Most committed offsets that the node keeps."""

    offsets_retention_ms: int = 604_800_000
    """How long a group without members keeps an offset after its commit."""

    transaction_version: int = 2
    """2: as Kafka 4; 1: Kafka 4 with the feature downgraded; 0: brokers before 4.0, with their API versions."""

    transaction_timeout_max_ms: int = 900_000
    transaction_check_interval_s: float = 10.0
    """Time between two checks for transactions that are open too long."""

    transactional_id_expiration_ms: int = 604_800_000
    marker_delay_ms: int = 0
    """From the end of a transaction to its markers; 0: written at the same moment, right after the response."""

    coordinator_load_ms: int = 0
    """How long a new coordinator loads its log before it responds."""

    @property
    def is_kafka_4(self) -> bool:
        """Whether the broker behaves as Kafka 4.0 or later, whatever transaction protocol version is finalised."""
        return self.transaction_version > 0


@dataclass(slots=True)
class BrokerPartition:
    """A replica on this node, and the node's knowledge of the other replicas."""

    topic: BrokerTopic
    rules: TopicRules
    log: PartitionLog
    placement: ReplicaPlacement
    needs_truncation: bool = False
    """As follower: its log has not yet been compared with its leader's."""

    replica_end_offsets: dict[int, int] = field(default_factory=dict)
    """As leader: end offset of each replica's log."""

    caught_up_at: dict[int, float] = field(default_factory=dict)
    """As leader: when each replica last had the whole log (seconds)."""

    @property
    def min_in_sync(self) -> int:
        """Number of in-sync replicas that a batch with acks -1 needs; never more than the partition has replicas."""
        return min(self.rules.min_insync_replicas, len(self.placement.replicas))

    def advance_high_watermark(self) -> None:
        """As leader: advance the high watermark to the offset that all in-sync replicas have, if enough are in sync."""
        if len(self.placement.in_sync) < self.min_in_sync:
            return
        others = self.placement.in_sync
        end = min((self.replica_end_offsets.get(other, 0) for other in others), default=0)
        self.log.high_watermark = max(self.log.high_watermark, min(end, self.log.end_offset))


class ReachableNodes(Protocol):
    """Access to the nodes that a node can reach directly."""

    def leader(self, asking: BrokerNode, topic: BrokerTopic, index: int) -> BrokerNode | None:
        """Return the leader that `asking` knows for a partition, if that node agrees that it leads and is reachable."""
        ...


class OnlySelf:
    """A node in its own process, which can reach only itself."""

    def leader(self, asking: BrokerNode, topic: BrokerTopic, index: int) -> BrokerNode | None:
        """Return the asking node if it leads the partition."""
        return None if isinstance(asking.partition(topic, index), ErrorCode) else asking


class BrokerNode:
    """The state of one broker node; the modules in `requests` apply requests to it."""

    def __init__(
        self,
        node_id: int,
        peers: tuple[PeerNode, ...],
        *,
        start: int,
        limits: BrokerNodeLimits,
        topic_store: TopicStore,
        log_store: LogStore,
        moment: BrokerTime,
        placements: BrokerMetadataCache | None = None,
        logs: Mapping[tuple[uuid.UUID, int], PartitionLog] | None = None,
        neighbours: ReachableNodes | None = None,
        marker_rules: MarkerRules | None = None,
    ) -> None:
        """Join the cluster as `node_id`; `start` must be a number that no earlier start of this node used.

        Without `placements` every partition has one replica. `logs` come from an earlier start, already reloaded.
        Without `neighbours` the node reaches only itself, which suits a cluster of one. Nodes may share `marker_rules`.
        """
        self.peers = tuple(sorted(peers))
        self.by_id = {peer.node_id: peer for peer in self.peers}
        assert node_id in self.by_id
        assert len(self.by_id) == len(self.peers)
        assert 0 <= node_id < NODES_MAX
        assert 0 <= start < STARTS_MAX
        self.node_id = node_id
        self.limits = limits
        self.faults = Faults()
        self.authorizer = Authorizer()
        self.quotas = Quotas()
        self.changes = 0
        """Increases with appends, high-watermark moves and topic changes; delayed requests are then retried."""

        self.reachable_nodes = neighbours or OnlySelf()
        self.marker_rules = marker_rules or MarkerRules()
        self.transactions = TransactionTable()
        self.pending_ends = PendingEnds()
        self.groups = GroupTable()
        self.metadata_cache: BrokerMetadataCache = placements or StaticBrokerMetadata(
            [peer.node_id for peer in self.peers]
        )
        self._topic_store = topic_store
        self._log_store = log_store
        self._topics: dict[str, BrokerTopic] = {}
        self._ids: dict[uuid.UUID, BrokerTopic] = {}
        self._partitions: dict[tuple[uuid.UUID, int], BrokerPartition] = {}
        self._logs = dict(logs or {})
        self._next_producer_id = (start * NODES_MAX + node_id) * PRODUCER_ID_BLOCK
        self._last_producer_id = self._next_producer_id + PRODUCER_ID_BLOCK - 1
        self._next_expiry = moment.now + limits.producer_id_check_interval_s
        self.next_transaction_check = moment.now + limits.transaction_check_interval_s
        self._load_topics(moment)

    @property
    def cluster_id(self) -> str:
        """The same on every node with the same peers."""
        return "penstock-" + uuid.uuid5(NO_ID, repr(self.peers)).hex[:13]

    # Topics

    def refresh(self, moment: BrokerTime) -> None:
        """Apply topics that other nodes created or deleted, and load the logs of new topics."""
        if self._topic_store.changed():
            self._load_topics(moment)

    def _load_topics(self, moment: BrokerTime) -> None:
        self._topics = {topic.name: topic for topic in self._topic_store.all()}
        self._ids = {topic.id: topic for topic in self._topics.values()}
        for key in [key for key in self._partitions if key[0] not in self._ids]:
            gone = self._partitions.pop(key).topic
            self._log_store.discard(gone)
            self._unload_coordinator_state(gone.name, key[1])
        for topic in self._topics.values():
            for index in range(topic.partitions):
                self._apply_placement(topic, index, moment)
        self.changes += 1

    def _apply_placement(self, topic: BrokerTopic, index: int, moment: BrokerTime) -> None:
        """Hold or drop this node's replica according to its placement; become leader or follower if that changed."""
        placement = self.metadata_cache.placement(topic, index)
        key = (topic.id, index)
        if self.node_id not in placement.replicas:
            if self._partitions.pop(key, None) is not None:
                self._unload_coordinator_state(topic.name, index)
            return
        known = self._partitions.get(key)
        if known is None:
            log = self._logs.pop(key, None) or self._load(topic, index, moment)
            known = self._partitions[key] = BrokerPartition(topic, topic.rules, log, placement, needs_truncation=True)
            self._become_leader_or_follower(known, index, moment)
            return
        moved = known.placement.epoch != placement.epoch or known.placement.leader != placement.leader
        known.topic, known.rules, known.placement = topic, topic.rules, placement
        if moved:
            self._become_leader_or_follower(known, index, moment)
        elif placement.leader == self.node_id:
            known.advance_high_watermark()

    def _become_leader_or_follower(self, partition: BrokerPartition, index: int, moment: BrokerTime) -> None:
        """Become leader or follower, according to the placement."""
        leads = partition.placement.leader == self.node_id
        partition.needs_truncation = not leads
        partition.replica_end_offsets.clear()
        partition.caught_up_at = dict.fromkeys(partition.placement.replicas, moment.now)
        if leads:
            partition.log.begin_epoch(partition.placement.epoch)
            partition.replica_end_offsets[self.node_id] = partition.log.end_offset
            partition.advance_high_watermark()
        self._load_coordinator_state(partition, index, moment) if leads else self._unload_coordinator_state(
            partition.topic.name, index
        )

    def _load_coordinator_state(self, partition: BrokerPartition, index: int, moment: BrokerTime) -> None:
        """Load the log of an internal topic to become the coordinator for its keys."""
        name = partition.topic.name
        if name not in internal_topics.NAMES:
            return
        ready_at = moment.now + self.limits.coordinator_load_ms / 1000
        batches = partition.log.read(partition.log.start_offset, EVERYTHING, below=EVERYTHING)
        if name == internal_topics.TRANSACTIONS:
            self.transactions.load(index, batches, ready_at)
        else:
            self.groups.load(index, batches, ready_at)

    def _unload_coordinator_state(self, name: str, index: int) -> None:
        if name == internal_topics.TRANSACTIONS:
            self.transactions.unload(index)
        elif name == internal_topics.OFFSETS:
            self.groups.unload(index)

    def _load(self, topic: BrokerTopic, index: int, moment: BrokerTime) -> PartitionLog:
        log = PartitionLog()
        for data in self._log_store.load(topic, index):
            log.add(data)
        log.delete_before(self._log_store.start_offset(topic, index))
        # The only replica has acknowledged everything in the store.
        log.high_watermark = log.end_offset
        log.reload(clean=False, wall_ms=moment.wall_ms, after_ms=self.limits.producer_id_expiration_ms)
        return log

    def topics(self) -> list[BrokerTopic]:
        """Return all topics, sorted by name."""
        return sorted(self._topics.values())

    def topic(self, name: str) -> BrokerTopic | None:
        """Return the topic that currently has this name."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> BrokerTopic | None:
        """Return the topic with this id, if it was not deleted."""
        return self._ids.get(topic_id)

    def create_topic(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], moment: BrokerTime, replicas: int = 1
    ) -> BrokerTopic | None:
        """Create a topic, or return None when the name exists; internal topics get fixed partitions and settings.

        Raises:
            ControllerUnreachableError: this node does not reach the controller.
        """
        if name in internal_topics.NAMES:
            replicas = min(self.metadata_cache.replicas_max, internal_topics.REPLICAS_MAX)
            partitions, settings = internal_topics.PARTITIONS, internal_topics.settings_of(name, replicas)
        topic = self._topic_store.create(name, partitions, settings, replicas)
        self.refresh(moment)
        return topic

    def alter_topic(self, topic: BrokerTopic, settings: tuple[tuple[str, str], ...], moment: BrokerTime) -> bool:
        """Change the settings of a topic; False when it no longer exists."""
        done = self._topic_store.alter(topic, settings)
        self.refresh(moment)
        return done

    def delete_topic(self, topic: BrokerTopic, moment: BrokerTime) -> bool:
        """Delete a topic with its records; False when it no longer exists."""
        done = self._topic_store.delete(topic)
        self.refresh(moment)
        return done

    # Partitions

    def leader(self, topic: BrokerTopic, partition: int) -> PeerNode | None:
        """Return the leader of a partition that this node knows; None when it has no leader."""
        return self.by_id.get(self.metadata_cache.placement(topic, partition).leader)

    def partition(self, topic: BrokerTopic, index: int) -> BrokerPartition | ErrorCode:
        """Return the partition if it exists and this node leads it."""
        found = self.replica(topic, index)
        if isinstance(found, ErrorCode) or found.placement.leader == self.node_id:
            return found
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def replica(self, topic: BrokerTopic, index: int) -> BrokerPartition | ErrorCode:
        """Return the partition if it exists and this node has a replica of it."""
        if not 0 <= index < topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._partitions.get((topic.id, index), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def replica_by_key(self, key: tuple[uuid.UUID, int]) -> BrokerPartition | None:
        """Return the replica of this topic id and partition, if this node has one."""
        return self._partitions.get(key)

    def replicas(self) -> Iterator[tuple[tuple[uuid.UUID, int], BrokerPartition]]:
        """Iterate over all replicas of this node, by topic id and partition."""
        return iter(list(self._partitions.items()))

    def has_room(self, size: int) -> bool:
        """Return whether the node may hold `size` more bytes of log."""
        held = sum(partition.log.size for partition in self._partitions.values())
        return held + size <= self.limits.log_bytes_max

    def write(self, partition: BrokerPartition, index: int, data: bytes) -> None:
        """Append a stored batch, to the store first, so that a restart cannot lose an acknowledged batch."""
        self._log_store.append(partition.topic, index, data)
        partition.log.add(data)
        if partition.placement.leader == self.node_id:
            partition.replica_end_offsets[self.node_id] = partition.log.end_offset
            partition.advance_high_watermark()
            if partition.topic.name == internal_topics.TRANSACTIONS:
                self.transactions.replay(index, data)
            elif partition.topic.name == internal_topics.OFFSETS:
                self.groups.replay(index, data)
        self.changes += 1

    def delete_before(self, partition: BrokerPartition, index: int, offset: int) -> None:
        """Move the start of a log to `offset`."""
        self._log_store.keep_start(partition.topic, index, offset)
        partition.log.delete_before(offset)
        self.changes += 1

    # Producers

    def new_producer_id(self) -> int | None:
        """Return a producer id never used before, or None when this start has used up its block."""
        if self._next_producer_id > self._last_producer_id:
            return None
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def next_deadline(self) -> float:
        """Return when `upkeep` next has something to do (seconds)."""
        return self._next_expiry

    def upkeep(self, moment: BrokerTime) -> None:
        """Expire producers whose last batch is too old, at the configured interval."""
        if moment.now < self._next_expiry:
            return
        self._next_expiry = moment.now + self.limits.producer_id_check_interval_s
        self.expire_producers(moment, self.limits.producer_id_expiration_ms)

    def expire_producers(self, moment: BrokerTime, after_ms: int) -> None:
        """Expire producers whose last batch is older than `after_ms`."""
        for partition in self._partitions.values():
            partition.log.producers.expire(wall_ms=moment.wall_ms, after_ms=after_ms)
