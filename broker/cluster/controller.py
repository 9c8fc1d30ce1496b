"""Controller of a cluster with replicas: it decides topics, leaders, in-sync sets and which nodes are live."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..log.ports import ControllerUnreachableError
from ..log.topics import BrokerTopic, leader_index
from .leadership import NO_LEADER, ReplicaPlacement

Key = tuple[uuid.UUID, int]
"""Topic id and partition."""

CONTROLLER: Final = -1
"""Id of the controller in a link between two nodes."""


class PlacementError(ValueError):
    """The controller cannot make the requested decision."""


class MetadataImage(NamedTuple):
    """All decisions up to a version."""

    version: int
    topics: tuple[BrokerTopic, ...]
    placements: dict[Key, ReplicaPlacement]
    live: tuple[int, ...]


class Controller:
    """Makes and keeps the decisions; it never fails, but a node may be cut off from it."""

    def __init__(self, nodes: Sequence[int]) -> None:
        """Start with all these nodes live, and no topics."""
        self.nodes = tuple(nodes)
        self.live = set(nodes)
        self.version = 0
        """Counts decisions."""

        self.placements: dict[Key, ReplicaPlacement] = {}
        self._topics: dict[str, BrokerTopic] = {}
        self._incarnations: dict[str, int] = {}

    def image(self) -> MetadataImage:
        """Return all decisions up to now."""
        return MetadataImage(
            self.version, tuple(self._topics.values()), dict(self.placements), tuple(sorted(self.live))
        )

    # Topics

    def topic(self, name: str) -> BrokerTopic:
        """Return the topic of a name.

        Raises:
            PlacementError: it does not exist.
        """
        if name not in self._topics:
            raise PlacementError(f"no topic {name}")
        return self._topics[name]

    def create(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], replicas: int = 1
    ) -> BrokerTopic | None:
        """Create a topic with `replicas` replicas on neighbouring nodes, or return None when the name exists."""
        if name in self._topics:
            return None
        life = self._incarnations[name] = self._incarnations.get(name, -1) + 1
        topic = self._topics[name] = BrokerTopic(name, life, partitions, settings)
        for index in range(partitions):
            first = leader_index(name, index, len(self.nodes))
            order = tuple(self.nodes[(first + n) % len(self.nodes)] for n in range(replicas))
            in_sync = tuple(node for node in order if node in self.live)
            leader = in_sync[0] if in_sync else NO_LEADER
            self.placements[topic.id, index] = ReplicaPlacement(leader, 0, order, in_sync or order)
        self.version += 1
        return topic

    def alter(self, topic: BrokerTopic, settings: tuple[tuple[str, str], ...]) -> bool:
        """Change the settings of a topic; False when it no longer exists."""
        found = self._topics.get(topic.name)
        if found is None or found.id != topic.id:
            return False
        self._topics[topic.name] = found._replace(settings=settings)
        self.version += 1
        return True

    def delete(self, topic: BrokerTopic) -> bool:
        """Remove a topic; False when it no longer exists."""
        found = self._topics.get(topic.name)
        if found is None or found.id != topic.id:
            return False
        del self._topics[topic.name]
        for key in [key for key in self.placements if key[0] == topic.id]:
            del self.placements[key]
        self.version += 1
        return True

    # Nodes

    def fence(self, node: int) -> None:
        """Mark a node dead: it loses its leaderships, and stays in sync only where it was the last in-sync replica."""
        if node not in self.live:
            return
        self.live.discard(node)
        self.version += 1
        for key, placement in self.placements.items():
            in_sync = tuple(one for one in placement.in_sync if one != node) or placement.in_sync
            if placement.leader == node:
                self._set_leader(key, self._choose_leader(placement.replicas, in_sync), in_sync)
            elif in_sync != placement.in_sync:
                self.placements[key] = placement._replace(in_sync=in_sync)

    def unfence(self, node: int) -> None:
        """Mark a node live again: it becomes leader of leaderless partitions for which it is in sync."""
        if node in self.live:
            return
        self.live.add(node)
        self.version += 1
        for key, placement in self.placements.items():
            if placement.leader == NO_LEADER and node in placement.in_sync:
                self._set_leader(key, node, placement.in_sync)

    def controlled_shutdown(self, node: int) -> None:
        """Move a node's leaderships to other in-sync nodes, as in an orderly shutdown."""
        for key, placement in self.placements.items():
            others = tuple(one for one in placement.in_sync if one != node)
            heir = self._choose_leader(placement.replicas, others)
            if placement.leader == node and heir != NO_LEADER:
                self._set_leader(key, heir, placement.in_sync)

    # Partitions

    def elect(self, key: Key, node: int, *, unclean: bool = False) -> None:
        """Make a node the leader; with `unclean` it need not be in sync, and becomes the only in-sync replica.

        Raises:
            PlacementError: it may not lead.
        """
        placement = self.placements[key]
        if node not in placement.replicas or node not in self.live:
            raise PlacementError(f"node {node} has no replica or is not there")
        if node in placement.in_sync and not unclean:
            self._set_leader(key, node, placement.in_sync)
        elif unclean:
            self._set_leader(key, node, (node,))
        else:
            raise PlacementError(f"node {node} is not in sync")

    def set_in_sync(self, key: Key, asked_by: ReplicaPlacement, in_sync: tuple[int, ...]) -> None:
        """Apply the in-sync set that a leader reports, if it still leads in the epoch that it knows."""
        placement = self.placements.get(key)
        if placement is None or (placement.leader, placement.epoch) != (asked_by.leader, asked_by.epoch):
            return
        wanted = tuple(one for one in in_sync if one in placement.replicas and one in self.live)
        if wanted and wanted != placement.in_sync:
            self.placements[key] = placement._replace(in_sync=wanted)
            self.version += 1

    def reassign(self, key: Key, replicas: tuple[int, ...]) -> None:
        """Move the replicas to these nodes; at least one in-sync replica must stay.

        Raises:
            PlacementError: none would stay, or a node is unknown or listed twice.
        """
        placement = self.placements[key]
        in_sync = tuple(one for one in placement.in_sync if one in replicas)
        if not in_sync or len(set(replicas)) != len(replicas) or not set(replicas) <= set(self.nodes):
            raise PlacementError(f"replicas cannot be {list(replicas)}")
        self.placements[key] = placement._replace(replicas=replicas)
        if placement.leader in in_sync:
            self.placements[key] = self.placements[key]._replace(in_sync=in_sync)
            self.version += 1
        else:
            self._set_leader(key, self._choose_leader(replicas, in_sync), in_sync)

    def _choose_leader(self, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> int:
        return next((one for one in replicas if one in in_sync and one in self.live), NO_LEADER)

    def _set_leader(self, key: Key, leader: int, in_sync: tuple[int, ...]) -> None:
        placement = self.placements[key]
        self.placements[key] = ReplicaPlacement(leader, placement.epoch + 1, placement.replicas, in_sync)
        self.version += 1


class ReplicatedBrokerMetadata:
    """The decisions that one node knows; topic store and metadata cache of its `BrokerNode`."""

    def __init__(self, controller: Controller, node_id: int) -> None:
        """Start with all current decisions."""
        self.image = controller.image()
        self.reaches_controller = True
        self.replicas_max = len(controller.nodes)
        self._controller = controller
        self._node_id = node_id
        self._seen = -1

    def refresh(self) -> None:
        """Fetch all current decisions."""
        self.image = self._controller.image()

    def changed(self) -> bool:
        """Return whether `all` and `placement` may have changed since the last call."""
        changed = self._seen != self.image.version
        self._seen = self.image.version
        return changed

    def all(self) -> Sequence[BrokerTopic]:
        """Return the topics."""
        return self.image.topics

    def placement(self, topic: BrokerTopic, index: int) -> ReplicaPlacement:
        """Return the newest placement that this node knows."""
        return self.image.placements[topic.id, index]

    def live(self) -> Sequence[int]:
        """Return the nodes that are live in the newest known decision."""
        return self.image.live

    def create(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], replicas: int = 1
    ) -> BrokerTopic | None:
        """Have the controller create a topic.

        Raises:
            ControllerUnreachableError: the controller is unreachable.
        """
        made = self._reachable_controller().create(name, partitions, settings, replicas)
        self.refresh()
        return made

    def alter(self, topic: BrokerTopic, settings: tuple[tuple[str, str], ...]) -> bool:
        """Have the controller change the settings of a topic.

        Raises:
            ControllerUnreachableError: the controller is unreachable.
        """
        done = self._reachable_controller().alter(topic, settings)
        self.refresh()
        return done

    def delete(self, topic: BrokerTopic) -> bool:
        """Have the controller delete a topic.

        Raises:
            ControllerUnreachableError: the controller is unreachable.
        """
        done = self._reachable_controller().delete(topic)
        self.refresh()
        return done

    def _reachable_controller(self) -> Controller:
        if not self.reaches_controller:
            raise ControllerUnreachableError(f"node {self._node_id} does not reach the controller")
        return self._controller
