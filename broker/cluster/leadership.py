"""Leader, leader epoch and replicas of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ..log.partition_log import FIRST_EPOCH
from ..log.topics import BrokerTopic, leader_index

NO_LEADER: Final = -1


class ReplicaPlacement(NamedTuple):
    """Leader and replicas of one partition, as the controller decided."""

    leader: int
    """A node id, or -1."""

    epoch: int
    """Leader epoch; increases whenever the leader changes."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class BrokerMetadataCache(Protocol):
    """The cluster metadata that one node knows; it may be outdated."""

    replicas_max: int
    """Number of nodes that can hold replicas."""

    def placement(self, topic: BrokerTopic, index: int) -> ReplicaPlacement:
        """Return the newest placement that this node knows."""
        ...

    def live(self) -> Sequence[int]:
        """Return the live nodes, which clients may use."""
        ...


class StaticBrokerMetadata:
    """Metadata with one replica per partition, on a fixed node derived from the topic's name and the partition."""

    replicas_max = 1

    def __init__(self, nodes: Sequence[int]) -> None:
        """Spread the partitions over these nodes, in this order."""
        self._nodes = nodes

    def placement(self, topic: BrokerTopic, index: int) -> ReplicaPlacement:
        """Return the fixed placement of a partition."""
        node = self._nodes[leader_index(topic.name, index, len(self._nodes))]
        return ReplicaPlacement(node, FIRST_EPOCH, (node,), (node,))

    def live(self) -> Sequence[int]:
        """Return all nodes: a node knows only its own state."""
        return self._nodes
