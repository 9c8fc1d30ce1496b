"""The router's lease table: which shard may send which partition, and how each slice ends.

Everything about shards enters as an event and leaves as messages, ended slices and requests, which the router drains
each round. Applying an event appends its entries to the log. `tick` grants leases, so it runs before the log is
written; `hand_out` runs after it. A lease never has two holders (HO-4): it is granted only from UNASSIGNED.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from ...producer.metadata.cluster import Cluster, ClusterChange
from ...wire.journal import JournalSlot
from ...wire.messages import (
    BatchesDone,
    BatchRefused,
    Credit,
    NewLeaderHint,
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
from ..ledger.slices import EntryLog
from .alarms import LeaseAlarm, LeaseNotice
from .batch_bounds import from_journal_slots
from .grants import Grants
from .lease import Lease
from .paces import LeasePaces
from .refused_batches import DeadLetterRequest
from .sequence_epochs import SequenceEpochs
from .shard_reports import ShardReports
from .states import POSSIBLY_HELD, LeaseState, Relocate, SettlingStep
from .table import LeaseLimits, LeaseTable

__all__ = ["DeadLetterRequest", "LeaseAlarm", "LeaseLimits", "LeaseNotice", "Leases"]


class Leases:
    """Facade of the lease table. The caller empties the output lists `outbox`, `ended`, `dead_letter_requests`,
    `shards_to_kill`, `notices`, `stale_topics` and `new_leaders`; `alarms` and `counters` persist."""

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
        self._paces = LeasePaces(table, now)
        self._grants = Grants(table, self._sequence_epochs, self._paces)
        self._reports = ShardReports(table, self._paces, parks_refused)
        self.push = table.push
        self.outbox = table.outbox
        self.ended = table.ended
        self.dead_letter_requests = table.dead_letter_requests
        self.shards_to_kill = table.shards_to_kill
        self.notices = table.alarms.notices
        self.new_leaders = table.new_leaders
        self.stale_topics = table.stale_topics
        self.alarms: Mapping[int, LeaseAlarm] = table.alarms.active
        self.counters: Mapping[str, int] = table.counters
        self.loads: Mapping[int, ShardLoad] = table.loads
        self.exited_shard_counters: Mapping[str, int] = table.exited_shard_counters

    # --- recovery ----------------------------------------------------------------------------------------------------

    def recover(self, slots: Iterable[JournalSlot], *, facts: bool, lost: Iterable[int] = ()) -> None:
        """Apply the journals of an earlier router's shards, before anything is pushed. `facts` False: after a power
        failure or an unreadable journal, the batch bounds of unresolved records are unknown. `lost`: partitions in
        which recovery found ordinals missing."""
        table = self._table
        by_partition: dict[int, list[JournalSlot]] = {}
        for slot in slots:
            by_partition.setdefault(slot.partition, []).append(slot)
        for number, state in table.ledger.by_number.items():
            # Stamp rows are synced before anything is sent: without a row nothing can have been sent.
            if not state.rows or state.mark == state.next_ordinal:
                continue
            lease = table.lease_of(number)
            found = from_journal_slots(by_partition.get(number, []), lease.open_batches(), state.rows, state.mark)
            certain = facts and found.certain and found.end <= state.next_ordinal
            cuts = [cut for cut in found.bounds if cut.first + cut.count <= state.next_ordinal]
            table.record_batch_bounds(lease, cuts, None if certain else state.next_ordinal)
        self._sequence_epochs.repair_lost_ranges(set(lost))

    def require_new_producer_id(self, reason: str) -> None:
        """Resend everything unresolved under a new producer id and count it as possible duplicates, because the spool
        may be behind Kafka's log (IDN-9). Call it before the producer id is set."""
        self._sequence_epochs.new_id_reason = reason

    @property
    def needs_producer_id(self) -> bool:
        """Whether InitProducerId must be requested."""
        return self._sequence_epochs.needs_producer_id

    def set_producer_id(self, producer_id: int) -> None:
        """Set the daemon's id, synced in the identity file. Each later id is for one partition that needs its own."""
        first = self._sequence_epochs.producer_id is None
        self._sequence_epochs.set_producer_id(producer_id)
        if first:
            self._grants.reconsider_unassigned(lambda _lease: True)

    # --- records -----------------------------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Whether a hand-out, a grant or a pace waits for a sync."""
        return self._table.sync_wanted > self._table.synced

    def synced(self, through: Lsn) -> None:
        """The log is on disk up to and including the entry at `through`."""
        self._table.set_synced(through)

    def relocate(self, moved: Mapping[Lsn, Lsn], segments: Segments) -> None:
        """A sync failed and entries it should have covered were rewritten: move their slices, which were never handed
        out. Pending sync marks stay, because a later sync covers the old positions too."""
        slices = (piece for lease in self._table.leases.values() for piece in lease.backlog.unresolved)
        relocate(moved, slices, segments)
        self._table.await_sync(max(moved.values(), default=Lsn(0)))

    def hand_out(self, now: float) -> None:
        """Put references to synced slices into the outbox, within credit, then the flushes that they complete."""
        table = self._table
        table.now = now
        table.dispatcher.run(table.synced, table.wall_ms() - table.expiration_ms // 2)
        table.flushes.send()

    def flush(self, through: Iterable[tuple[int, int]]) -> None:
        """Skip linger for these partitions up to these ordinals (inclusive)."""
        for number, ordinal in through:
            lease = self._table.leases.get(number)
            if lease is not None and ordinal >= lease.durable.mark:
                self._table.flushes.add(lease, ordinal)

    def flush_all(self) -> None:
        """Skip linger for everything unresolved."""
        leases = self._table.leases.values()
        self.flush((lease.number, lease.backlog.end - 1) for lease in leases if lease.backlog.unresolved)

    # --- the cluster -------------------------------------------------------------------------------------------------

    def expiration_known(self, expiration_ms: int) -> None:
        """Set E, the brokers' `producer.id.expiration.ms`. If it is shorter than before, grant held leases again."""
        table = self._table
        shorter, table.expiration_ms = expiration_ms < table.expiration_ms, expiration_ms
        for lease in table.leases.values():
            if shorter and lease.state is LeaseState.HELD:
                table.revoke(lease, Relocate())

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, now: float) -> None:
        """Follow the nodes and leaders of new metadata."""
        self._table.now = now
        self._grants.cluster_changed(cluster, change)

    # --- shards ------------------------------------------------------------------------------------------------------

    def shard_connected(self, seat: int, now: float) -> None:
        """The shard sent its HELLO without a journal."""
        self._table.now = now
        if self._table.shard_slots.mark_connected(seat):
            self._grants.assign_nodes()

    def shard_ready(self, seat: int, now: float) -> None:
        """The shard sent its HELLO with a journal name: it may be granted leases."""
        self._table.now = now
        self._table.shard_slots.mark_ready(seat)
        if self._table.stopping:
            self._table.send(seat, Stop(0))
        else:
            self._grants.shard_ready(seat)

    def shard_dying(self, seat: int, now: float) -> None:
        """The shard is being killed and is not reaped yet."""
        self._table.now = now
        self._table.fence_shard(seat)

    def shard_dead(self, seat: int, slots: Iterable[JournalSlot], now: float, *, facts: bool) -> None:
        """The shard is reaped, all its messages are applied, and its journal is read (`slots`)."""
        table = self._table
        table.now = now
        by_partition: dict[int, list[JournalSlot]] = {}
        for slot in slots:
            by_partition.setdefault(slot.partition, []).append(slot)
        table.fence_shard(seat)
        # Messages for this shard must not reach its successor.
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
            table.returned(lease, cuts, facts=certain)
        table.dispatcher.forget(seat)
        told = table.loads.pop(seat, None)
        if told is not None:
            table.exited_shard_counters.update(told.counters)
        table.shard_slots.mark_reaped(seat, now)
        table.counters["shard_exits"] += 1

    def message(self, seat: int, message: ShardMessage, now: float) -> None:
        """Apply a shard's message. Call it in the order the shard sent them."""
        self._table.now = now
        match message:
            case BatchesDone():
                self._reports.batches_done(seat, message.items)
            case Credit():
                self._table.dispatcher.credit(seat, message.node, message.total_bytes)
            case Revoked():
                self._reports.revoked(seat, message)
            case BatchRefused():
                self._reports.refused(seat, message)
            case NewLeaderHint():
                self._reports.leader_hint(seat, message)
            case ProbeRefused():
                self._reports.gap(seat, message)
            case PartitionHalted():
                self._reports.halt(seat, message)
            case SliceUnreadable():
                self._reports.unreadable(seat, message)
            case ShardLoad():
                self._table.loads[seat] = message
            case ShardFailed():
                self._table.kill_shard(seat, f"it broke: {message.what}")
            case ShardHello() | Ping():
                pass  # the bus has handled it
            case _:
                assert_never(message)

    def resend(self, topic: str, index: int, now: float) -> bool:
        """Resend a blocked partition from its mark under a new producer id, by an operator's decision. Records that may
        already be in the log are counted as possible duplicates. Returns False if the partition is not blocked."""
        self._table.now = now
        state = self._table.ledger.by_topic_partition.get((topic, index))
        lease = self._table.leases.get(state.number) if state is not None else None
        if lease is None or lease.state is not LeaseState.BLOCKED:
            return False
        self._sequence_epochs.resend(lease)
        return True

    def dead_lettered(self, request: DeadLetterRequest, letter: str, now: float) -> None:
        """The records of `request` are synced in the dead letter file named `letter`."""
        table = self._table
        table.now = now
        lease = table.leases[request.partition]
        assert lease.state is LeaseState.SETTLING, (lease.number, lease.state)
        assert lease.step is SettlingStep.DEAD_LETTER, (lease.number, lease.step)
        self._sequence_epochs.write_dead_lettered(lease, request, letter)

    # --- timers and shutdown -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Run due timers and grant leases. Call it every round before the log is written."""
        table = self._table
        table.now = now
        if table.shard_slots.expire(now):
            self._grants.assign_nodes()
        if table.timed:
            self._run_timers(now)
        self._paces.check_ages(now)
        self._paces.send_due()
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

    def next_deadline(self) -> float | None:
        """When `tick` has work to do, if nothing else happens."""
        table = self._table
        deadlines = [self._paces.check_ages_at]
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
        """Grant nothing more. Every shard returns its leases within `deadline_ms` and exits."""
        self._table.now = now
        self._table.stop(deadline_ms)

    @property
    def all_returned(self) -> bool:
        """No shard holds a lease and no dead letter is pending: the spool has the exact bounds of every batch."""
        return all(
            lease.state not in POSSIBLY_HELD and lease.step is not SettlingStep.DEAD_LETTER
            for lease in self._table.leases.values()
        )

    @property
    def idle(self) -> bool:
        """No slice is unresolved."""
        return not any(lease.backlog.unresolved for lease in self._table.leases.values())

    def topics_in_use(self) -> set[str]:
        """Topics with a held partition or with unresolved records: their leaders must be known."""
        leases = self._table.leases.values()
        return {lease.durable.topic for lease in leases if lease.state in POSSIBLY_HELD or lease.backlog.unresolved}

    # --- statistics --------------------------------------------------------------------------------------------------

    @property
    def pending_records(self) -> int:
        """Records pushed since this start whose slices have not ended: pushed = delivered + dead-lettered + pending."""
        counters = self._table.counters
        return self._table.pushed - counters["records_delivered"] - counters["records_dead_lettered"]

    @property
    def handed_out_slices(self) -> int:
        """References handed out since the start; a reference handed out again counts again."""
        return self._table.dispatcher.slices

    def find(self, number: int) -> Lease | None:
        """The lease of a partition, to read; None if nothing was ever pushed for it."""
        return self._table.leases.get(number)

    def all(self) -> Iterable[Lease]:
        """Every lease, to read."""
        return self._table.leases.values()
