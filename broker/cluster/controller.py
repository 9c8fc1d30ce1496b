"""Who decides in a cluster with replicas: which topics there are, who leads, who is in sync, who is there at all."""

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
"""Stands for the controller where a way between two nodes is named."""


class PlacementError(ValueError):
    """A decision that cannot be taken."""


class MetadataImage(NamedTuple):
    """All decisions up to a moment."""

    version: int
    topics: tuple[BrokerTopic, ...]
    placements: dict[Key, ReplicaPlacement]
    live: tuple[int, ...]


class Controller:
    """The decisions; it never fails, but a node may be cut off from it."""

    def __init__(self, nodes: Sequence[int]) -> None:
        """Begin with all these nodes there, and no topics."""
        self.nodes = tuple(nodes)
        self.live = set(nodes)
        self.version = 0
        """Counts decisions."""

        self.placements: dict[Key, ReplicaPlacement] = {}
        self._topics: dict[str, BrokerTopic] = {}
        self._incarnations: dict[str, int] = {}

    def image(self) -> MetadataImage:
        """What a node that hears of everything knows."""
        return MetadataImage(
            self.version, tuple(self._topics.values()), dict(self.placements), tuple(sorted(self.live))
        )

    # Topics

    def topic(self, name: str) -> BrokerTopic:
        """The topic of a name.

        Raises:
            PlacementError: there is none.
        """
        if name not in self._topics:
            raise PlacementError(f"no topic {name}")
        return self._topics[name]

    def create(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], replicas: int = 1
    ) -> BrokerTopic | None:
        """Make a topic with `replicas` copies on neighbouring nodes, or return None when there is one of that name."""
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
        """Give a topic other settings; False when it is gone."""
        found = self._topics.get(topic.name)
        if found is None or found.id != topic.id:
            return False
        self._topics[topic.name] = found._replace(settings=settings)
        self.version += 1
        return True

    def delete(self, topic: BrokerTopic) -> bool:
        """Remove a topic; False when it is gone."""
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
        """Take a node for dead: it leads nothing any more, and is in sync only where it is the last that was."""
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
        """Hear from a node again: it leads what only it can lead."""
        if node in self.live:
            return
        self.live.add(node)
        self.version += 1
        for key, placement in self.placements.items():
            if placement.leader == NO_LEADER and node in placement.in_sync:
                self._set_leader(key, node, placement.in_sync)

    def controlled_shutdown(self, node: int) -> None:
        """Give what a node leads to others that are in sync, as when it ends in order."""
        for key, placement in self.placements.items():
            others = tuple(one for one in placement.in_sync if one != node)
            heir = self._choose_leader(placement.replicas, others)
            if placement.leader == node and heir != NO_LEADER:
                self._set_leader(key, heir, placement.in_sync)

    # Partitions

    def elect(self, key: Key, node: int, *, unclean: bool = False) -> None:
        """Make a node lead; `unclean` also one that is not in sync, which is the only one in sync afterwards.

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
        """Believe a leader who is in sync, if it leads in the epoch that it thinks."""
        placement = self.placements.get(key)
        if placement is None or (placement.leader, placement.epoch) != (asked_by.leader, asked_by.epoch):
            return
        wanted = tuple(one for one in in_sync if one in placement.replicas and one in self.live)
        if wanted and wanted != placement.in_sync:
            self.placements[key] = placement._replace(in_sync=wanted)
            self.version += 1

    def reassign(self, key: Key, replicas: tuple[int, ...]) -> None:
        """Put the replicas elsewhere; at least one that is in sync stays.

        Raises:
            PlacementError: none would stay, or a node is not known or named twice.
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
    """What one node has heard of the decisions; the topic store and the placements of its `Node`."""

    def __init__(self, controller: Controller, node_id: int) -> None:
        """Begin with all that is decided."""
        self.image = controller.image()
        self.reaches_controller = True
        self.replicas_max = len(controller.nodes)
        self._controller = controller
        self._node_id = node_id
        self._seen = -1

    def refresh(self) -> None:
        """Hear of everything that is decided."""
        self.image = self._controller.image()

    def changed(self) -> bool:
        """Whether `all` and `placement` may answer differently from the last time."""
        changed = self._seen != self.image.version
        self._seen = self.image.version
        return changed

    def all(self) -> Sequence[BrokerTopic]:
        """Return the topics."""
        return self.image.topics

    def placement(self, topic: BrokerTopic, index: int) -> ReplicaPlacement:
        """The newest decision that was heard of."""
        return self.image.placements[topic.id, index]

    def live(self) -> Sequence[int]:
        """Nodes that the controller takes for alive."""
        return self.image.live

    def create(
        self, name: str, partitions: int, settings: tuple[tuple[str, str], ...], replicas: int = 1
    ) -> BrokerTopic | None:
        """Ask the controller for a topic.

        Raises:
            CutOffError: it is out of reach.
        """
        made = self._reachable_controller().create(name, partitions, settings, replicas)
        self.refresh()
        return made

    def alter(self, topic: BrokerTopic, settings: tuple[tuple[str, str], ...]) -> bool:
        """Ask the controller for other settings.

        Raises:
            CutOffError: it is out of reach.
        """
        done = self._reachable_controller().alter(topic, settings)
        self.refresh()
        return done

    def delete(self, topic: BrokerTopic) -> bool:
        """Ask the controller for the end of a topic.

        Raises:
            CutOffError: it is out of reach.
        """
        done = self._reachable_controller().delete(topic)
        self.refresh()
        return done

    def _reachable_controller(self) -> Controller:
        if not self.reaches_controller:
            raise ControllerUnreachableError(f"node {self._node_id} does not reach the controller")
        return self._controller
