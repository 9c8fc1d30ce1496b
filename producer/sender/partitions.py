"""All leases of a shard: takes the router's messages and Produce responses, returns batches and messages to send. Pure:
the shell does the I/O. `idempotent.py` and `produce_response.py` in this folder have the rules of one partition."""

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

from ...wire.messages import (
    Credit,
    FlushPartitions,
    Grant,
    Move,
    Node,
    Nodes,
    Pace,
    PartitionLoad,
    Ping,
    Revoke,
    RouterMessage,
    ShardWelcome,
    SliceRef,
    Slices,
    Stop,
    holes_between,
)
from ..accumulator.batch import ProducerBatch
from ..accumulator.buffer_pool import BufferOwner
from ..accumulator.partition_queue import BatchRules, PartitionQueue
from ..accumulator.slice_accumulator import SliceAccumulator
from ..protocol.error_codes import ProduceErrorClass, error_name
from ..protocol.produce_request import TOPIC_ID_FROM, PartitionProduceResponse
from .at_least_once import AtLeastOncePartition, DroppedRecords
from .gap_check import ReplicaMetadataQueries
from .idempotent import IdempotentPartition
from .leader_checks import LeaderCheckRequest, LeaderCheckResult, due_checks, skip_check
from .leader_checks import apply_results as settle_question
from .modes import LeaderCheck, SendLimits, SendMode, WallClock
from .outbox import ShardOutbox
from .produce_response import complete_batch, complete_without_response
from .ready_nodes import InFlightRequest, ReadyPartitions, SendPermit, match_outcomes

FILL_BYTES_MAX: Final = 4 << 20
"""Slice bytes read per round of the loop, bounded so that responses and messages do not wait long."""
_CREDIT_STEPS: Final = 8
_CREDIT_BYTES_LEAST: Final = 64 << 10
_RETRIES: Final = frozenset(ProduceErrorClass) - {ProduceErrorClass.ACKED}


class CreditRule(NamedTuple):
    """Slices a node may receive beyond those consumed: `budgets` times its memory budget, but at least `bytes_min`."""

    budgets: int
    bytes_min: int


class PartitionTable:
    """Leases by partition number, the nodes they are sent to, and the counters of `ShardLoad`."""

    def __init__(
        self,
        limits: SendLimits,
        accumulator: SliceAccumulator,
        rules_of: Callable[[str], BatchRules],
        credit: CreditRule,
    ) -> None:
        self.limits = limits
        self.accumulator: Final = accumulator
        self.ready_partitions: Final[ReadyPartitions[IdempotentPartition]] = ReadyPartitions()
        self.outbox: Final = ShardOutbox()
        self.wall: Final = WallClock()
        self.partitions: dict[int, IdempotentPartition] = {}
        self.nodes: dict[int, Node] = {}
        self.counters: Counter[str] = Counter()
        self.stop_at: float | None = None
        """After `Stop`: when to return all leases, even with requests in flight."""
        self.stale_in_flight: Counter[int] = Counter()
        """By partition: batches in flight whose responses no longer count."""
        self.connection_lost_at: dict[int, float] = {}
        """By partition: when a connection last ended with one of its batches unanswered."""
        self.replica_queries: Final = ReplicaMetadataQueries()
        self.on_retry: Callable[[str, int], None] | None = None
        """Called with the topic and record count of each batch that will be retried."""
        self.on_send: Callable[[int], None] | None = None
        """Called with the partition number of each batch in a request, before the request is sent."""
        self._rules_of: Final = rules_of
        self._credit: Final = credit
        self._credited: dict[int, int] = {}
        self.awaiting_checks: Final[set[IdempotentPartition]] = set()
        """Leases that wait for a leader check."""
        self._wanting_slot: Final[set[IdempotentPartition]] = set()
        self._short: set[int] = set()
        """Nodes whose batches were sent without linger because memory was short."""

    # --- messages ----------------------------------------------------------------------------------------------------

    def apply(self, message: RouterMessage, *, now: float) -> None:
        """Apply a message of the router. Messages of old generations are dropped."""
        match message:
            case Slices():
                self._slices(message, now)
            case Grant():
                self._grant(message, now)
            case Pace():
                lease = self._current(message.partition, message.generation)
                if lease is not None:
                    lease.set_pace(message)
                    self._changed(lease, now)
            case Move():
                lease = self._current(message.partition, message.generation)
                if lease is not None:
                    self._move(lease, message, now)
            case Revoke():
                lease = self._current(message.partition, message.generation)
                if lease is not None:
                    self._revoke(lease)
            case Nodes():
                self._nodes(message)
            case FlushPartitions():
                self._flush(message, now)
            case Stop():
                self.stop_at = now + message.deadline_ms / 1000
            case ShardWelcome() | Ping():
                pass
            case _:
                assert_never(message)

    def _current(self, partition: int, generation: int) -> IdempotentPartition | None:
        lease = self.partitions.get(partition)
        return lease if lease is not None and lease.generation == generation else None

    def _grant(self, grant: Grant, now: float) -> None:
        assert grant.partition not in self.partitions, f"partition {grant.partition} granted twice (HO-4)"
        cut_to = grant.cuts[-1].first + grant.cuts[-1].count if grant.cuts else grant.next_ordinal
        rules = self._rules_of(grant.topic)
        queue = PartitionQueue(
            BufferOwner(grant.partition, grant.generation, cut_to),
            grant.topic,
            grant.index,
            node=grant.node,
            rules=rules,
            pool=self.accumulator.pool,
            source=self.accumulator.source,
            ratio=self.accumulator.ratios.of(grant.topic, rules.compressor.codec),
            row_starts=sorted(row.start for row in grant.rows),
            holes=holes_between(grant.rows),
            id_rows=grant.id_rows,
        )
        limits = self.limits if grant.expiration_ms <= 0 else self.limits._replace(expiration_ms=grant.expiration_ms)
        kind = AtLeastOncePartition if grant.rows[-1].producer_id < 0 else IdempotentPartition
        lease = kind(grant, queue, limits, self.wall, self.outbox, self.awaiting_checks, self._wanting_slot, now=now)
        self.partitions[grant.partition] = lease
        self.counters["grants"] += 1
        self.ready_partitions.wake(lease, now=now)

    def _slices(self, message: Slices, now: float) -> None:
        entries = [
            (lease.queue, ref)
            for ref in message.refs
            if (lease := self._current(ref.partition, ref.generation)) is not None
        ]
        self.accumulator.add(entries)
        for partition in {ref.partition for ref in message.refs}:
            lease = self.partitions.get(partition)
            if lease is not None:
                self._slices_added(lease, now)

    def add_slice(self, ref: SliceRef, *, now: float) -> None:
        """Add one slice, like a `Slices` message with one reference."""
        lease = self._current(ref.partition, ref.generation)
        if lease is not None:
            self.accumulator.add_one(lease.queue, ref)
            self._slices_added(lease, now)

    def _slices_added(self, lease: IdempotentPartition, now: float) -> None:
        if lease.unresolved and (lease.mode is SendMode.ONE_IN_FLIGHT or isinstance(lease, AtLeastOncePartition)):
            # A retry is rebuilt from slices, and this may be the one it lacked.
            self.ready_partitions.wake(lease, now=now)

    def _move(self, lease: IdempotentPartition, move: Move, now: float) -> None:
        self.ready_partitions.forget(lease)
        self.accumulator.move(lease.queue, move.node)
        on_wire = lease.in_flight
        lease.move(move.node, move.leader_epoch)
        self._count_stale(lease, on_wire - lease.in_flight)
        self.counters["moves"] += 1
        self.ready_partitions.wake(lease, now=now)

    def _revoke(self, lease: IdempotentPartition) -> None:
        self.ready_partitions.forget(lease)
        on_wire = lease.in_flight
        lease.revoke()
        self._count_stale(lease, on_wire)
        self.accumulator.forget(lease.queue)
        self._wanting_slot.discard(lease)
        del self.partitions[lease.partition]
        self.counters["revokes"] += 1

    def _count_stale(self, lease: IdempotentPartition, count: int) -> None:
        if count > 0:
            self.stale_in_flight[lease.partition] += count

    def _release_transport(
        self, lease: IdempotentPartition, batch: ProducerBatch, flight: InFlightRequest[IdempotentPartition]
    ) -> None:
        lease.queue.release(batch)
        if batch.request_number != flight.number:
            self.stale_in_flight[lease.partition] -= 1
            if self.stale_in_flight[lease.partition] <= 0:
                del self.stale_in_flight[lease.partition]

    def _nodes(self, message: Nodes) -> None:
        for gone in self.nodes.keys() - {node.node for node in message.nodes}:
            self.accumulator.pool.set_budget(gone, 0)
        self.nodes = {node.node: node for node in message.nodes}
        for node in message.nodes:
            self.accumulator.pool.set_budget(node.node, node.budget_bytes)

    def _flush(self, message: FlushPartitions, now: float) -> None:
        for partition, through in message.through:
            lease = self.partitions.get(partition)
            if lease is not None:
                lease.queue.flush_to = max(lease.queue.flush_to, through + 1)
                self.ready_partitions.wake(lease, now=now)

    def fill(self, *, now: float) -> int:
        """Read slices into batches while memory lasts. Returns the number of bytes read."""
        if not self.accumulator.has_unread or self.stop_at is not None:
            return 0
        filled = self.accumulator.fill(FILL_BYTES_MAX)
        for partition in filled.partitions:
            lease = self.partitions.get(partition)
            if lease is not None:
                self._look(lease, now)
        short = {node for node in self._short if self.accumulator.pool.starved(node)}
        if filled.starved - short:
            for lease in self.partitions.values():
                # Lingering batches hold memory that other partitions need.
                if lease.node in filled.starved:
                    self.ready_partitions.wake(lease, now=now)
        self._short = short | filled.starved
        return filled.nbytes

    def drain(
        self, node: int, permit: SendPermit, *, bytes_max: int, now: float
    ) -> list[tuple[IdempotentPartition, ProducerBatch]]:
        """The batches of a node's next request. Journal all `unjournaled` cuts of their leases before sending it."""
        if self.stop_at is not None:
            return []
        entries = self.ready_partitions.drain(node, permit, bytes_max=bytes_max, now=now)
        for lease, _ in entries:
            self.accumulator.resume(lease.queue)
        return entries

    def slots_freed(self, *, now: float) -> None:
        """Resume the leases that wait for a journal slot."""
        for lease in self._wanting_slot:
            lease.awaiting_journal_slot = False
            self.ready_partitions.wake(lease, now=now)
        self._wanting_slot.clear()

    def request_sent(self, flight: InFlightRequest[IdempotentPartition], *, now: float) -> None:
        """Record that a request was given to its transport."""
        if self.on_send is not None:
            for lease, _ in flight.entries:
                self.on_send(lease.partition)
        for lease, batch in flight.entries:
            lease.add_in_flight(batch, flight.number)
            lease.queue.retain(batch)
            self.ready_partitions.wake(lease, now=now)
        self.counters["requests"] += 1
        self.counters["request_bytes"] += flight.size

    def request_answered(
        self,
        flight: InFlightRequest[IdempotentPartition],
        outcomes: list[PartitionProduceResponse],
        *,
        now: float,
        chance: float,
    ) -> None:
        """Apply the response to a request."""
        for lease, batch, outcome in match_outcomes(flight, outcomes, _response_key):
            self._release_transport(lease, batch, flight)
            probing = lease.mode is SendMode.PROBING
            splits = lease.queue.splits
            others = lease.in_flight - (batch.request_number == flight.number)
            if isinstance(lease, AtLeastOncePartition):
                settled = lease.complete_batch(batch, flight, outcome, now=now, chance=chance)
            else:
                settled = complete_batch(lease, batch, flight, outcome, now=now, chance=chance)
            self._count_stale(lease, others - lease.in_flight)
            if lease.mode is SendMode.PROBING and not probing:
                self.counters["probes"] += 1
            self.counters["splits"] += lease.queue.splits - splits
            if settled.verdict is None:
                self.counters["orphans"] += 1
            elif settled.verdict is ProduceErrorClass.ACKED:
                self.counters["batches_acked"] += 1
                self.counters["records_acked"] += settled.records
                self.counters["bytes_sent"] += batch.size
                self.counters["bytes_uncompressed"] += batch.record_bytes
            else:
                self.counters[f"answers_{settled.verdict.name.lower()}"] += 1
                self._retried(
                    lease, batch, "missing_in_answer" if outcome is None else error_name(outcome.code).lower()
                )
            self._after(lease, now)

    def request_lost(
        self, flight: InFlightRequest[IdempotentPartition], reason: str, *, now: float, chance: float
    ) -> None:
        """Record that the connection ended before the response."""
        self.counters["requests_lost"] += 1
        for lease, batch in flight.entries:
            self._release_transport(lease, batch, flight)
            self.connection_lost_at[lease.partition] = now
            counts = batch.request_number == flight.number
            if isinstance(lease, AtLeastOncePartition):
                lease.complete_without_response(batch, flight, reason, now=now, chance=chance)
            else:
                complete_without_response(lease, batch, flight, reason, now=now, chance=chance)
            if counts:
                self._retried(lease, batch, "connection_lost")
            self._after(lease, now)

    def _retried(self, lease: IdempotentPartition, batch: ProducerBatch, reason: str) -> None:
        """Count a failed attempt if the batch will be retried."""
        if batch in lease.unresolved and batch.refusal is None and lease.mode is not SendMode.HELD:
            self.counters[f"retries_{reason}"] += 1
            if self.on_retry is not None:
                self.on_retry(lease.topic, batch.count)

    def expire(self, partition: int, end: int, *, now: float) -> list[DroppedRecords]:
        """Drop the records below `end` of a partition without idempotence."""
        lease = self.partitions[partition]
        assert isinstance(lease, AtLeastOncePartition), "batches with stamps are not given up"
        dropped = lease.expire(end)
        self._changed(lease, now)
        return dropped

    def skip_unsent(self, partition: int, end: int, *, now: float) -> None:
        """Drop the unsent records below `end`. Add no slices to the lease afterwards: its stamp rows lack the hole."""
        lease = self.partitions[partition]
        lease.queue.skip_to(end)
        self._changed(lease, now)

    def due_checks(self, node: int, *, now: float) -> list[LeaderCheckRequest]:
        """The leader checks to send to a node now."""
        return due_checks(self.awaiting_checks, node, now=now) if self.awaiting_checks and self.stop_at is None else []

    def check_sent(self, asked: LeaderCheckRequest, *, known: bool, now: float) -> None:
        """Record that a check was sent; `known` False: the broker does not support it, so skip it."""
        for lease in asked.partitions:
            lease.checks_in_flight = known
        if not known:
            skip_check(asked)
            self._after_check(asked, now)

    def check_answered(
        self, asked: LeaderCheckRequest, answers: list[LeaderCheckResult], *, now: float, chance: float
    ) -> None:
        """Apply a leader's answers; an empty list: the connection ended first."""
        settle_question(asked, answers, now=now, chance=chance)
        self._after_check(asked, now)

    def _after_check(self, asked: LeaderCheckRequest, now: float) -> None:
        for lease in asked.partitions:
            self._after(lease, now)

    def confirm_topics(self, node: int) -> None:
        """Check the topic ids of a node's leases, after a connection that sends by topic name became ready."""
        for lease in self.partitions.values():
            if lease.node == node and lease.topic_id is not None and lease.mode is not SendMode.REVOKED:
                lease.require_check(LeaderCheck.TOPIC_ID)

    def next_check_at(self, node: int) -> float | None:
        """When to send the node its next leader check."""
        return min(
            (lease.retry_at for lease in self.awaiting_checks if lease.node == node and not lease.checks_in_flight),
            default=None,
        )

    def halt_node(self, node: int, code: int, message: str) -> None:
        """Halt every lease of a node that cannot be sent anything."""
        for lease in list(self.partitions.values()):
            if lease.node == node and lease.mode not in (SendMode.HELD, SendMode.REVOKED):
                lease.halt(code, message)

    def revoke_all(self) -> None:
        """Return every lease."""
        for lease in list(self.partitions.values()):
            self._revoke(lease)

    @property
    def in_flight(self) -> int:
        """Number of batches in flight, without those whose responses no longer count."""
        return sum(lease.in_flight for lease in self.partitions.values())

    def credits(self) -> list[Credit]:
        """Credits that grew enough to announce: by an eighth of the window, or by less (at least 64 KiB) when little
        credit is left because partitions that cannot send hold the rest."""
        told: list[Credit] = []
        for node in self.nodes.values():
            window = max(self._credit.budgets * node.budget_bytes, self._credit.bytes_min)
            total = self.accumulator.consumed_bytes.get(node.node, 0) + window
            credited = self._credited.get(node.node, 0)
            left = credited - self.accumulator.received_bytes.get(node.node, 0)
            if total - credited >= min(window // _CREDIT_STEPS, max(left, _CREDIT_BYTES_LEAST)):
                self._credited[node.node] = total
                told.append(Credit(node.node, total))
        return told

    def partition_loads(self) -> list[PartitionLoad]:
        """For `ShardLoad`: partitions with open or unresolved batches, an error, or a mode other than RUNNING."""
        return [
            PartitionLoad(
                lease.partition,
                lease.queue.batch_count + len(lease.unresolved),
                lease.queue.open_has_room,
                lease.mode.value,
                lease.unresolved[0].attempts if lease.unresolved else 0,
                lease.last_error,
            )
            for lease in self.partitions.values()
            if lease.unresolved or lease.queue.has_open or lease.last_error or lease.mode is not SendMode.RUNNING
        ]

    def _after(self, lease: IdempotentPartition, now: float) -> None:
        if lease.mode is SendMode.REVOKED:
            self.accumulator.collect(lease.queue)
            return
        self._changed(lease, now)

    def _changed(self, lease: IdempotentPartition, now: float) -> None:
        """After the lease's window, pace or mode changed: its queue may have room, or it may be ready to send."""
        self.accumulator.collect(lease.queue)
        self.accumulator.resume(lease.queue)
        self._look(lease, now)

    def _look(self, lease: IdempotentPartition, now: float) -> None:
        damage = lease.queue.damage
        if damage is not None and lease.unreadable(damage.ref, damage.what):
            self.counters["slices_unreadable"] += 1
        self.ready_partitions.wake(lease, now=now)


def _response_key(lease: IdempotentPartition, version: int) -> tuple[bytes | str, int]:
    if version >= TOPIC_ID_FROM and lease.topic_id is not None:
        return lease.topic_id, lease.index
    return lease.topic, lease.index
