"""One node of the cluster: who it is, which topics there are, and the logs of the partitions it leads."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from .batches import Verify
from .errors import ErrorCode
from .faults import Faults
from .log import PartitionLog
from .ports import LogStore, Moment, TopicStore
from .topics import Topic, TopicRules, leader_index

NODES_MAX: Final = 1024
PRODUCER_ID_BLOCK: Final = 1 << 20
"""Producer ids of one start of one node."""

STARTS_MAX: Final = 1 << 31
NO_ID: Final = uuid.UUID(int=0)


class Peer(NamedTuple):
    """A node and where clients reach it."""

    node_id: int
    host: str
    port: int


class Limits(NamedTuple):
    """What the operator chose."""

    auto_create_topics: bool = False
    default_partitions: int = 1
    log_bytes_max: int = 4 << 30
    """All logs of this node together; above it, batches are refused."""

    verify: Verify = Verify.RECORDS
    producer_id_expiration_ms: int = 86_400_000
    producer_id_check_interval_s: float = 600.0
    offsets_max: int = 100_000
    """Committed offsets kept."""


@dataclass(slots=True)
class Partition:
    """A partition that this node leads."""

    topic: Topic
    rules: TopicRules
    log: PartitionLog


class Node:
    """The state of one broker process; what its requests do to it is in the modules beside this one."""

    def __init__(
        self,
        node_id: int,
        peers: tuple[Peer, ...],
        *,
        start: int,
        limits: Limits,
        topic_store: TopicStore,
        log_store: LogStore,
        moment: Moment,
    ) -> None:
        """Take part as `node_id`; `start` is a number that no earlier start of this node used."""
        self.peers = tuple(sorted(peers))
        self.by_id = {peer.node_id: peer for peer in self.peers}
        assert node_id in self.by_id
        assert len(self.by_id) == len(self.peers)
        assert 0 <= node_id < NODES_MAX
        assert 0 <= start < STARTS_MAX
        self.node_id = node_id
        self.limits = limits
        self.faults = Faults()
        self.appends = 0
        """Counts batches; readers that wait look again when it moves."""

        self.offsets: dict[tuple[str, str, int], tuple[int, str | None]] = {}
        """Committed (offset, metadata) by (group, topic, partition)."""

        self._topic_store = topic_store
        self._log_store = log_store
        self._topics: dict[str, Topic] = {}
        self._ids: dict[uuid.UUID, Topic] = {}
        self._partitions: dict[tuple[uuid.UUID, int], Partition] = {}
        self._bytes = 0
        self._next_producer_id = (start * NODES_MAX + node_id) * PRODUCER_ID_BLOCK
        self._last_producer_id = self._next_producer_id + PRODUCER_ID_BLOCK - 1
        self._next_expiry = moment.now + limits.producer_id_check_interval_s
        self._learn(moment)

    @property
    def cluster_id(self) -> str:
        """The same on every node that was told the same peers."""
        return "penstock-" + uuid.uuid5(NO_ID, repr(self.peers)).hex[:13]

    # Topics

    def refresh(self, moment: Moment) -> None:
        """Learn of topics that other nodes made or deleted, and load the logs of the new ones."""
        if self._topic_store.changed():
            self._learn(moment)

    def _learn(self, moment: Moment) -> None:
        self._topics = {topic.name: topic for topic in self._topic_store.all()}
        self._ids = {topic.id: topic for topic in self._topics.values()}
        for key in [key for key in self._partitions if key[0] not in self._ids]:
            gone = self._partitions.pop(key)
            self._bytes -= gone.log.size
            self._log_store.discard(gone.topic)
        for topic in self._topics.values():
            self._load(topic, moment)

    def _load(self, topic: Topic, moment: Moment) -> None:
        for index in range(topic.partitions):
            known = self._partitions.get((topic.id, index))
            if known is not None:
                known.topic, known.rules = topic, topic.rules
            elif self.leader(topic, index).node_id == self.node_id:
                log = PartitionLog()
                for data in self._log_store.load(topic, index):
                    log.add(data)
                log.producers.shrink_to_last()
                log.producers.expire(wall_ms=moment.wall_ms, after_ms=self.limits.producer_id_expiration_ms)
                self._bytes += log.size
                self._partitions[topic.id, index] = Partition(topic, topic.rules, log)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return sorted(self._topics.values())

    def topic(self, name: str) -> Topic | None:
        """The topic that bears this name now."""
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic of this id, if it was not deleted."""
        return self._ids.get(topic_id)

    def create_topic(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], moment: Moment
    ) -> Topic | None:
        """Make a topic, or return None when there is one of that name."""
        topic = self._topic_store.create(name, partitions, settings)
        self.refresh(moment)
        return topic

    def alter_topic(self, topic: Topic, settings: tuple[tuple[str, str], ...], moment: Moment) -> bool:
        """Give a topic other settings; False when it is gone."""
        done = self._topic_store.alter(topic, settings)
        self.refresh(moment)
        return done

    def delete_topic(self, topic: Topic, moment: Moment) -> bool:
        """Delete a topic with its records; False when it is gone."""
        done = self._topic_store.delete(topic)
        self.refresh(moment)
        return done

    # Partitions

    def leader(self, topic: Topic, partition: int) -> Peer:
        """Who leads a partition."""
        return self.peers[leader_index(topic.name, partition, len(self.peers))]

    def partition(self, topic: Topic, index: int) -> Partition | ErrorCode:
        """The partition, if it exists and this node leads it."""
        if not 0 <= index < topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._partitions.get((topic.id, index), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes of log may be held."""
        return self._bytes + size <= self.limits.log_bytes_max

    def write(self, partition: Partition, index: int, data: bytes) -> None:
        """Append a stored batch: to the store first, so that nothing is answered that a restart would forget."""
        self._log_store.append(partition.topic, index, data)
        partition.log.add(data)
        self._bytes += len(data)
        self.appends += 1

    # Producers

    def new_producer_id(self) -> int | None:
        """Return an id that was never given before, or None when this start has used up its own."""
        if self._next_producer_id > self._last_producer_id:
            return None
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def next_deadline(self) -> float:
        """When `upkeep` has something to do."""
        return self._next_expiry

    def upkeep(self, moment: Moment) -> None:
        """Forget producers whose last batch is too old, at the interval that was chosen."""
        if moment.now < self._next_expiry:
            return
        self._next_expiry = moment.now + self.limits.producer_id_check_interval_s
        self.expire_producers(moment, self.limits.producer_id_expiration_ms)

    def expire_producers(self, moment: Moment, after_ms: int) -> None:
        """Forget producers whose last batch is older than `after_ms`."""
        for partition in self._partitions.values():
            partition.log.producers.expire(wall_ms=moment.wall_ms, after_ms=after_ms)
