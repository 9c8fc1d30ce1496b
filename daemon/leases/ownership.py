"""The router's table of leases: which shard may send which partition, and how every slice ends.

Everything that concerns shards comes in here as an event and goes out as messages, ended slices and requests, which the router
drains each round. Entries are put into the log as events are applied; `tick` places leases, so it runs before the log is
written; `hand_out` runs after it. Never two holders (HO-4): a lease is granted only from UNPLACED.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from ...wire.journal import JournalSlot
from ...wire.messages import (
    FIRST,
    OPEN,
    Broken,
    Credit,
    Done,
    Flush,
    Gap,
    Halt,
    Hello,
    Hint,
    Load,
    Node,
    Ping,
    Refused,
    Revoked,
    ShardMessage,
    Stop,
    Unreadable,
)
from ..ledger.entries import Lsn
from ..ledger.partition_state import Ledger
from ..ledger.segments import Segments, relocate
from ..ledger.slices import Log, PendingSlice
from .batch_bounds import from_slots
from .grants import Grants
from .lease import Alarm, Lease, LeaseView, Queued, view
from .refused_batches import ParkRequest
from .sequence_epochs import Stamps
from .shard_reports import Outcomes
from .states import HOLDING, LeaseState, Relocate, Stand, Step
from .table import LeaseLimits, LeaseTable, Notice

__all__ = ["Alarm", "LeaseLimits", "LeaseView", "Leases", "Notice", "ParkRequest"]


_HELD: Final = LeaseState.HELD
_UNPLACED: Final = LeaseState.UNPLACED
AGES_EVERY_S: Final = 30.0
"""How often held leases are looked over for old acknowledgements; half of E is hours."""


class Leases:
    """See the module. Outputs are lists that the caller empties: `outbox`, `ended`, `park_requests`, `kill`, `notices`,
    `stale_topics`; `alarms` and `counters` stand."""

    def __init__(
        self,
        ledger: Ledger,
        log: Log,
        limits: LeaseLimits,
        parks_refused: Callable[[str], bool],
        *,
        now: float,
        wall_offset_ms: int,
    ) -> None:
        table = self._table = LeaseTable(ledger, log, limits, now=now, wall_offset_ms=wall_offset_ms)
        self._stamps = Stamps(table)
        self._grants = Grants(table, self._stamps)
        self._outcomes = Outcomes(table, self._grants, parks_refused)
        self._flushes: dict[int, Lease] = {}
        self._ages_at = now + AGES_EVERY_S
        self.outbox = table.outbox
        self.ended = table.ended
        self.park_requests = table.park_requests
        self.kill = table.kill
        self.notices = table.notices
        self.stale_topics = table.stale_topics
        self.alarms: Mapping[int, Alarm] = table.alarms
        self.counters: Mapping[str, int] = table.counters
        self.loads: Mapping[int, Load] = table.loads
        self.past: Mapping[str, int] = table.past

    # --- at the start of the router ----------------------------------------------------------------------------------

    def recover(self, slots: Iterable[JournalSlot], *, facts: bool, lost: Iterable[int] = ()) -> None:
        """What the journals of an earlier router's shards say, before anything is pushed. `facts` False: a power cut, or a
        journal that cannot be read: then nothing says how unresolved records were cut. `lost`: partitions of which the
        recovery found ordinals missing."""
        table = self._table
        by_partition: dict[int, list[JournalSlot]] = {}
        for slot in slots:
            by_partition.setdefault(slot.partition, []).append(slot)
        for number, state in table.ledger.by_number.items():
            # Rows are synced before anything is sent: without one nothing can be out.
            if not state.rows or state.mark == state.next_ordinal:
                continue
            lease = table.lease_of(number)
            found = from_slots(by_partition.get(number, []), lease.open_cuts(), state.rows, state.mark)
            certain = facts and found.certain and found.end <= state.next_ordinal
            cuts = [cut for cut in found.cuts if cut.first + cut.count <= state.next_ordinal]
            table.know_cuts(lease, cuts, None if certain else state.next_ordinal)
        self._stamps.mend(set(lost))

    def new_identity(self, reason: str) -> None:
        """The spool may be behind what Kafka has (IDN-9): everything unresolved goes out under a new id, counted. Before the
        producer id is told."""
        self._stamps.identity_reason = reason

    @property
    def wants_producer_id(self) -> bool:
        """InitProducerId is to be asked."""
        return self._stamps.wants_producer_id

    def producer_id_known(self, producer_id: int) -> None:
        """The daemon's id, synced in the identity file; or, later, one more for a partition that needs its own."""
        first = self._stamps.producer_id is None
        self._stamps.producer_id_known(producer_id)
        if first:
            self._grants.consider_unplaced(lambda _lease: True)

    # --- records -----------------------------------------------------------------------------------------------------

    def push(self, piece: PendingSlice) -> None:
        """A slice was spooled (or recovered); in ordinal order per partition."""
        table = self._table
        lease = table.leases.get(piece.partition)
        if lease is None:
            lease = table.lease_of(piece.partition)
        backlog = lease.backlog
        if not backlog.unresolved:
            self._grants.begin(lease)
        backlog.push(piece)
        table.pushed += piece.count
        state = lease.state
        if state is _HELD:
            table.wanted = max(table.wanted, piece.lsn)
            if len(backlog.waiting) == 1:
                table.handout.ready(lease)
        elif state is _UNPLACED and len(backlog.unresolved) == 1:
            table.consider[piece.partition] = lease

    @property
    def wants_sync(self) -> bool:
        """A hand-out, a grant or a pace waits for a sync."""
        return self._table.wanted > self._table.synced

    def synced(self, through: Lsn) -> None:
        """The log is on disk up to the entry at this place, and with it."""
        table = self._table
        table.synced = through
        waiting, table.rows_awaited = table.rows_awaited, []
        for lease in waiting:
            if lease.state is LeaseState.UNPLACED:
                table.consider[lease.number] = lease

    def relocate(self, moved: Mapping[Lsn, Lsn], segments: Segments) -> None:
        """A sync failed, and entries that none covered were written again: their slices, never handed out, lie there now.
        Marks that are waited for stay: a later sync covers the old places too."""
        slices = (piece for lease in self._table.leases.values() for piece in lease.backlog.unresolved)
        relocate(moved, slices, segments)
        self._table.await_sync(max(moved.values(), default=Lsn(0)))

    def hand_out(self, now: float) -> None:
        """Put references to synced slices into the outbox, as far as credit goes; then the flushes that they complete."""
        table = self._table
        table.now = now
        table.handout.run(table.synced, table.wall_ms() - table.expiration_ms // 2)
        if self._flushes:
            self._tell_flushes()

    def flush(self, through: Iterable[tuple[int, int]]) -> None:
        """No linger for these partitions up to these ordinals (inclusive)."""
        for number, ordinal in through:
            lease = self._table.leases.get(number)
            if lease is not None and ordinal >= lease.durable.mark:
                lease.flush_through = max(lease.flush_through, ordinal)
                self._flushes[number] = lease

    def flush_all(self) -> None:
        """No linger for anything there is."""
        leases = self._table.leases.values()
        self.flush((lease.number, lease.backlog.end - 1) for lease in leases if lease.backlog.unresolved)

    def _tell_flushes(self) -> None:
        told: dict[int, list[tuple[int, int]]] = {}
        for number, lease in list(self._flushes.items()):
            if lease.durable.mark > lease.flush_through:
                del self._flushes[number]
            elif (
                lease.state is LeaseState.HELD
                and lease.handed_end > lease.flush_through
                and lease.flush_told < lease.flush_through + 1
            ):
                lease.flush_told = lease.flush_through + 1
                told.setdefault(lease.seat, []).append((number, lease.flush_through))
        for seat, pairs in told.items():
            self._table.send(seat, Flush(pairs))

    # --- the cluster -------------------------------------------------------------------------------------------------

    def expiration_known(self, expiration_ms: int) -> None:
        """E: the brokers' `producer.id.expiration.ms`. When it is shorter than what holders were told, they get new leases."""
        table = self._table
        shorter, table.expiration_ms = expiration_ms < table.expiration_ms, expiration_ms
        for lease in table.leases.values():
            if shorter and lease.state is LeaseState.HELD:
                table.recall(lease, Relocate())

    def nodes(self, nodes: Iterable[Node], now: float) -> None:
        """The cluster's nodes, whole; told before the leaders of the same metadata. Budgets are filled in here."""
        self._table.now = now
        self._grants.set_nodes(nodes)

    def leaders(self, topic: str, topic_id: bytes, leaders: Iterable[tuple[int, int, int]], now: float) -> None:
        """(index, node or -1, leader epoch) of a topic's partitions. `topic_id` b"": not known."""
        self._table.now = now
        self._grants.set_leaders(topic, topic_id, leaders)

    def topic_gone(self, topic: str, now: float) -> None:
        """Metadata knows no such topic."""
        self._table.now = now
        self._grants.topic_gone(topic)

    # --- shards ------------------------------------------------------------------------------------------------------

    def shard_greeted(self, seat: int, now: float) -> None:
        """HELLO without a journal."""
        self._table.now = now
        if self._table.seats.greeted(seat):
            self._grants.deal()

    def shard_ready(self, seat: int, now: float) -> None:
        """HELLO with its journal: it may be granted leases."""
        self._table.now = now
        self._table.seats.named_journal(seat)
        if self._table.stopping:
            self._table.send(seat, Stop(0))
        else:
            self._grants.seat_ready(seat)

    def shard_failing(self, seat: int, now: float) -> None:
        """It is being killed, and not reaped yet."""
        self._table.now = now
        self._table.dying(seat)

    def shard_dead(self, seat: int, slots: Iterable[JournalSlot], now: float, *, facts: bool) -> None:
        """It is reaped, everything it said was applied, its journal is read."""
        table = self._table
        table.now = now
        by_partition: dict[int, list[JournalSlot]] = {}
        for slot in slots:
            by_partition.setdefault(slot.partition, []).append(slot)
        table.dying(seat)
        # What was meant for it must not reach its successor.
        table.outbox[:] = [said for said in table.outbox if said[0] != seat]
        for lease in list(table.leases.values()):
            if lease.seat != seat or lease.state not in HOLDING:
                continue
            durable = lease.durable
            found = from_slots(by_partition.get(lease.number, []), lease.open_cuts(), durable.rows, durable.mark)
            certain = facts and found.certain and found.end <= lease.sent_end
            cuts = [cut for cut in found.cuts if cut.first + cut.count <= durable.next_ordinal]
            table.returned(lease, cuts, facts=certain)
        table.handout.forget(seat)
        told = table.loads.pop(seat, None)
        if told is not None:
            table.past.update(told.counters)
        table.seats.reaped(seat, now)
        table.counters["shard_deaths"] += 1

    def message(self, seat: int, message: ShardMessage, now: float) -> None:
        """What a shard says, in the order it said it."""
        self._table.now = now
        match message:
            case Done():
                self._outcomes.done(seat, message.items)
            case Credit():
                self._table.handout.credit(seat, message.node, message.total_bytes)
            case Revoked():
                self._outcomes.revoked(seat, message)
            case Refused():
                self._outcomes.refused(seat, message)
            case Hint():
                self._outcomes.hint(seat, message)
            case Gap():
                self._outcomes.gap(seat, message)
            case Halt():
                self._outcomes.halt(seat, message)
            case Unreadable():
                self._outcomes.unreadable(seat, message)
            case Load():
                self._table.loads[seat] = message
            case Broken():
                self._table.fault(seat, f"it broke: {message.what}")
            case Hello() | Ping():
                pass  # the bus has answered
            case _:
                assert_never(message)

    def resend(self, topic: str, index: int, now: float) -> bool:
        """People decided: a blocked partition goes on from its mark under a new producer id, and what may be in the log by then
        is counted as possible duplicates. Returns False when it is not blocked."""
        self._table.now = now
        state = self._table.ledger.by_place.get((topic, index))
        lease = self._table.leases.get(state.number) if state is not None else None
        if lease is None or lease.state is not LeaseState.BLOCKED:
            return False
        self._stamps.resend(lease)
        return True

    def parked(self, request: ParkRequest, letter: str, now: float) -> None:
        """The records of a request lie in the dead letters, synced, under this name."""
        table = self._table
        table.now = now
        lease = table.leases[request.partition]
        assert lease.state is LeaseState.SETTLING, (lease.number, lease.state)
        assert lease.step is Step.LETTER, (lease.number, lease.step)
        self._stamps.write_parked(lease, request, letter)

    # --- time and end ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Every round before the log is written: what is due, and what may be granted."""
        table = self._table
        table.now = now
        if table.seats.expire(now):
            self._grants.deal()
        if table.timed:
            self._due(now)
        if now >= self._ages_at:
            self._ages_at = now + AGES_EVERY_S
            self._ages()
        self._outcomes.paces()
        self._grants.place()

    def _due(self, now: float) -> None:
        table = self._table
        for number, lease in list(table.timed.items()):
            if lease.state is LeaseState.RECALLED:
                if now >= lease.recall_until:
                    table.fault(lease.seat, "it did not give a lease back")
            elif lease.state is LeaseState.BLOCKED and lease.retry_at is not None:
                if now >= lease.retry_at and not table.stopping:
                    table.unplace(lease)
            else:
                del table.timed[number]

    def _ages(self) -> None:
        """An acknowledgement grew old, and with it the broker's memory: narrower from now on."""
        for lease in self._table.leases.values():
            if lease.state is LeaseState.HELD and lease.pace == OPEN:
                pace = self._grants.renewed_pace(lease)
                if pace == FIRST:
                    self._table.tell_pace_now(lease, pace)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        table = self._table
        deadlines = [self._ages_at]
        seats = table.seats.next_deadline()
        if seats is not None:
            deadlines.append(seats)
        for lease in table.timed.values():
            if lease.state is LeaseState.RECALLED:
                deadlines.append(lease.recall_until)
            elif lease.state is LeaseState.BLOCKED and lease.retry_at is not None and not table.stopping:
                deadlines.append(lease.retry_at)
        return min(deadlines)

    def stop(self, deadline_ms: int, now: float) -> None:
        """Grant nothing any more; every shard gives everything back within this time and exits."""
        table = self._table
        table.now = now
        table.stopping = True
        for lease in table.leases.values():
            if lease.state is LeaseState.HELD:
                table.handout.drop(lease)
                lease.move(LeaseState.RECALLED)
                lease.errand = Stand()
            if lease.state is LeaseState.RECALLED:
                lease.recall_until = now + (deadline_ms + table.limits.recall_ms) / 1000
                table.timed[lease.number] = lease
        for seat in table.seats.ready():
            table.send(seat, Stop(deadline_ms))

    @property
    def all_returned(self) -> bool:
        """No shard holds anything, and nothing waits to be parked: every cut is in the spool, as a fact."""
        return all(
            lease.state not in HOLDING and lease.step is not Step.LETTER for lease in self._table.leases.values()
        )

    @property
    def idle(self) -> bool:
        """Nothing is unresolved."""
        return not any(lease.backlog.unresolved for lease in self._table.leases.values())

    def topics_in_use(self) -> set[str]:
        """Topics that a shard holds a partition of, or that have records: their leaders must be known."""
        leases = self._table.leases.values()
        return {lease.durable.topic for lease in leases if lease.state in HOLDING or lease.backlog.unresolved}

    # --- to look at --------------------------------------------------------------------------------------------------

    @property
    def pending_records(self) -> int:
        """Records pushed in this start whose slices have not ended: pushed = delivered + parked + pending."""
        counters = self._table.counters
        return self._table.pushed - counters["records_delivered"] - counters["records_parked"]

    @property
    def handed_out_slices(self) -> int:
        """References handed out since the start, repeats counted again."""
        return self._table.handout.slices

    @property
    def pushed_records(self) -> int:
        return self._table.pushed

    def queue(self, number: int) -> Queued:
        """What waits for a partition."""
        lease = self._table.leases.get(number)
        if lease is None:
            return Queued(-1, -1, 0, 0)
        backlog = lease.backlog
        return Queued(lease.seat, lease.node, backlog.handed_bytes, max(0, backlog.nbytes - backlog.handed_bytes))

    def views(self) -> list[LeaseView]:
        """Every partition with a lease, for people."""
        return [view(lease) for lease in self._table.leases.values()]
