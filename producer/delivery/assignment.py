"""Grants partitions to the one lease table of this process, and gives them producer ids and epochs. In the daemon the
router does this (`daemon/leases`)."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ...wire.messages import OPEN, FlushPartitions, Grant, Move, Node, Nodes, Revoke, Slices
from ..accumulator.budgets import node_budget
from ..metadata.cluster import Cluster, ClusterChange
from ..sender.inflight_limit import pace_of
from ..sender.modes import TRANSACTION_VERSION_2
from ..sender.partitions import PartitionTable
from .partition_state import PartitionState

_NO_TIMESTAMP: Final = 1 << 62


class PartitionAlarm(NamedTuple):
    """A condition to log: `alarm` is the log event, [first, end) the ordinals concerned."""

    alarm: str
    topic: str
    index: int  # type: ignore[assignment]
    first: int
    end: int
    text: str


class PartitionAssigner:
    """Owns the partition states, their leaders and producer ids. `listen` must process the lease table's messages
    completely, so that a revoked lease is back when it returns."""

    def __init__(
        self,
        table: PartitionTable,
        buffer_bytes: int,
        listen: Callable[[float], None],
        *,
        idempotent: bool,
        gate: Callable[[PartitionState], bool] | None = None,
    ) -> None:
        """`gate`: with transactions, whether a partition may be granted now (TRX-2). Then producer id and epoch come
        from `transactional_id_initialized`."""
        self.idempotent: Final = idempotent
        self.partitions: Final[list[PartitionState]] = []
        self.blocked: Final[set[PartitionState]] = set()
        """Partitions not granted until their `retry_at`, a newer leader epoch, or a new producer id."""
        self.alarms: list[PartitionAlarm] = []
        self.flushing = False
        """Set on close: granted partitions are flushed at once."""
        self._table: Final = table
        self._buffer_bytes: Final = buffer_bytes
        self._process_messages: Final = listen
        self._by_place: dict[tuple[str, int], PartitionState] = {}
        self._by_topic: dict[str, list[PartitionState]] = {}
        self._grant_candidates: dict[int, PartitionState] = {}
        self._cluster = Cluster()
        self._gate: Final = gate
        self._producer_id: int | None = None
        self._epoch = 0

    def partition(self, topic: str, index: int) -> PartitionState:
        """The state of a partition, created on first use."""
        found = self._by_place.get((topic, index))
        if found is None:
            found = PartitionState(len(self.partitions), topic, index)
            self._by_place[topic, index] = found
            self._by_topic.setdefault(topic, []).append(found)
            self.partitions.append(found)
            self._learn_leader(found)
            self._begin(found)
        return found

    def replicas_of(self, part: PartitionState) -> set[int]:
        """Nodes with a copy of the partition's log, by the newest metadata."""
        view = self._cluster.partition(part.topic, part.index)
        return set() if view is None else set(view.replicas)

    @property
    def has_work(self) -> bool:
        """Whether `grant_pending` has candidates."""
        return bool(self._grant_candidates)

    # --- producer ids ------------------------------------------------------------------------------------------------

    @property
    def wants_producer_id(self) -> bool:
        """Whether to request a producer id: the first, or one for a partition whose epochs are used up."""
        if not self.idempotent or self._gate is not None:
            return False
        return self._producer_id is None or any(part.needs_producer_id for part in self.blocked)

    @property
    def has_producer_id(self) -> bool:
        """Whether there is a producer id, or none is needed."""
        return not self.idempotent or self._producer_id is not None

    def producer_id_known(self, producer_id: int) -> None:
        """Use the first producer id for all partitions, each later one for one partition that waits for it (IDN-6)."""
        if self._producer_id is None:
            self._producer_id = producer_id
            for part in self.partitions:
                self._begin(part)
            return
        waiting = next((part for part in self.blocked if part.needs_producer_id), None)
        if waiting is not None:
            waiting.begin(producer_id)
            self.unblock(waiting)

    def transactional_id_initialized(self, producer_id: int, epoch: int, now: float) -> None:
        """Use this id and epoch for all partitions, with sequences from 0 (TRX-5). No record may be unresolved."""
        self._producer_id, self._epoch = producer_id, epoch
        self.blocked.clear()
        for part in self.partitions:
            self.revoke(part, now)
            part.begin(producer_id, epoch)
            self.reconsider(part)

    # --- leaders -----------------------------------------------------------------------------------------------------

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, now: float) -> None:
        """Apply new metadata: update nodes, leaders and recreated topics."""
        self._cluster = cluster
        nodes_changed = bool(change.nodes_added or change.nodes_moved or change.nodes_gone)
        if nodes_changed:
            share = node_budget(self._buffer_bytes, len(cluster.nodes))
            nodes = [Node(node.node, node.host, node.port, node.rack, share) for node in cluster.nodes.values()]
            self._table.apply(Nodes(nodes), now=now)
        for replaced in change.topics_replaced:
            for part in self._by_topic.get(replaced.name, ()):
                self._topic_recreated(part, replaced.new_id, now)
        for part in self.partitions if nodes_changed else self._touched(change):
            self._learn_leader(part)
            self._follow(part, now)

    def _touched(self, change: ClusterChange) -> Iterable[PartitionState]:
        return [part for topic in change.topics_with_new_leaders for part in self._by_topic.get(topic, ())]

    def _begin(self, part: PartitionState) -> None:
        if not self.idempotent:
            part.clear_sequences()
        elif self._producer_id is not None and not part.rows:
            part.begin(self._producer_id, self._epoch)
        if part.rows and part.slices:
            self._grant_candidates[part.number] = part

    def _topic_recreated(self, part: PartitionState, topic_id: bytes, now: float) -> None:
        """Move to the empty log of a recreated topic. Unresolved records go there, under another producer id if a copy
        of one already sent may be written there too (IDN-8)."""
        self.revoke(part, now)
        part.topic_id = topic_id
        part.leader = part.leader_epoch = -1
        if part.cuts and self.idempotent:
            self.add_alarm("possible_duplicates", part, part.sent_to, "the topic was made again")
            part.in_doubt_to = part.sent_to
            part.cuts = []
            part.needs_producer_id = True
            self.block(part, None)
        elif part.rows and self.idempotent:
            part.begin(part.rows[-1].producer_id, part.rows[-1].epoch if self._gate is not None else 0)
        self.reconsider(part)

    def _learn_leader(self, part: PartitionState) -> None:
        """Copy the leader from the metadata, unless its epoch is older than the known one (HO-16)."""
        view = self._cluster.partition(part.topic, part.index)
        if view is None:
            return
        topic = self._cluster.topic(part.topic)
        part.topic_id = part.topic_id if topic is None else topic.topic_id
        if view.leader_epoch < 0 or view.leader_epoch >= part.leader_epoch:
            newer = view.leader_epoch > part.leader_epoch
            part.leader, part.leader_epoch = view.leader, view.leader_epoch
            if newer and part in self.blocked and not part.needs_producer_id:
                # The cause may not exist at the new leader.
                self.unblock(part)

    def _follow(self, part: PartitionState, now: float) -> None:
        """Move a granted partition to its leader. Without a leader it stays, unless its node has left the cluster."""
        lease = self._table.partitions.get(part.number)
        if lease is None:
            self.reconsider(part)
        elif part.leader not in self._table.nodes:
            if lease.node not in self._table.nodes:
                self.revoke(part, now)
        elif (part.leader, part.leader_epoch) != (lease.node, lease.leader_epoch):
            self._table.apply(Move(part.number, part.generation, part.leader, part.leader_epoch), now=now)

    def reconsider(self, part: PartitionState) -> None:
        if part.slices and not part.granted:
            self._grant_candidates[part.number] = part

    def grant_pending(self, now: float) -> None:
        """Grant the candidates that are not blocked and have a producer id and a known leader; drop the others."""
        waiting, self._grant_candidates = list(self._grant_candidates.values()), {}
        for part in waiting:
            if part.granted or part in self.blocked or not part.rows or not part.slices:
                continue
            if self._gate is not None and not self._gate(part):
                continue
            if part.leader in self._table.nodes:
                self._grant(part, now)

    def _grant(self, part: PartitionState, now: float) -> None:
        part.generation += 1
        part.granted = True
        if not self.idempotent:
            part.clear_sequences()
        first = part.cuts[0].first if part.cuts else part.ack_mark
        part.pace = self.pace(part, now)
        part.pace_sent_at = now
        self._table.apply(
            Grant(
                part.number,
                part.topic,
                part.topic_id,
                part.index,
                part.generation,
                part.leader,
                part.leader_epoch,
                list(part.rows),
                first,
                list(part.cuts),
                part.pace,
                part.anchor,
                part.log_start,
                self._table.limits.expiration_ms,
            ),
            now=now,
        )
        part.cuts = []
        self._table.apply(Slices(part.slices_from(first)), now=now)
        if self.flushing:
            self._table.apply(FlushPartitions([(part.number, part.end - 1)]), now=now)

    def revoke(self, part: PartitionState, now: float) -> None:
        """Take the lease back. Afterwards `part.cuts` has the batches that may have been sent."""
        if part.granted:
            self._table.apply(Revoke(part.number, part.generation), now=now)
            self._process_messages(now)
            assert not part.granted, "a lease that was called back and did not come"

    def pace(self, part: PartitionState, now: float) -> str:
        if not self.idempotent or self._table.limits.transaction_version >= TRANSACTION_VERSION_2:
            return OPEN
        end = part.sent_to
        oldest = min((ref.max_ts for ref in part.slices if ref.first < end), default=_NO_TIMESTAMP)
        return pace_of(
            part.anchor,
            part.log_start,
            oldest,
            wall_ms=self._table.wall.ms(now),
            expiration_ms=self._table.limits.expiration_ms,
        )

    def block(self, part: PartitionState, until: float | None) -> None:
        part.retry_at = until
        self.blocked.add(part)

    def unblock(self, part: PartitionState) -> None:
        part.retry_at = None
        self.blocked.discard(part)
        self.reconsider(part)

    def add_alarm(self, event: str, part: PartitionState, end: int, text: str) -> None:
        """Add an alarm about the ordinals from `ack_mark` to `end`."""
        self.alarms.append(PartitionAlarm(event, part.topic, part.index, part.ack_mark, end, text))
