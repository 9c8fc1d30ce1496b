"""A cluster of nodes in one process: replication, in-sync sets, metadata propagation and node failures.

Followers copy everything from their leader at once, unless replication is paused, or they are paused, dead or cut off.
Delays occur only where a test causes them: sessions expire, replicas fall behind, metadata arrives late.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from ..cluster.controller import CONTROLLER, Controller, Key, PlacementError, ReplicatedBrokerMetadata
from ..cluster.faults import MarkerRules
from ..cluster.leadership import NO_LEADER
from ..cluster.node import BrokerNode, BrokerNodeLimits, BrokerPartition, PeerNode
from ..cluster.responses import DelayedResponse
from ..log.error_codes import ErrorCode
from ..log.ports import BrokerTime, LogStore
from ..log.topics import BrokerTopic
from ..requests.dispatch import ReceivedRequest, RequestReply, apply, with_pending
from ..requests.periodic_tasks import upkeep
from ..requests.transaction_markers import complete_decided_transactions
from .follower_fetch import replicate
from .node_slots import NodeSlot

ROUNDS_MAX: Final = 50
"""Rounds until the state is stable: a decision may cause a copy, which may widen an in-sync set, and so on."""

WAITS_MAX: Final = 2
"""Waits of one request for other nodes: for the coordinator's replicas, then for those of the partition."""


class NoNodeError(ValueError):
    """A node is unknown, or not in the state that a command needs."""


class ClusterTiming(NamedTuple):
    """Timeouts and intervals of a cluster, in seconds."""

    session_s: float = 9.0
    """The controller fences a node after this long without a heartbeat."""

    lag_s: float = 30.0
    """A follower that has not caught up for this long leaves the in-sync set (`replica.lag.time.max.ms`)."""

    tick_s: float = 0.1
    """Time between two rounds when nothing else triggers one."""


class ReplicatedCluster:
    """Nodes with replicas, driven by requests, commands and the time that callers pass in."""

    def __init__(
        self,
        peers: tuple[PeerNode, ...],
        *,
        log_store: LogStore,
        moment: BrokerTime,
        limits: BrokerNodeLimits | None = None,
        timing: ClusterTiming | None = None,
        first_start: int = 0,
    ) -> None:
        """Start all nodes. `log_store` must persist nothing: logs live as long as the cluster."""
        self.peers = peers
        self.limits = limits or BrokerNodeLimits(default_replicas=min(3, len(peers)))
        self.timing = timing or ClusterTiming()
        self.controller = Controller([peer.node_id for peer in peers])
        self.marker_rules = MarkerRules()
        self.changes = 0
        """Increases when a delayed request may be complete."""

        self._log_store = log_store
        self._cut_links: set[frozenset[int]] = set()
        self._next_tick = moment.now
        self.slots: dict[int, NodeSlot] = {}
        for peer in peers:
            place = NodeSlot(
                ReplicatedBrokerMetadata(self.controller, peer.node_id),
                None,
                start=first_start,
                last_heartbeat_at=moment.now,
            )
            self.slots[peer.node_id] = place
            place.node = self._node(peer.node_id, place, moment)

    def _node(self, node_id: int, place: NodeSlot, moment: BrokerTime) -> BrokerNode:
        return BrokerNode(
            node_id,
            self.peers,
            start=place.start,
            limits=self.limits,
            topic_store=place.metadata,
            log_store=self._log_store,
            moment=moment,
            placements=place.metadata,
            logs=place.saved_logs,
            neighbours=self,
            marker_rules=self.marker_rules,
        )

    # Calls from the process

    def node(self, node_id: int) -> BrokerNode:
        """Return a running node.

        Raises:
            NoNodeError: it is not running.
        """
        node = self._slot(node_id).node
        if node is None:
            raise NoNodeError(f"node {node_id} does not run")
        return node

    def serves(self, node_id: int) -> bool:
        """Return whether a node serves requests now."""
        place = self._slot(node_id)
        return place.node is not None and not place.paused

    def apply(self, node_id: int, request: ReceivedRequest, moment: BrokerTime) -> RequestReply | DelayedResponse:
        """Serve a request on a running node, let the others replicate, and complete the response if possible."""
        self.run_until_stable(moment)
        node = self.node(node_id)
        own = self._local_time(node_id, moment)
        outcome = apply(node, request, own)
        self.run_until_stable(moment)
        for _ in range(WAITS_MAX):
            if isinstance(outcome, DelayedResponse) and outcome.pending is not None:
                outcome = apply(node, with_pending(request, outcome), own)
                self.run_until_stable(moment)
        return outcome

    def leader(self, asking: BrokerNode, topic: BrokerTopic, index: int) -> BrokerNode | None:
        """Return the leader that `asking` knows for a partition, if that node agrees that it leads and is reachable."""
        peer = asking.leader(topic, index)
        if peer is None or not self.serves(peer.node_id):
            return None
        if peer.node_id != asking.node_id and not self._reaches(asking.node_id, peer.node_id):
            return None
        found = self.node(peer.node_id)
        return None if isinstance(found.partition(topic, index), ErrorCode) else found

    def _local_time(self, node_id: int, moment: BrokerTime) -> BrokerTime:
        """Return the time by a node's own clock."""
        return moment._replace(wall_ms=moment.wall_ms + self._slot(node_id).clock_offset_ms)

    def next_deadline(self) -> float:
        """Return when `run_until_stable` must run even if nothing else happens (seconds)."""
        return self._next_tick

    def upkeep(self, moment: BrokerTime) -> None:
        """Run the cluster until stable, then the periodic tasks of every running node."""
        self.run_until_stable(moment)
        for node_id, place in self.slots.items():
            if place.node is not None and not place.paused:
                upkeep(place.node, self._local_time(node_id, moment))

    def run_until_stable(self, moment: BrokerTime) -> None:
        """Propagate metadata, replicate logs and update in-sync sets until nothing changes."""
        self._next_tick = moment.now + self.timing.tick_s
        before = self._state()
        for _ in range(ROUNDS_MAX):
            at = self._state()
            self._update_sessions(moment)
            self._propagate_metadata(moment)
            self._replicate_all(moment)
            self._update_in_sync(moment)
            self._end_transactions(moment)
            if self._state() == at:
                break
        else:
            raise AssertionError("the cluster does not come to rest")
        if self._state() != before:
            self.changes += 1

    def _state(self) -> tuple[int, ...]:
        versions = [place.metadata.image.version for place in self.slots.values()]
        counts = [place.node.changes if place.node else -1 for place in self.slots.values()]
        return (self.controller.version, *versions, *counts)

    # One round

    def _end_transactions(self, moment: BrokerTime) -> None:
        """Let every coordinator continue the transactions that it is ending."""
        for node_id, place in self.slots.items():
            if place.node is not None and not place.paused:
                complete_decided_transactions(place.node, self._local_time(node_id, moment))

    def _reaches_controller(self, node_id: int, place: NodeSlot) -> bool:
        """Return whether a node and the controller reach each other."""
        return place.node is not None and not place.paused and self._reaches(node_id, CONTROLLER)

    def _update_sessions(self, moment: BrokerTime) -> None:
        for node_id, place in self.slots.items():
            place.metadata.reaches_controller = self._reaches(node_id, CONTROLLER)
            if self._reaches_controller(node_id, place):
                place.last_heartbeat_at = moment.now
                self.controller.unfence(node_id)
            elif moment.now - place.last_heartbeat_at >= self.timing.session_s:
                self.controller.fence(node_id)

    def _propagate_metadata(self, moment: BrokerTime) -> None:
        for node_id, place in self.slots.items():
            if not self._reaches_controller(node_id, place) or place.metadata.image.version == self.controller.version:
                place.metadata_due = None
                if place.node is not None and not place.paused:
                    place.node.refresh(moment)
                continue
            if place.metadata_due is None:
                place.metadata_due = moment.now + place.metadata_delay_s
            if moment.now >= place.metadata_due and place.node is not None:
                place.metadata_due = None
                place.metadata.refresh()
                place.node.refresh(moment)

    def _replicate_all(self, moment: BrokerTime) -> None:
        for node_id, place in self.slots.items():
            if place.node is None or place.paused or place.replication_paused:
                continue
            for key, partition in place.node.replicas():
                leader = self._leader_of(node_id, key, partition)
                if leader is not None:
                    replicate(place.node, partition, key[1], leader[0], leader[1], moment)

    def _leader_of(
        self, node_id: int, key: Key, partition: BrokerPartition
    ) -> tuple[BrokerNode, BrokerPartition] | None:
        """Return the leader that a follower copies from, if both know the same leader and epoch."""
        leader_id = partition.placement.leader
        if leader_id in {NO_LEADER, node_id} or not self.serves(leader_id) or not self._reaches(node_id, leader_id):
            return None
        leader = self.node(leader_id)
        theirs = leader.replica_by_key(key)
        if theirs is None or theirs.placement[:2] != partition.placement[:2]:
            return None
        return leader, theirs

    def _update_in_sync(self, moment: BrokerTime) -> None:
        """Let every leader that reaches the controller report its in-sync set."""
        for node_id, place in self.slots.items():
            if place.node is None or not self._reaches_controller(node_id, place):
                continue
            for key, partition in place.node.replicas():
                if partition.placement.leader == node_id:
                    wanted = self._in_sync(node_id, partition, moment)
                    if wanted != partition.placement.in_sync:
                        self.controller.set_in_sync(key, partition.placement, wanted)

    def _in_sync(self, node_id: int, partition: BrokerPartition, moment: BrokerTime) -> tuple[int, ...]:
        found: list[int] = []
        for replica in partition.placement.replicas:
            end = partition.replica_end_offsets.get(replica, -1)
            if replica == node_id:
                fits = True
            elif replica in partition.placement.in_sync:
                since = partition.caught_up_at.setdefault(replica, moment.now)
                fits = end >= partition.log.end_offset or moment.now - since <= self.timing.lag_s
            else:
                epoch_began = partition.log.end_of_epoch(partition.placement.epoch - 1).end_offset
                copies = moment.now - partition.caught_up_at.get(replica, moment.now) <= self.timing.lag_s
                there = copies and replica in self.controller.live
                fits = there and end >= max(partition.log.high_watermark, epoch_began)
            if fits:
                found.append(replica)
        return tuple(found)

    # Commands

    def kill(self, node_id: int, moment: BrokerTime) -> None:
        """Kill a node as SIGKILL does: the controller notices when the session expires.

        Raises:
            NoNodeError: it is not running.
        """
        self._shut_down(node_id, clean=False)
        self.run_until_stable(moment)

    def stop(self, node_id: int, moment: BrokerTime) -> None:
        """Shut down a node in order: it hands over its partitions first.

        Raises:
            NoNodeError: it is not running.
        """
        _ = self.node(node_id)
        if self._reaches(node_id, CONTROLLER):
            self.controller.controlled_shutdown(node_id)
            self.run_until_stable(moment)
        self._shut_down(node_id, clean=True)
        if self._reaches(node_id, CONTROLLER):
            self.controller.fence(node_id)
        self.run_until_stable(moment)

    def _shut_down(self, node_id: int, *, clean: bool) -> None:
        place = self._slot(node_id)
        place.saved_logs = {key: partition.log for key, partition in self.node(node_id).replicas()}
        place.node = None
        place.paused = place.replication_paused = False
        place.clean_shutdown = clean
        self.changes += 1

    def start(self, node_id: int, moment: BrokerTime, *, saved: bool = True) -> None:
        """Restart a node, with its logs or, if not `saved`, with an empty disk.

        Raises:
            NoNodeError: it is running.
        """
        place = self._slot(node_id)
        if place.node is not None:
            raise NoNodeError(f"node {node_id} runs")
        place.start += 1
        after_ms, wall_ms = self.limits.producer_id_expiration_ms, self._local_time(node_id, moment).wall_ms
        for log in place.saved_logs.values():
            log.reload(clean=place.clean_shutdown, wall_ms=wall_ms, after_ms=after_ms)
        if not saved:
            place.saved_logs = {}
        # A starting node registers before it serves; without the controller it keeps its old metadata.
        if self._reaches(node_id, CONTROLLER):
            self.controller.fence(node_id)
            place.metadata.refresh()
        place.node = self._node(node_id, place, moment)
        place.saved_logs = {}
        self.run_until_stable(moment)

    def pause(self, node_id: int, moment: BrokerTime, *, paused: bool = True) -> None:
        """Pause a node as SIGSTOP does, or resume it.

        Raises:
            NoNodeError: it is not running.
        """
        _ = self.node(node_id)
        self._slot(node_id).paused = paused
        self.run_until_stable(moment)
        self.changes += 1

    def pause_replication(self, node_id: int, moment: BrokerTime, *, held: bool = True) -> None:
        """Pause replication on a live node, or resume it."""
        self._slot(node_id).replication_paused = held
        self.run_until_stable(moment)

    def cut_link(self, one: int, other: int, moment: BrokerTime) -> None:
        """Cut the link between two nodes, or a node and the controller (-1); clients still reach every node.

        Raises:
            NoNodeError: a node does not exist.
        """
        for node_id in (one, other):
            if node_id != CONTROLLER:
                _ = self._slot(node_id)
        self._cut_links.add(frozenset((one, other)))
        self.run_until_stable(moment)

    def heal(self, moment: BrokerTime) -> None:
        """Restore all links."""
        self._cut_links.clear()
        self.run_until_stable(moment)

    def delay_metadata(self, node_id: int, seconds: float) -> None:
        """Delay a node's metadata updates by `seconds`; a pending update waits that long from the next round."""
        place = self._slot(node_id)
        place.metadata_delay_s = seconds
        place.metadata_due = None

    def set_clock(self, node_id: int, ahead_ms: int) -> None:
        """Set a node's wall clock ahead of the others', or behind; its monotonic clock is the same."""
        self._slot(node_id).clock_offset_ms = ahead_ms

    def set_limits(self, limits: BrokerNodeLimits) -> None:
        """Set the limits of all nodes, including nodes that start later."""
        self.limits = limits
        for place in self.slots.values():
            if place.node is not None:
                place.node.limits = limits

    def elect(self, topic: str, index: int, node_id: int, moment: BrokerTime, *, unclean: bool = False) -> None:
        """Make a node the leader of a partition.

        Raises:
            PlacementError: it may not lead, or the partition does not exist.
        """
        self.controller.elect(self.key(topic, index), node_id, unclean=unclean)
        self.run_until_stable(moment)

    def reassign(self, topic: str, index: int, replicas: tuple[int, ...], moment: BrokerTime) -> None:
        """Move the replicas of a partition to these nodes.

        Raises:
            PlacementError: the nodes cannot hold them, or the partition does not exist.
        """
        self.controller.reassign(self.key(topic, index), replicas)
        self.run_until_stable(moment)

    def recreate(self, topic: str, moment: BrokerTime) -> None:
        """Delete a topic and recreate it with the same name, partitions, replicas and settings.

        Raises:
            PlacementError: the topic does not exist.
        """
        old = self.controller.topic(topic)
        replicas = len(self.controller.placements[old.id, 0].replicas)
        _ = self.controller.delete(old)
        self.run_until_stable(moment)
        _ = self.controller.create(topic, old.partitions, old.settings, replicas)
        self.run_until_stable(moment)

    def expire_records(self, topic: str, index: int, offset: int, moment: BrokerTime) -> None:
        """Delete whole files before `offset` on every running replica, as retention does, up to its high watermark.

        Raises:
            PlacementError: the partition does not exist.
        """
        key = self.key(topic, index)
        for node_id, place in self.slots.items():
            partition = None if place.node is None else place.node.replica_by_key(key)
            if partition is not None:
                log, leads = partition.log, partition.placement.leader == node_id
                log.delete_before(min(offset, log.high_watermark), files=True, leads=leads)
        self.run_until_stable(moment)

    def key(self, topic: str, index: int) -> tuple[uuid.UUID, int]:
        """Return a partition's key.

        Raises:
            PlacementError: the partition does not exist.
        """
        found = self.controller.topic(topic)
        if not 0 <= index < found.partitions:
            raise PlacementError(f"{topic} has no partition {index}")
        return found.id, index

    def _slot(self, node_id: int) -> NodeSlot:
        if node_id not in self.slots:
            raise NoNodeError(f"no node {node_id}")
        return self.slots[node_id]

    def _reaches(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self._cut_links
