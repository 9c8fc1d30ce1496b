"""Grants, moves and revokes leases as partition leaders change (LSE-2, LSE-3)."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...producer.accumulator.budgets import node_budget
from ...producer.sender.inflight_limit import pace_of
from ...wire.ids import NO_LEADER
from ...wire.messages import FIRST, OPEN, BatchBounds, Grant, Move, Node, Nodes
from ..ledger.entries import BatchBoundsEntry, GrantedEntry, PartitionEntry
from .lease import LeaderAndEpoch, Lease
from .log_end_search import LogEndSearch
from .placement import NodeAssignment
from .sequence_epochs import SequenceEpochs
from .states import Block, BlockReason, LeaseState, Relocate
from .table import LeaseNotice, LeaseTable

_NO_TIMESTAMP = 1 << 62


class TopicLeaders(NamedTuple):
    """The latest metadata of a topic."""

    topic_id: bytes
    leaders: dict[int, LeaderAndEpoch]


class Grants:
    """Owner of the node table and of the known leaders."""

    def __init__(self, table: LeaseTable, stamps: SequenceEpochs) -> None:
        self._table = table
        self._sequence_epochs = stamps
        self.placement = NodeAssignment()
        self.nodes: dict[int, Node] = {}
        self._sent_nodes: dict[int, list[Node]] = {}
        self._topics: dict[str, TopicLeaders] = {}

    # --- leaders and nodes -------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the list of cluster nodes."""
        self.nodes = {node.node: node for node in nodes}
        self.assign_nodes()

    def assign_nodes(self) -> None:
        """Reassign nodes to shard slots, revoke leases that moved to other shards, and send shards their nodes."""
        if self.placement.assign(self.nodes, self._table.shard_slots.present()):
            for lease in self._table.leases.values():
                if lease.state is LeaseState.HELD:
                    self._follow_leader(lease)
            self.reconsider_unassigned(lambda _lease: True)
        self.send_nodes()

    def send_nodes(self) -> None:
        """Send NODES to every shard whose list changed."""
        for seat in self._table.shard_slots.ready():
            numbers = self.placement.nodes_of(seat)
            budget = node_budget(self._table.limits.buffer_bytes, len(numbers))
            nodes = [self.nodes[number]._replace(budget_bytes=budget) for number in numbers]
            if self._sent_nodes.get(seat) != nodes:
                self._sent_nodes[seat] = nodes
                self._table.send(seat, Nodes(nodes))

    def shard_ready(self, seat: int) -> None:
        """The shard's partitions may be granted."""
        _ = self._sent_nodes.pop(seat, None)
        self.send_nodes()
        self.reconsider_unassigned(lambda lease: self._shard_for(lease) == seat)

    def set_leaders(self, topic: str, topic_id: bytes, leaders: Iterable[tuple[int, int, int]]) -> None:
        """Apply a topic's (index, node or -1, leader epoch). Epochs older than the known one are ignored (HO-16)."""
        known = self._topics.get(topic)
        if known is None or (topic_id and known.topic_id and topic_id != known.topic_id):
            known = TopicLeaders(topic_id, {})
        elif topic_id and not known.topic_id:
            known = TopicLeaders(topic_id, known.leaders)
        self._topics[topic] = known
        for index, node, epoch in leaders:
            before = known.leaders.get(index)
            # Brokers too old for leader epochs send none.
            if (
                before is None
                or epoch < 0
                or epoch > before.epoch
                or (epoch == before.epoch and before.node == NO_LEADER)
            ):
                known.leaders[index] = LeaderAndEpoch(node, epoch)
            self._apply_leader(topic, index)

    def leader_hint(self, lease: Lease, leader: LeaderAndEpoch) -> None:
        """Apply a newer leader from a broker's response to a shard."""
        topic = lease.durable.topic
        known = self._topics.get(topic)
        if known is None or leader.epoch <= lease.leader.epoch or leader.node not in self.nodes:
            return
        known.leaders[lease.durable.index] = leader
        self._apply_leader(topic, lease.durable.index)

    def topic_gone(self, topic: str) -> None:
        """Metadata no longer contains the topic: grant nothing new, keep leases, alarm for unresolved records."""
        for lease in self._table.leases.values():
            if lease.durable.topic == topic and lease.backlog.unresolved:
                text = "Kafka knows no such topic"
                self._table.alarm(lease, BlockReason.REFUSED, text, lease.durable.mark, lease.backlog.end)
        known = self._topics.get(topic)
        if known is None:
            return
        for index in list(known.leaders):
            known.leaders[index] = LeaderAndEpoch(NO_LEADER, known.leaders[index].epoch)
            self._apply_leader(topic, index)

    def begin(self, lease: Lease) -> None:
        """Apply the known leader to a new lease."""
        self._apply_leader(lease.durable.topic, lease.durable.index)

    def _apply_leader(self, topic: str, index: int) -> None:
        state = self._table.ledger.by_topic_partition.get((topic, index))
        lease = self._table.leases.get(state.number) if state is not None else None
        known = self._topics.get(topic)
        if lease is None or known is None or index not in known.leaders:
            return
        leader = known.leaders[index]
        if self._is_topic_recreated(lease):
            lease.leader = leader
        elif 0 <= leader.epoch < max(lease.leader.epoch, lease.durable.leader_epoch) or leader == lease.leader:
            return
        newer = leader.epoch > lease.leader.epoch or self._is_topic_recreated(lease)
        lease.leader = leader
        if newer:
            # Another leader's log may end earlier, so the search restarts (LOC-5).
            lease.search = None
        if lease.state is LeaseState.HELD:
            self._follow_leader(lease)
        elif lease.state is LeaseState.UNASSIGNED:
            self._table.grant_candidates[lease.number] = lease
        elif (
            lease.state is LeaseState.BLOCKED and newer and lease.block is not None and lease.block.retry_on_new_leader
        ):
            self._table.unassign(lease)

    def _is_topic_recreated(self, lease: Lease) -> bool:
        """The topic was deleted and recreated (IDN-8)."""
        known = self._topics.get(lease.durable.topic)
        return known is not None and lease.durable.topic_id not in {b"", known.topic_id} and known.topic_id != b""

    def _shard_for(self, lease: Lease) -> int | None:
        if lease.leader.node == NO_LEADER:
            return None
        return self.placement.shard_of(lease.leader.node, lease.durable.topic, lease.durable.index)

    def _follow_leader(self, lease: Lease) -> None:
        """Move a held lease to its leader's node and shard. Without a leader it stays."""
        table, leader = self._table, lease.leader
        if self._is_topic_recreated(lease):
            table.revoke(lease, Relocate())
            return
        if leader.node == NO_LEADER:
            # If the node has left the cluster, no broker serves the partition there.
            if lease.node not in self.nodes:
                table.revoke(lease, Relocate())
            return
        if self._shard_for(lease) != lease.shard_id or (lease.bounds_uncertain and leader.epoch != lease.leader_epoch):
            table.revoke(lease, Relocate())
        elif (leader.node, leader.epoch) != (lease.node, lease.leader_epoch):
            table.dispatcher.drop(lease)
            lease.node, lease.leader_epoch = leader
            _ = table.record(GrantedEntry(lease.number, lease.generation, lease.shard_id, leader.node, leader.epoch))
            self.send_nodes()
            table.send(lease.shard_id, Move(lease.number, lease.generation, leader.node, leader.epoch))
            table.dispatcher.mark_ready(lease)
            table.counters["moves"] += 1

    # --- granting ----------------------------------------------------------------------------------------------------

    def reconsider_unassigned(self, which: Callable[[Lease], bool]) -> None:
        """Consider the matching unassigned leases in the next round, after a change that affects them."""
        for lease in self._table.leases.values():
            if lease.state is LeaseState.UNASSIGNED and lease.backlog.unresolved and which(lease):
                self._table.grant_candidates[lease.number] = lease

    def grant_pending(self) -> None:
        """Grant every candidate lease whose conditions hold."""
        table = self._table
        if not table.grant_candidates:
            return
        leases, table.grant_candidates = list(table.grant_candidates.values()), {}
        for lease in leases:
            if lease.state is LeaseState.UNASSIGNED and lease.backlog.unresolved and not table.stopping:
                self._try(lease)

    def _try(self, lease: Lease) -> None:
        table, durable = self._table, lease.durable
        if self._is_topic_recreated(lease) and not self._restart_in_recreated_topic(lease):
            return
        if not self._sequence_epochs.ensure_synced_rows(lease) or not self._ensure_batch_bounds(lease):
            return
        seat = self._shard_for(lease)
        if seat is None or not table.shard_slots.is_ready(seat):
            return
        assert lease.leader.epoch < 0 or lease.leader.epoch >= durable.leader_epoch, (lease.leader, durable)
        self._learn_topic_id(lease)
        self._grant(lease, seat)

    def _learn_topic_id(self, lease: Lease) -> None:
        durable, known = lease.durable, self._topics[lease.durable.topic]
        if known.topic_id and not durable.topic_id:
            _ = self._table.record(PartitionEntry(lease.number, durable.topic, known.topic_id, durable.index))

    def _restart_in_recreated_topic(self, lease: Lease) -> bool:
        """Start in the recreated topic, whose log has none of our producer state. Unresolved records go to it, under a
        new producer id if a copy may end up there. The new topic id is logged after that id's stamp rows, so a kill in
        between still finds that the rows are needed. Returns False while the lease waits for the rows."""
        table, durable = self._table, lease.durable
        if lease.open_batches() or lease.bounds_uncertain:
            table.possible_duplicates(lease, durable.mark, lease.possibly_written_end, "the topic was made again")
            self._sequence_epochs.request_own_producer_id(lease)
            return False
        known = self._topics[durable.topic]
        _ = table.record(PartitionEntry(lease.number, durable.topic, known.topic_id, durable.index))
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
        if row is not None and one_epoch and self._allowed_pace(lease, through + 1) == OPEN:
            if lease.search is None:
                lease.search = self._search(lease, row.epoch, through)
                table.counters["log_end_searches"] += 1
                text = "how its last batches were cut is lost: the end of the log is found by trying"
                table.notices.append(
                    LeaseNotice("log_end_search_started", durable.topic, durable.index, durable.mark, through + 1, text)
                )
            return True
        text = "the bounds of its batches were lost, and what the broker remembers of them is not certain"
        table.block(lease, Block(BlockReason.BATCH_BOUNDS_UNKNOWN, text, durable.mark, through + 1, retry=False))
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

    def _grant(self, lease: Lease, seat: int) -> None:
        table, durable = self._table, lease.durable
        cuts = lease.open_batches() if lease.search is None else [lease.search.trial]
        next_ordinal = durable.mark if lease.search is None else cuts[0].first
        generation = durable.generation + 1
        node, epoch = lease.leader
        _ = table.record(GrantedEntry(lease.number, generation, seat, node, epoch))
        lease.move(LeaseState.HELD)
        lease.shard_id, lease.node, lease.leader_epoch = seat, node, epoch
        lease.handed_end = next_ordinal
        lease.inherited_end = cuts[-1].first + cuts[-1].count if cuts else durable.mark
        lease.backlog.rewind()
        if lease.search is not None:
            lease.backlog.restrict(next_ordinal, lease.inherited_end)
        lease.pace = self.initial_pace(lease, cuts)
        lease.pace_sent_at = table.now
        table.send(
            seat,
            Grant(
                lease.number,
                durable.topic,
                durable.topic_id or None,
                durable.index,
                generation,
                node,
                epoch,
                list(durable.rows),
                next_ordinal,
                cuts,
                lease.pace,
                durable.anchor,
                durable.log_start,
                table.expiration_ms,
                list(durable.id_rows),
            ),
        )
        table.dispatcher.mark_ready(lease)
        table.await_sync(lease.backlog.unresolved[-1].lsn)
        table.counters["grants"] += 1

    def initial_pace(self, lease: Lease, cuts: list[BatchBounds]) -> str:
        """The pace to grant with. Notes inherited batches whose state the broker may have lost (11.6)."""
        table, durable = self._table, lease.durable
        end = cuts[-1].first + cuts[-1].count if cuts else durable.mark
        allowed = self._allowed_pace(lease, end)
        aged = table.wall_ms() - self._oldest_ms(lease, end) > table.expiration_ms // 2
        if cuts and allowed == FIRST and (durable.anchor is not None or aged):
            lease.uncertain_grant_end = end
        return allowed if 0 < table.synced >= lease.anchor_lsn else FIRST

    def _allowed_pace(self, lease: Lease, end: int) -> str:
        """The pace that known facts allow, synced or not, with everything below `end` in flight."""
        table, durable = self._table, lease.durable
        return pace_of(
            durable.anchor,
            durable.log_start,
            0 if lease.narrow_through > end else self._oldest_ms(lease, end),
            wall_ms=table.wall_ms(),
            expiration_ms=table.expiration_ms,
        )

    @staticmethod
    def _oldest_ms(lease: Lease, end: int) -> int:
        oldest = _NO_TIMESTAMP
        for piece in lease.backlog.unresolved:
            if piece.first >= end:
                break
            oldest = min(oldest, piece.max_ts)
        return oldest

    def current_pace(self, lease: Lease) -> str:
        """The pace that may be sent to the holder now."""
        table, durable = self._table, lease.durable
        if lease.anchor_lsn > table.synced:
            return FIRST
        oldest = 0 if lease.narrow_through > durable.mark else _NO_TIMESTAMP
        wall = table.wall_ms()
        return pace_of(durable.anchor, durable.log_start, oldest, wall_ms=wall, expiration_ms=table.expiration_ms)
