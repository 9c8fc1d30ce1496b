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
    BatchesDone,
    BatchRefused,
    Credit,
    FlushPartitions,
    NewLeaderHint,
    Node,
    PartitionHalted,
    Ping,
    ProbeRefused,
    Revoked,
    ShardFailed,
    ShardHello,
    ShardLoad,
    ShardMessage,
    SliceUnreadable,
    Stop,
)
from ..ledger.entries import Lsn
from ..ledger.partition_state import Ledger
from ..ledger.segments import Segments, relocate
from ..ledger.slices import EntryLog, PendingSlice
from .batch_bounds import from_journal_slots
from .grants import Grants
from .lease import Lease, LeaseAlarm, LeaseView, QueuedBytes, view
from .refused_batches import DeadLetterRequest
from .sequence_epochs import SequenceEpochs
from .shard_reports import ShardReports
from .states import POSSIBLY_HELD, LeaseState, Relocate, SettlingStep, ShutDown
from .table import LeaseLimits, LeaseNotice, LeaseTable

__all__ = ["DeadLetterRequest", "LeaseAlarm", "LeaseLimits", "LeaseNotice", "LeaseView", "Leases"]


_HELD: Final = LeaseState.HELD
_UNPLACED: Final = LeaseState.UNASSIGNED
AGES_EVERY_S: Final = 30.0
"""How often held leases are looked over for old acknowledgements; half of E is hours."""


class Leases:
    """See the module. Outputs are lists that the caller empties: `outbox`, `ended`, `dead_letter_requests`, `shards_to_kill`, `notices`,
    `stale_topics`; `alarms` and `counters` stand."""

    def __init__(
        self,
        ledger: Ledger,
        log: EntryLog,
        limits: LeaseLimits,
        parks_refused: Callable[[str], bool],
        *,
        now: float,
        wall_offset_ms: int,
    ) -> None:
        table = self._table = LeaseTable(ledger, log, limits, now=now, wall_offset_ms=wall_offset_ms)
        self._sequence_epochs = SequenceEpochs(table)
        self._grants = Grants(table, self._sequence_epochs)
        self._outcomes = ShardReports(table, self._grants, parks_refused)
        self._flushes: dict[int, Lease] = {}
        self._ages_at = now + AGES_EVERY_S
        self.outbox = table.outbox
        self.ended = table.ended
        self.dead_letter_requests = table.dead_letter_requests
        self.shards_to_kill = table.shards_to_kill
        self.notices = table.notices
        self.stale_topics = table.stale_topics
        self.alarms: Mapping[int, LeaseAlarm] = table.alarms
        self.counters: Mapping[str, int] = table.counters
        self.loads: Mapping[int, ShardLoad] = table.loads
        self.exited_shard_counters: Mapping[str, int] = table.exited_shard_counters

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
            found = from_journal_slots(by_partition.get(number, []), lease.open_batches(), state.rows, state.mark)
            certain = facts and found.certain and found.end <= state.next_ordinal
            cuts = [cut for cut in found.bounds if cut.first + cut.count <= state.next_ordinal]
            table.record_batch_bounds(lease, cuts, None if certain else state.next_ordinal)
        self._sequence_epochs.repair_lost_ranges(set(lost))

    def require_new_producer_id(self, reason: str) -> None:
        """The spool may be behind what Kafka has (IDN-9): everything unresolved goes out under a new id, counted. Before the
        producer id is told."""
        self._sequence_epochs.new_id_reason = reason

    @property
    def needs_producer_id(self) -> bool:
        """InitProducerId is to be asked."""
        return self._sequence_epochs.needs_producer_id

    def set_producer_id(self, producer_id: int) -> None:
        """The daemon's id, synced in the identity file; or, later, one more for a partition that needs its own."""
        first = self._sequence_epochs.producer_id is None
        self._sequence_epochs.set_producer_id(producer_id)
        if first:
            self._grants.reconsider_unassigned(lambda _lease: True)

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
            table.sync_wanted = max(table.sync_wanted, piece.lsn)
            if len(backlog.waiting) == 1:
                table.dispatcher.mark_ready(lease)
        elif state is _UNPLACED and len(backlog.unresolved) == 1:
            table.grant_candidates[piece.partition] = lease

    @property
    def needs_sync(self) -> bool:
        """A hand-out, a grant or a pace waits for a sync."""
        return self._table.sync_wanted > self._table.synced

    def synced(self, through: Lsn) -> None:
        """The log is on disk up to the entry at this place, and with it."""
        table = self._table
        table.synced = through
        waiting, table.awaiting_row_sync = table.awaiting_row_sync, []
        for lease in waiting:
            if lease.state is LeaseState.UNASSIGNED:
                table.grant_candidates[lease.number] = lease

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
        table.dispatcher.run(table.synced, table.wall_ms() - table.expiration_ms // 2)
        if self._flushes:
            self._send_flushes()

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

    def _send_flushes(self) -> None:
        told: dict[int, list[tuple[int, int]]] = {}
        for number, lease in list(self._flushes.items()):
            if lease.durable.mark > lease.flush_through:
                del self._flushes[number]
            elif (
                lease.state is LeaseState.HELD
                and lease.handed_end > lease.flush_through
                and lease.flush_sent_end < lease.flush_through + 1
            ):
                lease.flush_sent_end = lease.flush_through + 1
                told.setdefault(lease.shard_id, []).append((number, lease.flush_through))
        for seat, pairs in told.items():
            self._table.send(seat, FlushPartitions(pairs))

    # --- the cluster -------------------------------------------------------------------------------------------------

    def expiration_known(self, expiration_ms: int) -> None:
        """E: the brokers' `producer.id.expiration.ms`. When it is shorter than what holders were told, they get new leases."""
        table = self._table
        shorter, table.expiration_ms = expiration_ms < table.expiration_ms, expiration_ms
        for lease in table.leases.values():
            if shorter and lease.state is LeaseState.HELD:
                table.revoke(lease, Relocate())

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

    def shard_connected(self, seat: int, now: float) -> None:
        """HELLO without a journal."""
        self._table.now = now
        if self._table.shard_slots.mark_connected(seat):
            self._grants.assign_nodes()

    def shard_ready(self, seat: int, now: float) -> None:
        """HELLO with its journal: it may be granted leases."""
        self._table.now = now
        self._table.shard_slots.mark_ready(seat)
        if self._table.stopping:
            self._table.send(seat, Stop(0))
        else:
            self._grants.shard_ready(seat)

    def shard_dying(self, seat: int, now: float) -> None:
        """It is being killed, and not reaped yet."""
        self._table.now = now
        self._table.fence_shard(seat)

    def shard_dead(self, seat: int, slots: Iterable[JournalSlot], now: float, *, facts: bool) -> None:
        """It is reaped, everything it said was applied, its journal is read."""
        table = self._table
        table.now = now
        by_partition: dict[int, list[JournalSlot]] = {}
        for slot in slots:
            by_partition.setdefault(slot.partition, []).append(slot)
        table.fence_shard(seat)
        # What was meant for it must not reach its successor.
        table.outbox[:] = [said for said in table.outbox if said[0] != seat]
        for lease in list(table.leases.values()):
            if lease.shard_id != seat or lease.state not in POSSIBLY_HELD:
                continue
            durable = lease.durable
            found = from_journal_slots(
                by_partition.get(lease.number, []), lease.open_batches(), durable.rows, durable.mark
            )
            certain = facts and found.certain and found.end <= lease.possibly_sent_end
            cuts = [cut for cut in found.bounds if cut.first + cut.count <= durable.next_ordinal]
            table.lease_returned(lease, cuts, facts=certain)
        table.dispatcher.forget(seat)
        told = table.loads.pop(seat, None)
        if told is not None:
            table.exited_shard_counters.update(told.counters)
        table.shard_slots.mark_reaped(seat, now)
        table.counters["shard_exits"] += 1

    def message(self, seat: int, message: ShardMessage, now: float) -> None:
        """What a shard says, in the order it said it."""
        self._table.now = now
        match message:
            case BatchesDone():
                self._outcomes.batches_done(seat, message.items)
            case Credit():
                self._table.dispatcher.credit(seat, message.node, message.total_bytes)
            case Revoked():
                self._outcomes.revoked(seat, message)
            case BatchRefused():
                self._outcomes.refused(seat, message)
            case NewLeaderHint():
                self._outcomes.leader_hint(seat, message)
            case ProbeRefused():
                self._outcomes.gap(seat, message)
            case PartitionHalted():
                self._outcomes.halt(seat, message)
            case SliceUnreadable():
                self._outcomes.unreadable(seat, message)
            case ShardLoad():
                self._table.loads[seat] = message
            case ShardFailed():
                self._table.kill_shard(seat, f"it broke: {message.what}")
            case ShardHello() | Ping():
                pass  # the bus has answered
            case _:
                assert_never(message)

    def resend(self, topic: str, index: int, now: float) -> bool:
        """People decided: a blocked partition goes on from its mark under a new producer id, and what may be in the log by then
        is counted as possible duplicates. Returns False when it is not blocked."""
        self._table.now = now
        state = self._table.ledger.by_topic_partition.get((topic, index))
        lease = self._table.leases.get(state.number) if state is not None else None
        if lease is None or lease.state is not LeaseState.BLOCKED:
            return False
        self._sequence_epochs.resend(lease)
        return True

    def dead_lettered(self, request: DeadLetterRequest, letter: str, now: float) -> None:
        """The records of a request lie in the dead letters, synced, under this name."""
        table = self._table
        table.now = now
        lease = table.leases[request.partition]
        assert lease.state is LeaseState.SETTLING, (lease.number, lease.state)
        assert lease.step is SettlingStep.DEAD_LETTER, (lease.number, lease.step)
        self._sequence_epochs.write_dead_lettered(lease, request, letter)

    # --- time and end ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Every round before the log is written: what is due, and what may be granted."""
        table = self._table
        table.now = now
        if table.shard_slots.expire(now):
            self._grants.assign_nodes()
        if table.timed:
            self._run_timers(now)
        if now >= self._ages_at:
            self._ages_at = now + AGES_EVERY_S
            self._ages()
        self._outcomes.send_due_paces()
        self._grants.grant_pending()

    def _run_timers(self, now: float) -> None:
        table = self._table
        for number, lease in list(table.timed.items()):
            if lease.state is LeaseState.REVOKING:
                if now >= lease.revoke_deadline:
                    table.kill_shard(lease.shard_id, "it did not give a lease back")
            elif lease.state is LeaseState.BLOCKED and lease.retry_at is not None:
                if now >= lease.retry_at and not table.stopping:
                    table.unassign(lease)
            else:
                del table.timed[number]

    def _ages(self) -> None:
        """An acknowledgement grew old, and with it the broker's memory: narrower from now on."""
        for lease in self._table.leases.values():
            if lease.state is LeaseState.HELD and lease.pace == OPEN:
                pace = self._grants.current_pace(lease)
                if pace == FIRST:
                    self._table.send_pace(lease, pace)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        table = self._table
        deadlines = [self._ages_at]
        seats = table.shard_slots.next_deadline()
        if seats is not None:
            deadlines.append(seats)
        for lease in table.timed.values():
            if lease.state is LeaseState.REVOKING:
                deadlines.append(lease.revoke_deadline)
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
                table.dispatcher.drop(lease)
                lease.move(LeaseState.REVOKING)
                lease.revoke_reason = ShutDown()
            if lease.state is LeaseState.REVOKING:
                lease.revoke_deadline = now + (deadline_ms + table.limits.revoke_timeout_ms) / 1000
                table.timed[lease.number] = lease
        for seat in table.shard_slots.ready():
            table.send(seat, Stop(deadline_ms))

    @property
    def all_returned(self) -> bool:
        """No shard holds anything, and nothing waits to be parked: every cut is in the spool, as a fact."""
        return all(
            lease.state not in POSSIBLY_HELD and lease.step is not SettlingStep.DEAD_LETTER
            for lease in self._table.leases.values()
        )

    @property
    def idle(self) -> bool:
        """Nothing is unresolved."""
        return not any(lease.backlog.unresolved for lease in self._table.leases.values())

    def topics_in_use(self) -> set[str]:
        """Topics that a shard holds a partition of, or that have records: their leaders must be known."""
        leases = self._table.leases.values()
        return {lease.durable.topic for lease in leases if lease.state in POSSIBLY_HELD or lease.backlog.unresolved}

    # --- to look at --------------------------------------------------------------------------------------------------

    @property
    def pending_records(self) -> int:
        """Records pushed in this start whose slices have not ended: pushed = delivered + parked + pending."""
        counters = self._table.counters
        return self._table.pushed - counters["records_delivered"] - counters["records_dead_lettered"]

    @property
    def handed_out_slices(self) -> int:
        """References handed out since the start, repeats counted again."""
        return self._table.dispatcher.slices

    @property
    def pushed_records(self) -> int:
        return self._table.pushed

    def queued_bytes(self, number: int) -> QueuedBytes:
        """What waits for a partition."""
        lease = self._table.leases.get(number)
        if lease is None:
            return QueuedBytes(-1, -1, 0, 0)
        backlog = lease.backlog
        return QueuedBytes(
            lease.shard_id, lease.node, backlog.handed_out_bytes, max(0, backlog.nbytes - backlog.handed_out_bytes)
        )

    def views(self) -> list[LeaseView]:
        """Every partition with a lease, for people."""
        return [view(lease) for lease in self._table.leases.values()]
