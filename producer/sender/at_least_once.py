"""One partition of a producer without idempotence: brokers cannot detect a repeated batch, so a retry may duplicate it.

Batches have no stamps. A failed batch that may be retried goes to the head of the queue: with several requests in
flight, two that fail one after the other change places (REQ-3). With one, the next waits for the response or the end of
the connection, even after the records in flight have expired. There are no probes, no gap checks, and no retries of
expired records.
"""

from collections import deque
from typing import Final, NamedTuple

from ...wire.messages import BatchRefused, DoneBatch, Grant
from ..accumulator.batch import ProducerBatch
from ..accumulator.partition_queue import PartitionQueue
from ..protocol.error_codes import (
    NETWORK_EXCEPTION,
    NOT_ENOUGH_REPLICAS,
    ClassifiedError,
    ProduceErrorClass,
    classify_produce_error,
)
from ..protocol.produce_request import PartitionProduceResponse
from ..records.sequence_ranges import OrdinalRange
from .idempotent import IdempotentPartition
from .modes import LeaderConnection, SendLimits, SendMode, WallClock
from .outbox import ShardOutbox
from .produce_response import CompletedAttempt
from .ready_nodes import InFlightRequest, SendPermit

_RETRIABLE: Final = frozenset(
    {
        ProduceErrorClass.RETRY,
        ProduceErrorClass.RETRY_REFRESH_METADATA,
        ProduceErrorClass.NEW_LEADER,
        ProduceErrorClass.CONFIRM_TOPIC,
    }
)


class DroppedRecords(NamedTuple):
    """Records dropped by `expire`. `attempts` 0: they were never sent."""

    span: OrdinalRange
    attempts: int


class AtLeastOncePartition(IdempotentPartition):
    """A lease without producer ids. Its mode is RUNNING until it is revoked or held."""

    def __init__(
        self,
        grant: Grant,
        queue: PartitionQueue,
        limits: SendLimits,
        wall: WallClock,
        outbox: ShardOutbox,
        asking: set[IdempotentPartition],
        wanting_slot: set[IdempotentPartition],
        *,
        now: float,
    ) -> None:
        """As `IdempotentPartition`, but it starts in RUNNING: there is no producer state to verify first."""
        super().__init__(grant, queue, limits, wall, outbox, asking, wanting_slot, now=now)
        self.enter(SendMode.RUNNING)
        self.retry_queue: deque[ProducerBatch] = deque(self.unresolved)
        """Batches to send before any new one."""
        self.in_flight_max = 1
        """Maximum of requests in flight, from the last `SendPermit`."""

    # --- sending -----------------------------------------------------------------------------------------------------

    def ready_at(self, now: float) -> float | None:
        """As `IdempotentPartition`."""
        if (
            self.mode is not SendMode.RUNNING
            or self.awaiting_journal_slot
            or self.pending_checks
            or self.in_flight >= self.in_flight_max
        ):
            return None
        if self.retry_queue:
            return self.retry_at if self.queue.covers(self.retry_queue[0]) else None
        at = self.queue.sendable_at(now)
        return None if at is None else max(at, self.retry_at)

    def estimated_bytes(self) -> int:
        """As `IdempotentPartition`."""
        return self.retry_queue[0].size if self.retry_queue else self.queue.estimated_bytes()

    def take(self, permit: SendPermit, *, now: float) -> ProducerBatch | None:
        """As `IdempotentPartition`."""
        self.in_flight_max = permit.in_flight_max
        ready = self.ready_at(now)
        if ready is None or ready > now:
            return None
        if self.unjournaled + (not self.retry_queue) > permit.journal_slots_left:
            self.wait_for_slot()
            return None
        self.sent_on = LeaderConnection(self.node, permit.incarnation, self.leader_epoch)
        return self.ensure_built(self.retry_queue.popleft()) if self.retry_queue else self.cut()

    def move(self, node: int, leader_epoch: int) -> None:
        """Follow the leader to another node. Batches in flight are not sent again: that might write them twice."""
        if leader_epoch > self.leader_epoch:
            self.retry_at = 0.0
        self.node = node
        self.leader_epoch = leader_epoch

    # --- responses and expiry ----------------------------------------------------------------------------------------

    def complete_batch(
        self,
        batch: ProducerBatch,
        flight: InFlightRequest[IdempotentPartition],
        outcome: PartitionProduceResponse | None,
        *,
        now: float,
        chance: float,
    ) -> CompletedAttempt:
        """Apply the response for one batch; `outcome` None: the response omits this partition."""
        if batch.request_number != flight.number:
            return CompletedAttempt(None)
        if outcome is None:
            self.complete_without_response(batch, flight, "the answer leaves the partition out", now=now, chance=chance)
            return CompletedAttempt(ProduceErrorClass.RETRY_REFRESH_METADATA)
        self.remove_in_flight(batch)
        judged = classify_produce_error(outcome.code, record_count=batch.count, log_start=outcome.log_start)
        if batch.dropped:
            return CompletedAttempt(judged.error_class)
        if judged.error_class is ProduceErrorClass.ACKED:
            return self._acked(batch, outcome)
        self.last_error = judged.name
        self._report_leader_hint(judged.error_class, outcome)
        if judged.error_class is ProduceErrorClass.SPLIT:
            self._split(batch)
        elif judged.error_class in _RETRIABLE and batch.attempts <= self.limits.retries:
            batch.in_doubt = batch.in_doubt or outcome.code != NOT_ENOUGH_REPLICAS
            self._put_back(batch, now, chance)
        else:
            self._refused(batch, outcome.code, _text(judged, outcome), outcome.record_errors)
        return CompletedAttempt(judged.error_class)

    def complete_without_response(
        self,
        batch: ProducerBatch,
        flight: InFlightRequest[IdempotentPartition],
        reason: str,
        *,
        now: float,
        chance: float,
    ) -> None:
        """Apply an attempt that ended without a response."""
        if batch.request_number != flight.number:
            return
        self.remove_in_flight(batch)
        if batch.dropped:
            return
        self.last_error = reason
        batch.in_doubt = True
        if batch.attempts <= self.limits.retries:
            self._put_back(batch, now, chance)
        else:
            self._refused(batch, NETWORK_EXCEPTION, reason, [])

    def expire(self, end: int) -> list[DroppedRecords]:
        """Drop every batch with a record below `end`, and the uncut records below it. Batches in flight keep their
        buffers until the response or the end of the connection."""
        gone = [batch for batch in self.unresolved if batch.first < end]
        dropped = [DroppedRecords((batch.first, batch.end), batch.attempts) for batch in gone]
        for batch in gone:
            self.unresolved.remove(batch)
            if batch in self.retry_queue:
                self.retry_queue.remove(batch)
            self.queue.discard(batch)
        unsent = self.queue.cut_to
        if unsent < end:
            dropped.append(DroppedRecords((unsent, end), 0))
            self.queue.skip_to(end)
        self._forget_slices()
        return dropped

    def _acked(self, batch: ProducerBatch, outcome: PartitionProduceResponse) -> CompletedAttempt:
        item = DoneBatch(
            self.partition,
            self.generation,
            batch.first,
            batch.count,
            outcome.base_offset,
            batch.max_ts,
            outcome.log_append_ms,
            outcome.log_start,
            self.leader_epoch,
            batch.attempts,
        )
        self.outbox.put_done(item, self.slots_of([batch]))
        self.failures = 0
        self.retry_at = 0.0
        self.last_error = ""
        self._resolve(batch)
        return CompletedAttempt(ProduceErrorClass.ACKED, batch.count)

    def _refused(self, batch: ProducerBatch, code: int, text: str, errors: list[tuple[int, str]]) -> None:
        self.outbox.put(
            BatchRefused(
                self.partition, self.generation, batch.first, batch.count, code, text, errors, ambiguous=batch.in_doubt
            ),
            self.slots_of([batch]),
        )
        self._resolve(batch)

    def _resolve(self, batch: ProducerBatch) -> None:
        self.unresolved.remove(batch)
        self.queue.discard(batch)
        self._forget_slices()

    def _forget_slices(self) -> None:
        firsts = [batch.first for batch in self.unresolved]
        self.queue.resolved_to(min(firsts, default=self.queue.cut_to))

    def _put_back(self, batch: ProducerBatch, now: float, chance: float) -> None:
        self.retry_queue.appendleft(batch)
        self.back_off(now, chance)

    def _split(self, parent: ProducerBatch) -> None:
        children: list[ProducerBatch] = []
        first = parent.first
        for count in self.queue.split(parent):
            children.append(self.cut_split_part(first, count, parent))
            first += count
        place = self.unresolved.index(parent)
        del self.unresolved[place]
        self.queue.discard(parent)
        for child in reversed(children):
            self.unresolved.insert(place, child)
        self.retry_queue.extendleft(reversed(children))
        self.replaced_slots.extend(self.slots_of([parent]))
        self.unjournaled += len(children)

    def _report_leader_hint(self, verdict: ProduceErrorClass, outcome: PartitionProduceResponse) -> None:
        told = outcome.leader_hint
        if verdict is ProduceErrorClass.NEW_LEADER and told is not None and told.leader_epoch > self.leader_epoch:
            self.hint(told.leader, told.leader_epoch)
        elif verdict in (
            ProduceErrorClass.NEW_LEADER,
            ProduceErrorClass.RETRY_REFRESH_METADATA,
            ProduceErrorClass.CONFIRM_TOPIC,
        ):
            self.hint(-1, -1)


def _text(judged: ClassifiedError, outcome: PartitionProduceResponse) -> str:
    return outcome.message or f"{judged.name}: {judged.reason}"
