"""A lease table with a log in memory, and shards whose every word the test says."""

from dataclasses import dataclass, field
from typing import TypeVar

from penstock.daemon.leases.ownership import LeaseLimits, Leases
from penstock.daemon.ledger.entries import ControlEntry, Entry, FrameEntry, Lsn, SliceEntry
from penstock.daemon.ledger.partition_state import Ledger, LedgerPartition
from penstock.daemon.ledger.slices import PendingFrame, PendingSlice, SliceEnded
from penstock.producer.metadata.cluster import (
    BrokerAddress,
    Cluster,
    ClusterChange,
    MetadataAnswer,
    PartitionView,
    TopicAnswer,
)
from penstock.wire.journal import LIVE, JournalSlot
from penstock.wire.messages import (
    BatchBounds,
    BatchesDone,
    BatchRefused,
    Credit,
    DoneBatch,
    Grant,
    Revoked,
    RouterMessage,
    ShardMessage,
    SliceRef,
    Slices,
)

_M = TypeVar("_M")
WALL_OFFSET_MS = 1_700_000_000_000
EXPIRATION_MS = 24 * 3_600_000
TOPIC = "orders"
TOPIC_ID = b"\x01" * 16


class MemoryLog:
    """Entries in order; their places are counted from 1."""

    def __init__(self) -> None:
        self.entries: list[ControlEntry] = []
        self.entries_at: list[Entry | None] = []
        """By place, from 1; None where a test keeps no frame."""

    @property
    def place(self) -> int:
        return len(self.entries_at)

    def append(self, entry: ControlEntry) -> Lsn:
        self.entries.append(entry)
        self.entries_at.append(entry)
        return Lsn(self.place)

    def step(self, entry: Entry | None = None) -> Lsn:
        self.entries_at.append(entry)
        return Lsn(self.place)


def a_frame(count: int = 1) -> PendingFrame:
    return PendingFrame("app", 1000, 0, 2, count, 100, Lsn(1), 0, None, 1)


def done_item(
    grant: Grant, first: int, count: int, *, base_offset: int | None = None, log_start: int = 0, time_ms: int = -2
) -> DoneBatch:
    """A success; by default with base offset = ordinal and a fresh time."""
    offset = first if base_offset is None else base_offset
    when = WALL_OFFSET_MS if time_ms == -2 else time_ms
    return DoneBatch(grant.partition, grant.generation, first, count, offset, when, -1, log_start, 0, 1)


@dataclass
class Desk:
    """The table with two seats, two nodes (node 1 -> seat 0, node 2 -> seat 1), partition 0 led by node 1, 1 by node 2."""

    seats: int = 2
    parks: set[str] = field(default_factory=set)
    now: float = 100.0
    log: MemoryLog = field(default_factory=MemoryLog)
    ledger: Ledger = field(default_factory=Ledger)
    said: list[tuple[int, RouterMessage]] = field(default_factory=list)
    ended: list[SliceEnded] = field(default_factory=list)
    known: Cluster = field(default_factory=Cluster)
    pushed: int = 0

    def __post_init__(self) -> None:
        self.leases = self.start()

    def start(self) -> Leases:
        """A router's lease table over the ledger as it is."""
        self.known = Cluster()
        for (topic, index), state in self.ledger.by_topic_partition.items():
            if state.leader_epoch >= 0:
                self.known = self.known.with_floors(topic, state.topic_id or None, {index: state.leader_epoch})
        limits = LeaseLimits(self.seats, 3_000, 10_000, 1_000, 60_000, 64 << 20)
        return Leases(
            self.ledger, self.log, limits, self.parks.__contains__, now=self.now, wall_offset_ms=WALL_OFFSET_MS
        )

    def partition(self, index: int, topic: str = TOPIC, topic_id: bytes = TOPIC_ID) -> LedgerPartition:
        entry = self.ledger.new_partition_entry(topic, topic_id, index)
        self.log.append(entry)
        self.ledger.apply(entry)
        return self.ledger.by_number[entry.partition]

    def cluster(
        self,
        *leaders: tuple[int, int, int],
        nodes: tuple[int, ...] = (1, 2),
        topic: str = TOPIC,
        topic_id: bytes = TOPIC_ID,
    ) -> None:
        """Metadata arrives: the nodes, and (index, leader, epoch) of partitions."""
        brokers = [BrokerAddress(node, f"b{node}", 9092, "") for node in nodes]
        parts = [PartitionView(index, leader, epoch, (), (), 0) for index, leader, epoch in leaders]
        topics = [TopicAnswer(topic, topic_id, 0, False, parts)] if parts else []
        self.known, change = self.known.merge(MetadataAnswer(brokers, "", 0, topics, 0))
        self.leases.cluster_changed(self.known, change, self.now)

    def topic_gone(self) -> None:
        """Brokers reported more than once that the topic does not exist."""
        answer = MetadataAnswer(list(self.known.nodes.values()), "", 0, [TopicAnswer(TOPIC, None, 3, False, [])], 0)
        self.known, _ = self.known.merge(answer)
        self.leases.cluster_changed(self.known, ClusterChange(topics_missing=(TOPIC,)), self.now)

    def follow_hints(self) -> None:
        """The metadata applies the leaders that shards heard of."""
        for hint in self.leases.new_leaders:
            self.known, change = self.known.apply_leader_hint(*hint)
            self.leases.cluster_changed(self.known, change, self.now)
        self.leases.new_leaders.clear()

    def shard(self, seat: int, *, credit: int = 1 << 30) -> None:
        self.leases.shard_connected(seat, self.now)
        self.leases.shard_ready(seat, self.now)
        for node in (1, 2, 3):
            self.say(seat, Credit(node, credit))

    def shard_credit(self, seat: int, node: int, total: int) -> None:
        self.say(seat, Credit(node, total))

    def leases_of_seat(self, seat: int) -> list[int]:
        return [lease.durable.index for lease in self.leases.all() if lease.shard_id == seat]

    def up(self) -> None:
        """Producer id, cluster with two partitions, both shards."""
        self.leases.set_producer_id(7)
        self.cluster((0, 1, 5), (1, 2, 5))
        for seat in range(self.seats):
            self.shard(seat)

    def push(self, number: int, count: int, *, max_ts: int = WALL_OFFSET_MS) -> PendingSlice:
        """A slice of a frame is spooled."""
        state = self.ledger.by_number[number]
        first, place = state.next_ordinal, self.log.step()
        entry = SliceEntry(number, first, count, max_ts, 0, 100)
        self.ledger.apply(FrameEntry("app", 1000, first, -1, 2, 0, count, None, [entry]))
        piece = PendingSlice(number, first, count, 1, first * 100, 100, max_ts, 0, place, a_frame(count))
        self.leases.push(piece)
        self.pushed += count
        return piece

    def say(self, seat: int, message: ShardMessage) -> None:
        self.leases.message(seat, message, self.now)
        self.follow_hints()

    def round(self, *, sync: bool = True) -> list[tuple[int, RouterMessage]]:
        """One round of the router; returns what it said."""
        if sync:
            self.leases.synced(Lsn(self.log.place))
        self.leases.tick(self.now)
        self.leases.hand_out(self.now)
        said = self.leases.outbox[:]
        self.leases.outbox.clear()
        self.said += said
        self.ended += self.leases.ended
        self.leases.ended.clear()
        return said

    def settle(self) -> list[tuple[int, RouterMessage]]:
        """Rounds until nothing more is said."""
        said: list[tuple[int, RouterMessage]] = []
        for _ in range(20):
            more = self.round()
            said += more
            if not more and not self.leases.needs_sync:
                return said
        raise AssertionError("the table does not come to rest")

    def held(self, number: int) -> Grant:
        """The grant of a partition that was said last."""
        grants = [message for _, message in self.said if isinstance(message, Grant) and message.partition == number]
        return grants[-1]

    def granted(self, number: int, count: int = 10) -> Grant:
        """A partition with one slice, granted and handed out."""
        self.push(number, count)
        self.settle()
        return self.held(number)

    def opened(self, number: int, count: int = 10) -> Grant:
        """The same after its first acknowledgement: pace OPEN."""
        grant = self.granted(number, count)
        self.done(grant, 0, 1)
        self.settle()
        return grant

    def seat_of(self, number: int) -> int:
        grants = [(seat, m) for seat, m in self.said if isinstance(m, Grant) and m.partition == number]
        return grants[-1][0]

    def done(self, grant: Grant, first: int, count: int, **how: int) -> None:
        self.say(self.seat_of(grant.partition), BatchesDone([done_item(grant, first, count, **how)]))

    def revoked(self, grant: Grant, *cuts: BatchBounds) -> None:
        self.say(self.seat_of(grant.partition), Revoked(grant.partition, grant.generation, list(cuts)))

    def refused(self, grant: Grant, first: int, count: int, code: int, **how: object) -> None:
        fields: dict[str, object] = {"message": "", "record_errors": [], "ambiguous": False} | how
        message = BatchRefused(grant.partition, grant.generation, first, count, code, **fields)  # type: ignore[arg-type]
        self.say(self.seat_of(grant.partition), message)

    def slot(self, grant: Grant, first: int, count: int, serial: int = 1, epoch: int = 0) -> JournalSlot:
        row = grant.rows[-1]
        return JournalSlot(serial, grant.partition, grant.generation, first, count, epoch, LIVE, row.producer_id)

    def dead(self, seat: int, *slots: JournalSlot, facts: bool = True) -> None:
        self.leases.shard_dead(seat, slots, self.now, facts=facts)


def of_kind(said: list[tuple[int, RouterMessage]], kind: type[_M]) -> list[_M]:
    return [message for _, message in said if isinstance(message, kind)]


def refs(said: list[tuple[int, RouterMessage]]) -> list[SliceRef]:
    return [ref for message in of_kind(said, Slices) for ref in message.refs]
