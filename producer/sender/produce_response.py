"""What an answer means for a batch and its partition. The codes themselves are judged in `producer/protocol/error_codes.py`.

An answer counts only for the attempt it belongs to: after MOVE and REVOKE a batch on the wire is an orphan, and whatever
comes for it is thrown away.
"""

from typing import Final, NamedTuple, assert_never

from ...wire.messages import FIRST, Anchor, DoneItem, Gap, Refused
from ..accumulator.batch import Batch, Refusal
from ..protocol.error_codes import CONCURRENT_TRANSACTIONS, NOT_ENOUGH_REPLICAS, Judgement, Verdict, judge_produce
from ..protocol.produce_request import ProduceOutcome
from .idempotent import Lease
from .log_end_probe import Probe, Step
from .modes import IMPLICIT, Here, Mode, Question
from .ready_nodes import Flight

_NOT_APPENDED: Final = frozenset({NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS})
"""Retriable codes that tell so."""
_MARKER_S: Final = 0.02
"""How soon a batch is tried again that came before the marker of the last transaction, at the latest."""


class Settled(NamedTuple):
    """For the counters: the verdict, or None for an orphan's answer."""

    verdict: Verdict | None
    records: int = 0


def settle(
    lease: Lease, batch: Batch, flight: Flight[Lease], outcome: ProduceOutcome | None, *, now: float, chance: float
) -> Settled:
    """Apply the answer for one batch; `outcome` None: the answer has nothing for this partition."""
    if batch.flight != flight.number:
        return Settled(None)
    if outcome is None:
        unanswered(lease, batch, flight, "the answer leaves the partition out", now=now, chance=chance)
        return Settled(Verdict.RETRY_STALE)
    lease.land(batch)
    judged = judge_produce(outcome.code, record_count=batch.count, log_start=outcome.log_start)
    if judged.verdict is not Verdict.ACKED:
        lease.last_error = judged.name
    records = _apply(lease, batch, flight, outcome, judged, now=now, chance=chance)
    advance(lease)
    return Settled(judged.verdict, records)


def unanswered(lease: Lease, batch: Batch, flight: Flight[Lease], reason: str, *, now: float, chance: float) -> None:
    """The attempt ended without an answer: the batch may be in the log."""
    if batch.flight != flight.number:
        return
    lease.land(batch)
    lease.last_error = reason
    _again(lease, batch, doubtful=True, now=now, chance=chance)
    advance(lease)


def advance(lease: Lease) -> None:
    """Report or split what has become the oldest: a refusal counts only there (ERR-1)."""
    if not lease.unresolved or lease.mode in (Mode.WAITING, Mode.GONE):
        return
    oldest = lease.unresolved[0]
    if oldest.refusal is None or oldest.flight:
        return
    refusal = oldest.refusal
    if refusal.too_large and not refusal.ambiguous:
        _split(lease, oldest)
        return
    looks_behind = lease.limits.confirms_gaps and not lease.limits.transactions
    if refusal.ambiguous and looks_behind and lease.pace != FIRST and lease.anchor is not None:
        _find_out(lease)
        return
    _report(lease, oldest, refusal)


def _find_out(lease: Lease) -> None:
    """Whether a refused batch is in the log: the leader tells where that begins, then what lies behind the batch is tried."""
    if lease.probe is None:
        lease.ask(Question.START)
        lease.enter(Mode.PROBING)
        lease.probe = Probe(tuple(lease.unresolved), lease.here, content=True)


def _report(lease: Lease, oldest: Batch, refusal: Refusal) -> None:
    lease.outbox.say(
        Refused(
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
    lease.enter(Mode.WAITING)


def _apply(
    lease: Lease,
    batch: Batch,
    flight: Flight[Lease],
    outcome: ProduceOutcome,
    judged: Judgement,
    *,
    now: float,
    chance: float,
) -> int:
    """Returns how many records are resolved by it."""
    match judged.verdict:
        case Verdict.ACKED:
            return _acked(lease, batch, flight, outcome, now=now)
        case Verdict.OUT_OF_ORDER:
            _out_of_order(lease, batch, flight, outcome, judged, now=now)
        case Verdict.SPLIT | Verdict.REFUSED_CONTENT | Verdict.REFUSED_LIFTABLE:
            _refused(lease, batch, outcome, judged, too_large=judged.verdict is Verdict.SPLIT)
        case Verdict.RETRY:
            _again(lease, batch, doubtful=outcome.code not in _NOT_APPENDED, now=now, chance=chance)
            if outcome.code == CONCURRENT_TRANSACTIONS:
                lease.retry_at = min(lease.retry_at, now + _MARKER_S)
        case Verdict.RETRY_STALE | Verdict.CONFIRM_TOPIC:
            lease.hint(-1, -1)
            if judged.verdict is Verdict.CONFIRM_TOPIC and outcome.topic_id is None and lease.topic_id is not None:
                lease.ask(Question.TOPIC)
            _again(lease, batch, doubtful=True, now=now, chance=chance)
        case Verdict.NEW_LEADER:
            told = outcome.leader_hint
            if told is not None and told.leader_epoch > lease.leader_epoch:
                lease.hint(told.leader, told.leader_epoch)
            else:
                lease.hint(-1, -1)
            _again(lease, batch, doubtful=True, now=now, chance=chance)
        case Verdict.UNKNOWN:
            _unknown(lease, batch, outcome, judged, now=now, chance=chance)
        case Verdict.EPOCH | Verdict.HALT:
            lease.halt(outcome.code, f"{judged.name}: {judged.reason}")
        case _:
            assert_never(judged.verdict)
    return 0


def _acked(lease: Lease, batch: Batch, flight: Flight[Lease], outcome: ProduceOutcome, *, now: float) -> int:
    place = lease.unresolved.index(batch)
    if place and not _proves_older(lease, place, outcome, now):
        lease.halt(outcome.code, "a later batch was taken by a broker that may have forgotten the earlier ones")
        return 0
    if not _offset_is_new(lease, outcome):
        lease.halt(
            outcome.code, f"offset {outcome.base_offset} lies before what was acknowledged: another topic or log?"
        )
        return 0
    lease.told_log_start(outcome.log_start, now=now)
    resolved = [lease.unresolved.popleft() for _ in range(place + 1)]
    item = DoneItem(
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
    lease.outbox.done(item, lease.slots_of(resolved))
    if outcome.base_offset >= 0:
        time_ms = outcome.log_append_ms if outcome.log_append_ms >= 0 else batch.max_ts
        lease.anchor = Anchor(outcome.base_offset, time_ms, lease.wall.ms(now), lease.leader_epoch)
    for one in resolved:
        if one.flight:
            # Its own answer, if one comes, is no news.
            lease.land(one)
        lease.queue.let_go(one)
    lease.queue.resolved_to(batch.end)
    lease.held = True
    lease.failures = 0
    lease.retry_at = 0.0
    lease.proven = Here(flight.node, flight.incarnation, lease.leader_epoch)
    if lease.mode is Mode.PROBING:
        lease.enter(Mode.CAREFUL)
    if lease.mode is Mode.CAREFUL and not lease.unresolved:
        lease.enter(Mode.RUNNING)
        lease.last_error = ""
    return sum(one.count for one in resolved)


def _proves_older(lease: Lease, place: int, outcome: ProduceOutcome, now: float) -> bool:
    """A broker without state takes any batch as a first one; only an anchored partition rules that out (PRB-6). In transactions
    of version 2 it takes sequence 0 alone."""
    older = list(lease.unresolved)[:place]
    knows_us = lease.limits.transactions >= IMPLICIT or lease.anchored_by(outcome.log_start, now)
    return knows_us and all(one.refusal is None or one.refusal.ambiguous for one in older)


def _offset_is_new(lease: Lease, outcome: ProduceOutcome) -> bool:
    """A topic made again under the same name begins at 0: its offsets are no news of ours (IDN-8)."""
    if outcome.base_offset < 0 or lease.anchor is None:
        return True
    by_name = outcome.topic_id is None
    return outcome.base_offset > lease.anchor.base_offset and not (by_name and outcome.base_offset < lease.log_start)


def _again(lease: Lease, batch: Batch, *, doubtful: bool, now: float, chance: float) -> None:
    """Keep the batch; nothing else until what may have been sent is resolved."""
    batch.doubtful = batch.doubtful or doubtful
    if lease.probe is not None:
        lease.probe.start_again(lease.here)
    elif lease.mode is Mode.RUNNING:
        lease.enter(Mode.CAREFUL)
    if lease.unresolved[0] is batch or lease.probe is not None:
        lease.back_off(now, chance)


def _unknown(
    lease: Lease, batch: Batch, outcome: ProduceOutcome, judged: Judgement, *, now: float, chance: float
) -> None:
    if batch.attempts < lease.limits.unknown_error_attempts:
        _again(lease, batch, doubtful=True, now=now, chance=chance)
        return
    batch.doubtful = True
    _refused(lease, batch, outcome, judged, too_large=False)


def _out_of_order(
    lease: Lease, batch: Batch, flight: Flight[Lease], outcome: ProduceOutcome, judged: Judgement, *, now: float
) -> None:
    if lease.probe is not None:
        if lease.probe.tries(batch):
            _trial_refused(lease, lease.probe.refused(batch), outcome.code, judged)
        return
    if lease.unresolved[0] is not batch:
        # What came before it was not appended; it follows when that has.
        if lease.mode is Mode.RUNNING:
            lease.enter(Mode.CAREFUL)
        return
    if lease.mode is Mode.WAITING:
        return
    if lease.limits.transactions:
        lease.halt(outcome.code, f"{judged.name}: {judged.reason}")
        return
    # A refusal for its sequence shows that the broker has state, so nothing is taken out of turn on this connection; but only where
    # a second pass follows may nothing else than refusals be concluded from.
    if not lease.limits.confirms_gaps and not lease.anchored_by(outcome.log_start, now):
        lease.halt(outcome.code, f"{judged.name} while nothing acknowledged proves that the broker knows us")
        return
    here = Here(flight.node, flight.incarnation, lease.leader_epoch)
    lease.enter(Mode.PROBING)
    lease.probe = Probe(tuple(lease.unresolved), here)


def _trial_refused(lease: Lease, step: Step, code: int, judged: Judgement) -> None:
    """A trial of a probe was refused: go on, or tell that the pass is over."""
    oldest = lease.unresolved[0]
    if step is Step.ALL_REFUSED and lease.probe is not None and lease.probe.content and oldest.refusal is not None:
        lease.absent = True
        _report(lease, oldest, oldest.refusal)
    elif step is Step.ALL_REFUSED:
        lease.outbox.say(Gap(lease.partition, lease.generation, lease.leader_epoch, judged.name))
        lease.enter(Mode.WAITING)
    elif step is Step.UNSETTLED:
        lease.halt(code, f"{judged.name} while finding the end of the log")


def _refused(lease: Lease, batch: Batch, outcome: ProduceOutcome, judged: Judgement, *, too_large: bool) -> None:
    if lease.probe is not None:
        if lease.probe.tries(batch):
            unclear = batch.doubtful or lease.probe.content
            _trial_refused(lease, lease.probe.refused(batch, unclear=unclear), outcome.code, judged)
        return
    message = outcome.message or f"{judged.name}: {judged.reason}"
    batch.refusal = Refusal(outcome.code, message, outcome.record_errors, batch.doubtful, too_large)
    if lease.mode is Mode.RUNNING:
        lease.enter(Mode.CAREFUL)


def _split(lease: Lease, parent: Batch) -> None:
    """Parts of the same stamps take its place. Their cuts are journaled before the first is sent, then its own is freed
    (8.5); a part that is still too large is split again."""
    children: list[Batch] = []
    first = parent.first
    for count in lease.queue.split(parent):
        children.append(lease.cut_again(first, count, parent))
        first += count
    lease.queue.let_go(parent)
    _ = lease.unresolved.popleft()
    lease.unresolved.extendleft(reversed(children))
    lease.replaced.extend(lease.slots_of([parent]))
    lease.unjournaled += len(children)
    lease.failures = 0
    lease.retry_at = 0.0
    if lease.mode is Mode.RUNNING:
        lease.enter(Mode.CAREFUL)
