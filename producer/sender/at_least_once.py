"""One partition of a producer without idempotence: nothing recognises a repeated batch, so none is repeated lightly.

Batches have no stamps. What fails and may be tried again is put at the head of the line: with more than one request in flight,
two that fail one after the other change places (REQ-3). With one, the next waits for the answer or the end of the connection, also
when its records have expired meanwhile. There are no probes, no gaps and no ghosts; a try too many may double records.
"""

from collections import deque
from typing import Final, NamedTuple

from ...wire.messages import DoneItem, Grant, Refused
from ..accumulator.batch import Batch
from ..accumulator.partition_queue import PartitionQueue
from ..protocol.error_codes import NETWORK_EXCEPTION, NOT_ENOUGH_REPLICAS, Judgement, Verdict, judge_produce
from ..protocol.produce_request import ProduceOutcome
from ..records.sequence_ranges import Span
from .idempotent import Lease
from .modes import Here, Limits, Mode, WallClock
from .outbox import Outbox
from .produce_response import Settled
from .ready_nodes import Flight, Permit

_AGAIN: Final = frozenset({Verdict.RETRY, Verdict.RETRY_STALE, Verdict.NEW_LEADER, Verdict.CONFIRM_TOPIC})


class Dropped(NamedTuple):
    """Records that are given up. `attempts` 0: they were never sent."""

    span: Span
    attempts: int


class PlainLease(Lease):
    """A lease under an unstamped row. It stays in RUNNING until it goes back."""

    def __init__(
        self,
        grant: Grant,
        queue: PartitionQueue,
        limits: Limits,
        wall: WallClock,
        outbox: Outbox,
        asking: set[Lease],
        wanting_slot: set[Lease],
        *,
        now: float,
    ) -> None:
        """As `Lease`. Nothing has to be proven before it is sent."""
        super().__init__(grant, queue, limits, wall, outbox, asking, wanting_slot, now=now)
        self.enter(Mode.RUNNING)
        self.again: deque[Batch] = deque(self.unresolved)
        """What is sent before anything new."""
        self.window = 1
        """Requests in flight at most, as the connection last said."""

    # --- what may be sent --------------------------------------------------------------------------------------------

    def ready_at(self, now: float) -> float | None:
        """As `Lease`."""
        if self.mode is not Mode.RUNNING or self.wants_slot or self.questions or self.on_wire >= self.window:
            return None
        if self.again:
            return self.retry_at if self.queue.covers(self.again[0]) else None
        at = self.queue.sendable_at(now)
        return None if at is None else max(at, self.retry_at)

    def estimated_bytes(self) -> int:
        """As `Lease`."""
        return self.again[0].size if self.again else self.queue.estimated_bytes()

    def take(self, permit: Permit, *, now: float) -> Batch | None:
        """As `Lease`."""
        self.window = permit.in_flight_max
        ready = self.ready_at(now)
        if ready is None or ready > now:
            return None
        if self.unjournaled + (not self.again) > permit.cuts_left:
            self.wait_for_slot()
            return None
        self.here = Here(self.node, permit.incarnation, self.leader_epoch)
        return self.built(self.again.popleft()) if self.again else self.cut()

    def move(self, node: int, leader_epoch: int) -> None:
        """Another node leads. What is on the wire to the old one stays there: sent again it might be there twice."""
        if leader_epoch > self.leader_epoch:
            self.retry_at = 0.0
        self.node = node
        self.leader_epoch = leader_epoch

    # --- what becomes of it ------------------------------------------------------------------------------------------

    def settle(
        self, batch: Batch, flight: Flight[Lease], outcome: ProduceOutcome | None, *, now: float, chance: float
    ) -> Settled:
        """Apply the answer for one batch."""
        if batch.flight != flight.number:
            return Settled(None)
        if outcome is None:
            self.unanswered(batch, flight, "the answer leaves the partition out", now=now, chance=chance)
            return Settled(Verdict.RETRY_STALE)
        self.land(batch)
        judged = judge_produce(outcome.code, record_count=batch.count, log_start=outcome.log_start)
        if batch.dropped:
            return Settled(judged.verdict)
        if judged.verdict is Verdict.ACKED:
            return self._acked(batch, outcome)
        self.last_error = judged.name
        self._tell_leader(judged.verdict, outcome)
        if judged.verdict is Verdict.SPLIT:
            self._split(batch)
        elif judged.verdict in _AGAIN and batch.attempts <= self.limits.retries:
            batch.doubtful = batch.doubtful or outcome.code != NOT_ENOUGH_REPLICAS
            self._put_back(batch, now, chance)
        else:
            self._refused(batch, outcome.code, _text(judged, outcome), outcome.record_errors)
        return Settled(judged.verdict)

    def unanswered(self, batch: Batch, flight: Flight[Lease], reason: str, *, now: float, chance: float) -> None:
        """The attempt ended without an answer."""
        if batch.flight != flight.number:
            return
        self.land(batch)
        if batch.dropped:
            return
        self.last_error = reason
        batch.doubtful = True
        if batch.attempts <= self.limits.retries:
            self._put_back(batch, now, chance)
        else:
            self._refused(batch, NETWORK_EXCEPTION, reason, [])

    def expire(self, end: int) -> list[Dropped]:
        """Give up every batch with a record below `end`, and what is not in a batch yet. What is on the wire stays there, and
        its buffer with it, until it is answered or its connection ends."""
        gone = [batch for batch in self.unresolved if batch.first < end]
        dropped = [Dropped((batch.first, batch.end), batch.attempts) for batch in gone]
        for batch in gone:
            self.unresolved.remove(batch)
            if batch in self.again:
                self.again.remove(batch)
            self.queue.let_go(batch)
        unsent = self.queue.cut_to
        if unsent < end:
            dropped.append(Dropped((unsent, end), 0))
            self.queue.skip_to(end)
        self._forget_slices()
        return dropped

    def _acked(self, batch: Batch, outcome: ProduceOutcome) -> Settled:
        item = DoneItem(
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
        self.outbox.done(item, self.slots_of([batch]))
        self.failures = 0
        self.retry_at = 0.0
        self.last_error = ""
        self._resolve(batch)
        return Settled(Verdict.ACKED, batch.count)

    def _refused(self, batch: Batch, code: int, text: str, errors: list[tuple[int, str]]) -> None:
        self.outbox.say(
            Refused(
                self.partition, self.generation, batch.first, batch.count, code, text, errors, ambiguous=batch.doubtful
            ),
            self.slots_of([batch]),
        )
        self._resolve(batch)

    def _resolve(self, batch: Batch) -> None:
        self.unresolved.remove(batch)
        self.queue.let_go(batch)
        self._forget_slices()

    def _forget_slices(self) -> None:
        firsts = [batch.first for batch in self.unresolved]
        self.queue.resolved_to(min(firsts, default=self.queue.cut_to))

    def _put_back(self, batch: Batch, now: float, chance: float) -> None:
        self.again.appendleft(batch)
        self.back_off(now, chance)

    def _split(self, parent: Batch) -> None:
        children: list[Batch] = []
        first = parent.first
        for count in self.queue.split(parent):
            children.append(self.cut_again(first, count, parent))
            first += count
        place = self.unresolved.index(parent)
        del self.unresolved[place]
        self.queue.let_go(parent)
        for child in reversed(children):
            self.unresolved.insert(place, child)
        self.again.extendleft(reversed(children))
        self.replaced.extend(self.slots_of([parent]))
        self.unjournaled += len(children)

    def _tell_leader(self, verdict: Verdict, outcome: ProduceOutcome) -> None:
        told = outcome.leader_hint
        if verdict is Verdict.NEW_LEADER and told is not None and told.leader_epoch > self.leader_epoch:
            self.hint(told.leader, told.leader_epoch)
        elif verdict in (Verdict.NEW_LEADER, Verdict.RETRY_STALE, Verdict.CONFIRM_TOPIC):
            self.hint(-1, -1)


def _text(judged: Judgement, outcome: ProduceOutcome) -> str:
    return outcome.message or f"{judged.name}: {judged.reason}"
