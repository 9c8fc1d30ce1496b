"""Which node leads a partition, in which epoch, and where its replicas are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ..log.partition_log import FIRST_EPOCH
from ..log.topics import BrokerTopic, leader_index

NO_LEADER: Final = -1


class ReplicaPlacement(NamedTuple):
    """What is decided about one partition."""

    leader: int
    """A node id, or -1."""

    epoch: int
    """Goes up whenever the leader changes."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class BrokerMetadataCache(Protocol):
    """What one node knows of the decisions; it may be old."""

    replicas_max: int
    """Nodes there are to put replicas on."""

    def placement(self, topic: BrokerTopic, index: int) -> ReplicaPlacement:
        """The newest decision that was heard of."""
        ...

    def live(self) -> Sequence[int]:
        """Nodes that clients may be sent to."""
        ...


class StaticBrokerMetadata:
    """One replica of every partition, on a node that follows from the topic's name, for ever."""

    replicas_max = 1

    def __init__(self, nodes: Sequence[int]) -> None:
        """Spread the partitions over these nodes, in this order."""
        self._nodes = nodes

    def placement(self, topic: BrokerTopic, index: int) -> ReplicaPlacement:
        """The only decision there ever is."""
        node = self._nodes[leader_index(topic.name, index, len(self._nodes))]
        return ReplicaPlacement(node, FIRST_EPOCH, (node,), (node,))

    def live(self) -> Sequence[int]:
        """All nodes: each knows itself only."""
        return self._nodes
