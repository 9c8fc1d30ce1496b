"""Grants, moves and revokes leases as partition leaders change (LSE-2, LSE-3)."""

from collections.abc import Callable

from ...producer.accumulator.budgets import node_budget
from ...producer.metadata.cluster import Cluster, ClusterChange
from ...producer.metadata.leader_epochs import is_recreated, may_follow
from ...wire.ids import NO_LEADER
from ...wire.messages import OPEN, BatchBounds, Node, Nodes
from ..ledger.entries import BatchBoundsEntry, PartitionEntry
from .lease import LeaderAndEpoch, Lease
from .log_end_search import LogEndSearch
from .paces import LeasePaces
from .placement import NodeAssignment
from .sequence_epochs import SequenceEpochs
from .states import Block, BlockReason, LeaseState, Relocate
from .table import LeaseTable


class Grants:
    """Owner of the node table. Leaders are looked up in the newest metadata snapshot, which is replaced whole."""

    def __init__(self, table: LeaseTable, sequence_epochs: SequenceEpochs, paces: LeasePaces) -> None:
        self._table = table
        self._sequence_epochs = sequence_epochs
        self._paces = paces
        self._placement = NodeAssignment()
        self._cluster = Cluster()
        self._missing_topics: set[str] = set()
        """Topics that brokers no longer know: no leader of theirs is followed until they are back."""
        self._sent_nodes: dict[int, list[Node]] = {}

    # --- leaders and nodes -------------------------------------------------------------------------------------------

    def cluster_changed(self, cluster: Cluster, change: ClusterChange) -> None:
        """Follow new nodes and leaders."""
        self._cluster = cluster
        if change.nodes_changed:
            self.assign_nodes()
        topics = change.topics_with_new_leaders
        self._missing_topics -= topics
        for topic in sorted(topics):
            self._leaders_changed(topic)
        for topic in change.topics_missing:
            self._missing_topics.add(topic)
            for lease in self._table.leases.values():
                if lease.durable.topic == topic and lease.backlog.unresolved:
                    # Nothing new is granted, and leases stay.
                    text = "Kafka knows no such topic"
                    mark, end = lease.durable.mark, lease.backlog.end
                    self._table.alarms.set(lease, BlockReason.REFUSED, text, mark, end, now=self._table.now)
            self._leaders_changed(topic)

    def assign_nodes(self) -> None:
        """Reassign nodes to shard slots, revoke leases that moved to other shards, and send shards their nodes."""
        if self._placement.assign(self._cluster.nodes, self._table.shard_slots.present()):
            for lease in self._table.leases.values():
                if lease.state is LeaseState.HELD:
                    self._follow_leader(lease, self._leader(lease))
            self.reconsider_unassigned(lambda _lease: True)
        self._send_nodes()

    def _send_nodes(self) -> None:
        """Send NODES to every shard whose list changed."""
        for seat in self._table.shard_slots.ready():
            numbers = self._placement.nodes_of(seat)
            budget = node_budget(self._table.limits.buffer_bytes, len(numbers))
            nodes = [Node(*self._cluster.nodes[number], budget) for number in numbers]
            if self._sent_nodes.get(seat) != nodes:
                self._sent_nodes[seat] = nodes
                self._table.send(seat, Nodes(nodes))

    def shard_ready(self, seat: int) -> None:
        """The shard's partitions may be granted."""
        _ = self._sent_nodes.pop(seat, None)
        self._send_nodes()
        self.reconsider_unassigned(lambda lease: self._shard_for(lease, self._leader(lease)) == seat)

    def _leaders_changed(self, topic: str) -> None:
        """Follow the leaders that the metadata names for a topic's partitions."""
        view = self._cluster.topic(topic)
        for index in () if view is None else view.partitions:
            state = self._table.ledger.by_topic_partition.get((topic, index))
            lease = self._table.leases.get(state.number) if state is not None else None
            if lease is not None:
                self._leader_changed(lease)

    def _leader_changed(self, lease: Lease) -> None:
        leader = self._leader(lease)
        newer = leader.epoch > lease.followed_epoch or self._is_topic_recreated(lease)
        self._table.follow_epoch(lease, leader.epoch, newer=newer)
        if lease.state is LeaseState.HELD:
            self._follow_leader(lease, leader)
        elif lease.state is LeaseState.UNASSIGNED:
            self._table.reconsider(lease)
        elif newer and lease.block is not None and lease.block.retry_on_new_leader:
            self._table.unassign(lease)

    def _leader(self, lease: Lease) -> LeaderAndEpoch:
        """The leader to follow. None is known while the metadata has only one that is too old (HO-16)."""
        durable = lease.durable
        view = self._cluster.partition(durable.topic, durable.index)
        newest = max(lease.followed_epoch, durable.leader_epoch)
        if view is None or not (may_follow(view.leader_epoch, newest) or self._is_topic_recreated(lease)):
            return LeaderAndEpoch(NO_LEADER, lease.followed_epoch)
        node = NO_LEADER if durable.topic in self._missing_topics else view.leader
        if lease.state is LeaseState.HELD and 0 <= view.leader_epoch == lease.leader_epoch and node != NO_LEADER:
            # An epoch has one leader: a broker that names another one, or none, is wrong.
            node = lease.node
        return LeaderAndEpoch(node, view.leader_epoch)

    def _topic_id(self, lease: Lease) -> bytes | None:
        view = self._cluster.topic(lease.durable.topic)
        return None if view is None else view.topic_id

    def _is_topic_recreated(self, lease: Lease) -> bool:
        return is_recreated(lease.durable.topic_id, self._topic_id(lease))

    def _shard_for(self, lease: Lease, leader: LeaderAndEpoch) -> int | None:
        if leader.node == NO_LEADER:
            return None
        return self._placement.shard_of(leader.node, lease.durable.topic, lease.durable.index)

    def _follow_leader(self, lease: Lease, leader: LeaderAndEpoch) -> None:
        """Move a held lease to its leader's node and shard. Without a leader it stays, unless its node has left the
        cluster: then no broker serves the partition there."""
        table = self._table
        if leader.node == NO_LEADER and not self._is_topic_recreated(lease):
            if lease.node not in self._cluster.nodes:
                table.revoke(lease, Relocate())
        elif (
            self._is_topic_recreated(lease)
            or self._shard_for(lease, leader) != lease.shard_id
            or (lease.bounds_uncertain and leader.epoch != lease.leader_epoch)
        ):
            table.revoke(lease, Relocate())
        elif leader != (lease.node, lease.leader_epoch):
            self._send_nodes()
            table.move_to(lease, leader)

    # --- granting ----------------------------------------------------------------------------------------------------

    def reconsider_unassigned(self, which: Callable[[Lease], bool]) -> None:
        """Consider the matching unassigned leases in the next round, after a change that affects them."""
        for lease in self._table.leases.values():
            if lease.state is LeaseState.UNASSIGNED and lease.backlog.unresolved and which(lease):
                self._table.reconsider(lease)

    def grant_pending(self) -> None:
        """Grant every candidate lease whose conditions hold."""
        for lease in self._table.take_candidates():
            if not self._table.stopping:
                self._try(lease)

    def _try(self, lease: Lease) -> None:
        table, durable = self._table, lease.durable
        leader = self._leader(lease)
        table.follow_epoch(lease, leader.epoch, newer=False)
        if self._is_topic_recreated(lease) and not self._restart_in_recreated_topic(lease):
            return
        if not self._sequence_epochs.ensure_synced_rows(lease) or not self._ensure_batch_bounds(lease):
            return
        seat = self._shard_for(lease, leader)
        if seat is None or not table.shard_slots.is_ready(seat):
            return
        assert may_follow(leader.epoch, durable.leader_epoch), (leader, durable)
        topic_id = self._topic_id(lease)
        if topic_id and not durable.topic_id:
            _ = table.record(PartitionEntry(lease.number, durable.topic, topic_id, durable.index))
        pace, uncertain = self._paces.at_grant(lease)
        table.grant(lease, seat, leader, pace, uncertain=uncertain)

    def _restart_in_recreated_topic(self, lease: Lease) -> bool:
        """Start in the recreated topic, whose log has none of our producer state. Unresolved records go to it, under a
        new producer id if a copy may end up there. The new topic id is logged after that id's stamp rows, so a kill in
        between still finds that the rows are needed. Returns False while the lease waits for the rows."""
        table, durable = self._table, lease.durable
        if lease.open_batches() or lease.bounds_uncertain:
            table.alarms.possible_duplicates(
                lease, durable.mark, lease.possibly_written_end, "the topic was made again"
            )
            self._sequence_epochs.request_own_producer_id(lease)
            return False
        topic_id = self._topic_id(lease)
        assert topic_id, "a recreated topic has an id"
        _ = table.record(PartitionEntry(lease.number, durable.topic, topic_id, durable.index))
        return True

    def _ensure_batch_bounds(self, lease: Lease) -> bool:
        """Make sure that the next batch is safe: bounds are known; or nothing was ever acked, so only the record at the
        mark can be in the log (11.4); or the broker surely has our producer state, so trials can find the log end
        (LOC-4)."""
        table, durable = self._table, lease.durable
        if not lease.bounds_uncertain:
            return True
        row = lease.stamp_row
        if durable.anchor is None and row is not None:
            cut = BatchBounds(durable.mark, 1, row.epoch)
            _ = table.record(BatchBoundsEntry(lease.number, [cut], facts=True, unknown_through=None))
            return True
        through = durable.unknown_through or 0
        one_epoch = len({(row.producer_id, row.epoch) for row in durable.rows if row.start <= through}) == 1
        if row is not None and one_epoch and self._paces.allowed(lease, through + 1) == OPEN:
            if lease.search is None:
                table.begin_search(lease, self._search(lease, row.epoch, through))
            return True
        text = "the bounds of its batches were lost, and what the broker remembers of them is not certain"
        table.block_lease(lease, Block(BlockReason.BATCH_BOUNDS_UNKNOWN, text, durable.mark, through + 1, retry=False))
        return False

    def _search(self, lease: Lease, epoch: int, through: int) -> LogEndSearch:
        """Build the search. A batch ends where a stamp row or a hole starts, and is no larger than `batch_bytes`."""
        durable = lease.durable
        holes = {ordinal for hole in durable.holes for ordinal in range(hole.first, hole.end)}
        ends = [row.start for row in durable.rows] + [hole.end for hole in durable.holes]
        floor, room = durable.mark, self._table.limits.batch_bytes
        inside = [piece for piece in lease.backlog.unresolved if piece.first + piece.count <= through]
        for piece in reversed(inside):
            room -= piece.length
            if room < 0:
                floor = piece.first
                break
        floor = max([floor, *(ordinal for ordinal in ends if ordinal <= through)])
        return LogEndSearch(durable.mark, through, epoch, floor=floor, left_out=holes)
