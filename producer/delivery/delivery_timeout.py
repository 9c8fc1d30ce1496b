"""Applies `delivery.timeout.ms`: fails expired records and drops or keeps their batches.

The rules are in `producer/delivery/deadlines.py`."""

from collections.abc import Callable
from typing import Final

from ..records.sequence_ranges import OrdinalRange
from ..sender.at_least_once import DroppedRecords
from ..sender.idempotent import IdempotentPartition
from ..sender.partitions import PartitionTable
from .assignment import PartitionAssigner
from .deadlines import expiry_failure, split_expired
from .gap_confirmation import GapConfirmation
from .outcomes import DeliveryFailure, DeliveryFailureKind, DeliveryOutcome
from .partition_state import PartitionState


class DeliveryTimeout:
    """Expires records. `fail` fails ordinals that will never be sent (again); those in doubt fail in `outcomes`."""

    def __init__(
        self,
        table: PartitionTable,
        placing: PartitionAssigner,
        confirming: GapConfirmation,
        fail: Callable[[PartitionState, list[OrdinalRange], DeliveryFailure], None],
        outcomes: list[DeliveryOutcome],
        *,
        timeout_s: float,
        trouble_with: Callable[[int], str | None],
    ) -> None:
        self._table: Final = table
        self._placing: Final = placing
        self._confirming: Final = confirming
        self._fail: Final = fail
        self._outcomes: Final = outcomes
        self._timeout_s: Final = timeout_s
        self._connection_error: Final = trouble_with

    def expire(self, part: PartitionState, end: int, now: float) -> None:
        """Expire everything below `end`, oldest first. Records that may be in the log become in doubt; those never sent
        are skipped (XPY-2, XPY-3)."""
        lease = self._table.partitions.get(part.number)
        sent_to = part.sent_to
        attempts, last_error = part.attempts, part.last_error
        if lease is not None:
            sent_to = lease.unresolved[-1].end if lease.unresolved else part.ack_mark
            attempts, last_error = attempts_of(lease)
        maybe_sent, never_sent = split_expired(part, end, sent_to)
        part.expired_to = end
        if maybe_sent[0] < maybe_sent[1]:
            why = self._timeout_failure(part, lease, attempts, last_error, sent=True)
            self._outcomes.extend(part.fail_in_doubt(maybe_sent, why))
        if never_sent[0] < never_sent[1]:
            self._placing.revoke(part, now)
            part.skip([never_sent])
            first, last = never_sent
            doubtful_to = min(max(first, part.in_doubt_to), last)
            for span, sent in (((first, doubtful_to), True), ((doubtful_to, last), False)):
                if span[0] < span[1]:
                    self._fail(part, [span], self._timeout_failure(part, lease, 0, last_error, sent=sent))
            self._placing.reconsider(part)

    def expire_at_least_once(self, part: PartitionState, end: int, now: float) -> None:
        """Expire everything below `end` of a partition without idempotence: no expired record is sent again."""
        lease = self._table.partitions.get(part.number)
        last_error = part.last_error if lease is None else lease.last_error
        part.expired_to = end
        if lease is None:
            dropped = [DroppedRecords((cut.first, cut.first + cut.count), 1) for cut in part.cuts if cut.first < end]
            part.cuts = [cut for cut in part.cuts if cut.first >= end]
            dropped.append(DroppedRecords((part.ack_mark, end), 0))
        else:
            dropped = self._table.expire(part.number, end, now=now)
        for span, attempts in dropped:
            self._fail(part, [span], self._timeout_failure(part, lease, attempts, last_error, sent=attempts > 0))

    def failure_of(self, part: PartitionState, *, sent: bool) -> DeliveryFailure:
        """The failure of expired records of a partition; `sent`: they may have been written."""
        lease = self._table.partitions.get(part.number)
        attempts, last_error = (part.attempts, part.last_error) if lease is None else attempts_of(lease)
        return self._timeout_failure(part, lease, attempts if sent else 0, last_error, sent=sent)

    def _timeout_failure(
        self, part: PartitionState, lease: IdempotentPartition | None, attempts: int, last_error: str, *, sent: bool
    ) -> DeliveryFailure:
        kind = DeliveryFailureKind.MAY_BE_WRITTEN if sent else DeliveryFailureKind.EXPIRED
        phase = self._phase(part, lease, sent=sent)
        return expiry_failure(part, kind, phase, timeout_s=self._timeout_s, attempts=attempts, last_error=last_error)

    def _phase(self, part: PartitionState, lease: IdempotentPartition | None, *, sent: bool) -> str:
        """What the records were waiting for, for the error message."""
        if not self._placing.has_producer_id:
            return "waiting for a producer id"
        if part.leader not in self._table.nodes:
            return "no leader is known"
        if self._confirming.is_checking(part):
            return "held up by a gap that is not confirmed yet"
        trouble = self._connection_error(part.leader)
        if trouble is not None:
            return f"no connection to node {part.leader}" + (f" ({trouble})" if trouble else "")
        if sent and lease is not None and lease.in_flight:
            return f"in flight to node {part.leader}"
        return "waiting to be sent again" if sent else "queued"


def attempts_of(lease: IdempotentPartition) -> tuple[int, str]:
    """Attempts of the lease's oldest batch, and the lease's last error."""
    return lease.unresolved[0].attempts if lease.unresolved else 0, lease.last_error
