"""Applies Produce responses to batches and their partition; `producer/protocol/error_codes.py` classifies the codes.

A response counts only for the attempt it belongs to: after `Move` and `Revoke`, responses to batches that were in
flight are ignored.
"""

from typing import Final, NamedTuple, assert_never

from ...wire.messages import FIRST, Anchor, BatchRefused, DoneBatch, ProbeRefused
from ..accumulator.batch import BatchRefusal, ProducerBatch
from ..protocol.error_codes import (
    CONCURRENT_TRANSACTIONS,
    NOT_ENOUGH_REPLICAS,
    ClassifiedError,
    ProduceErrorClass,
    classify_produce_error,
)
from ..protocol.produce_request import PartitionProduceResponse
from .idempotent import IdempotentPartition
from .log_end_probe import LogEndProbe, ProbeStep
from .modes import TRANSACTION_VERSION_2, LeaderCheck, LeaderConnection, SendMode
from .ready_nodes import InFlightRequest

_NOT_APPENDED: Final = frozenset({NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS})
"""Retriable codes that prove that the batch was not appended."""
_MARKER_S: Final = 0.02
"""Longest backoff for a batch that arrived before the marker of the last transaction."""


class CompletedAttempt(NamedTuple):
    """For the counters: error class and resolved records. `verdict` is None for a response that no longer counts."""

    verdict: ProduceErrorClass | None
    records: int = 0


def complete_batch(
    lease: IdempotentPartition,
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
        complete_without_response(lease, batch, flight, "the answer leaves the partition out", now=now, chance=chance)
        return CompletedAttempt(ProduceErrorClass.RETRY_REFRESH_METADATA)
    lease.remove_in_flight(batch)
    judged = classify_produce_error(outcome.code, record_count=batch.count, log_start=outcome.log_start)
    if judged.error_class is not ProduceErrorClass.ACKED:
        lease.last_error = judged.name
    records = _apply(lease, batch, flight, outcome, judged, now=now, chance=chance)
    report_or_split_oldest(lease)
    return CompletedAttempt(judged.error_class, records)


def complete_without_response(
    lease: IdempotentPartition,
    batch: ProducerBatch,
    flight: InFlightRequest[IdempotentPartition],
    reason: str,
    *,
    now: float,
    chance: float,
) -> None:
    """Apply an attempt that ended without a response: the batch may be in the log."""
    if batch.request_number != flight.number:
        return
    lease.remove_in_flight(batch)
    lease.last_error = reason
    _retry(lease, batch, doubtful=True, now=now, chance=chance)
    report_or_split_oldest(lease)


def report_or_split_oldest(lease: IdempotentPartition) -> None:
    """Report, probe or split the oldest batch if it was refused: only there a refusal counts (ERR-1)."""
    if not lease.unresolved or lease.mode in (SendMode.HELD, SendMode.REVOKED):
        return
    oldest = lease.unresolved[0]
    if oldest.refusal is None or oldest.request_number:
        return
    refusal = oldest.refusal
    if refusal.too_large and not refusal.ambiguous:
        _split(lease, oldest)
        return
    looks_behind = lease.limits.confirms_gaps and not lease.limits.transaction_version
    if refusal.ambiguous and looks_behind and lease.pace != FIRST and lease.anchor is not None:
        _probe_refused_batch(lease)
        return
    _report(lease, oldest, refusal)


def _probe_refused_batch(lease: IdempotentPartition) -> None:
    """Find out whether a refused batch is in the log: ask for the log start, then try the batches behind it."""
    if lease.probe is None:
        lease.require_check(LeaderCheck.LOG_START)
        lease.enter(SendMode.PROBING)
        lease.probe = LogEndProbe(tuple(lease.unresolved), lease.sent_on, content=True)


def _report(lease: IdempotentPartition, oldest: ProducerBatch, refusal: BatchRefusal) -> None:
    lease.outbox.put(
        BatchRefused(
            lease.partition,
            lease.generation,
            oldest.first,
            oldest.count,
            refusal.code,
            refusal.message,
            refusal.record_errors,
            refusal.ambiguous,
        )
    )
    lease.enter(SendMode.HELD)


def _apply(
    lease: IdempotentPartition,
    batch: ProducerBatch,
    flight: InFlightRequest[IdempotentPartition],
    outcome: PartitionProduceResponse,
    judged: ClassifiedError,
    *,
    now: float,
    chance: float,
) -> int:
    """Apply a classified response. Returns the number of records it resolves."""
    match judged.error_class:
        case ProduceErrorClass.ACKED:
            return _acked(lease, batch, flight, outcome, now=now)
        case ProduceErrorClass.OUT_OF_ORDER:
            _out_of_order(lease, batch, flight, outcome, judged, now=now)
        case ProduceErrorClass.SPLIT | ProduceErrorClass.REFUSED_CONTENT | ProduceErrorClass.REFUSED_UNTIL_FIXED:
            _refused(lease, batch, outcome, judged, too_large=judged.error_class is ProduceErrorClass.SPLIT)
        case ProduceErrorClass.RETRY:
            _retry(lease, batch, doubtful=outcome.code not in _NOT_APPENDED, now=now, chance=chance)
            if outcome.code == CONCURRENT_TRANSACTIONS:
                lease.retry_at = min(lease.retry_at, now + _MARKER_S)
        case ProduceErrorClass.RETRY_REFRESH_METADATA | ProduceErrorClass.CONFIRM_TOPIC:
            lease.hint(-1, -1)
            if (
                judged.error_class is ProduceErrorClass.CONFIRM_TOPIC
                and outcome.topic_id is None
                and lease.topic_id is not None
            ):
                lease.require_check(LeaderCheck.TOPIC_ID)
            _retry(lease, batch, doubtful=True, now=now, chance=chance)
        case ProduceErrorClass.NEW_LEADER:
            told = outcome.leader_hint
            if told is not None and told.leader_epoch > lease.leader_epoch:
                lease.hint(told.leader, told.leader_epoch)
            else:
                lease.hint(-1, -1)
            _retry(lease, batch, doubtful=True, now=now, chance=chance)
        case ProduceErrorClass.UNKNOWN:
            _unknown(lease, batch, outcome, judged, now=now, chance=chance)
        case ProduceErrorClass.STALE_EPOCH | ProduceErrorClass.HALT:
            lease.halt(outcome.code, f"{judged.name}: {judged.reason}")
        case _:
            assert_never(judged.verdict)
    return 0


def _acked(
    lease: IdempotentPartition,
    batch: ProducerBatch,
    flight: InFlightRequest[IdempotentPartition],
    outcome: PartitionProduceResponse,
    *,
    now: float,
) -> int:
    place = lease.unresolved.index(batch)
    if place and not _proves_older(lease, place, outcome, now):
        lease.halt(outcome.code, "a later batch was taken by a broker that may have forgotten the earlier ones")
        return 0
    if not _offset_is_new(lease, outcome):
        lease.halt(
            outcome.code, f"offset {outcome.base_offset} lies before what was acknowledged: another topic or log?"
        )
        return 0
    lease.update_log_start(outcome.log_start, now=now)
    resolved = [lease.unresolved.popleft() for _ in range(place + 1)]
    item = DoneBatch(
        lease.partition,
        lease.generation,
        batch.first,
        batch.count,
        outcome.base_offset,
        batch.max_ts,
        outcome.log_append_ms,
        outcome.log_start,
        lease.leader_epoch,
        batch.attempts,
    )
    lease.outbox.put_done(item, lease.slots_of(resolved))
    if outcome.base_offset >= 0:
        time_ms = outcome.log_append_ms if outcome.log_append_ms >= 0 else batch.max_ts
        lease.anchor = Anchor(outcome.base_offset, time_ms, lease.wall.ms(now), lease.leader_epoch)
    for one in resolved:
        if one.request_number:
            # Its own response, if one arrives, adds nothing.
            lease.remove_in_flight(one)
        lease.queue.discard(one)
    lease.queue.resolved_to(batch.end)
    lease.awaiting_pace = True
    lease.failures = 0
    lease.retry_at = 0.0
    lease.acked_on = LeaderConnection(flight.node, flight.incarnation, lease.leader_epoch)
    if lease.mode is SendMode.PROBING:
        lease.enter(SendMode.ONE_IN_FLIGHT)
    if lease.mode is SendMode.ONE_IN_FLIGHT and not lease.unresolved:
        lease.enter(SendMode.RUNNING)
        lease.last_error = ""
    return sum(one.count for one in resolved)


def _proves_older(lease: IdempotentPartition, place: int, outcome: PartitionProduceResponse, now: float) -> bool:
    """Whether an accepted batch proves that older ones are in the log. A broker without state accepts any batch as its
    first, unless the partition is anchored (PRB-6); with transaction version 2 it accepts sequence 0 only."""
    older = list(lease.unresolved)[:place]
    knows_us = lease.limits.transaction_version >= TRANSACTION_VERSION_2 or lease.anchored_by(outcome.log_start, now)
    return knows_us and all(one.refusal is None or one.refusal.ambiguous for one in older)


def _offset_is_new(lease: IdempotentPartition, outcome: PartitionProduceResponse) -> bool:
    """Whether the offset follows those acknowledged. A recreated topic of the same name starts at offset 0 (IDN-8)."""
    if outcome.base_offset < 0 or lease.anchor is None:
        return True
    by_name = outcome.topic_id is None
    return outcome.base_offset > lease.anchor.base_offset and not (by_name and outcome.base_offset < lease.log_start)


def _retry(lease: IdempotentPartition, batch: ProducerBatch, *, doubtful: bool, now: float, chance: float) -> None:
    """Keep the batch for a retry, and send one batch at a time until the retries are resolved."""
    batch.in_doubt = batch.in_doubt or doubtful
    if lease.probe is not None:
        lease.probe.start_again(lease.sent_on)
    elif lease.mode is SendMode.RUNNING:
        lease.enter(SendMode.ONE_IN_FLIGHT)
    if lease.unresolved[0] is batch or lease.probe is not None:
        lease.back_off(now, chance)


def _unknown(
    lease: IdempotentPartition,
    batch: ProducerBatch,
    outcome: PartitionProduceResponse,
    judged: ClassifiedError,
    *,
    now: float,
    chance: float,
) -> None:
    if batch.attempts < lease.limits.unknown_error_attempts:
        _retry(lease, batch, doubtful=True, now=now, chance=chance)
        return
    batch.in_doubt = True
    _refused(lease, batch, outcome, judged, too_large=False)


def _out_of_order(
    lease: IdempotentPartition,
    batch: ProducerBatch,
    flight: InFlightRequest[IdempotentPartition],
    outcome: PartitionProduceResponse,
    judged: ClassifiedError,
    *,
    now: float,
) -> None:
    if lease.probe is not None:
        if lease.probe.is_target(batch):
            _trial_refused(lease, lease.probe.refused(batch), outcome.code, judged)
        return
    if lease.unresolved[0] is not batch:
        # An older batch was not appended; this one is sent again after it.
        if lease.mode is SendMode.RUNNING:
            lease.enter(SendMode.ONE_IN_FLIGHT)
        return
    if lease.mode is SendMode.HELD:
        return
    if lease.limits.transaction_version:
        lease.halt(outcome.code, f"{judged.name}: {judged.reason}")
        return
    # A refused sequence proves that the broker has state, so it accepts no batch out of order on this connection.
    # Without an anchor, conclusions from refusals alone need a second pass.
    if not lease.limits.confirms_gaps and not lease.anchored_by(outcome.log_start, now):
        lease.halt(outcome.code, f"{judged.name} while nothing acknowledged proves that the broker knows us")
        return
    here = LeaderConnection(flight.node, flight.incarnation, lease.leader_epoch)
    lease.enter(SendMode.PROBING)
    lease.probe = LogEndProbe(tuple(lease.unresolved), here)


def _trial_refused(lease: IdempotentPartition, step: ProbeStep, code: int, judged: ClassifiedError) -> None:
    """Apply a refused trial of a probe: continue the pass, or report its result."""
    oldest = lease.unresolved[0]
    if (
        step is ProbeStep.ALL_REFUSED
        and lease.probe is not None
        and lease.probe.content_refused
        and oldest.refusal is not None
    ):
        lease.refused_not_in_log = True
        _report(lease, oldest, oldest.refusal)
    elif step is ProbeStep.ALL_REFUSED:
        lease.outbox.put(ProbeRefused(lease.partition, lease.generation, lease.leader_epoch, judged.name))
        lease.enter(SendMode.HELD)
    elif step is ProbeStep.INCONCLUSIVE:
        lease.halt(code, f"{judged.name} while finding the end of the log")


def _refused(
    lease: IdempotentPartition,
    batch: ProducerBatch,
    outcome: PartitionProduceResponse,
    judged: ClassifiedError,
    *,
    too_large: bool,
) -> None:
    if lease.probe is not None:
        if lease.probe.is_target(batch):
            unclear = batch.in_doubt or lease.probe.content_refused
            _trial_refused(lease, lease.probe.refused(batch, unclear=unclear), outcome.code, judged)
        return
    message = outcome.message or f"{judged.name}: {judged.reason}"
    batch.refusal = BatchRefusal(outcome.code, message, outcome.record_errors, batch.in_doubt, too_large)
    if lease.mode is SendMode.RUNNING:
        lease.enter(SendMode.ONE_IN_FLIGHT)


def _split(lease: IdempotentPartition, parent: ProducerBatch) -> None:
    """Replace a batch by parts with the same stamps. Their cuts are journaled before the first is sent, then the
    batch's slot is released (8.5). A part that is still too large is split again."""
    children: list[ProducerBatch] = []
    first = parent.first
    for count in lease.queue.split(parent):
        children.append(lease.cut_split_part(first, count, parent))
        first += count
    lease.queue.discard(parent)
    _ = lease.unresolved.popleft()
    lease.unresolved.extendleft(reversed(children))
    lease.replaced_slots.extend(lease.slots_of([parent]))
    lease.unjournaled += len(children)
    lease.failures = 0
    lease.retry_at = 0.0
    if lease.mode is SendMode.RUNNING:
        lease.enter(SendMode.ONE_IN_FLIGHT)
