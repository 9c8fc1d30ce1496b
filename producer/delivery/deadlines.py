"""Finds records that exceed `delivery.timeout.ms`, and builds their failures (XPY-1 to XPY-5).

Time counts from the creation of a slice. Records that were never sent are removed. Those that may be in the log become
in-doubt records: their futures fail, but they are sent until their fate is known, because later ones depend on them.
"""

import heapq
from typing import Final, NamedTuple

from ..records.sequence_ranges import OrdinalRange
from .outcomes import DeliveryFailure, DeliveryFailureKind
from .partition_state import PartitionState

_NAME: Final = "DELIVERY_TIMEOUT"


class ExpiredSpans(NamedTuple):
    """Expired ordinals of a partition."""

    maybe_sent: OrdinalRange
    never_sent: OrdinalRange


class DeliveryDeadlines:
    """A heap of partitions by earliest expiry. Each is in it once; `expired` skips records delivered meanwhile."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s: Final = timeout_s
        self._heap: list[tuple[float, int, PartitionState]] = []

    def watch(self, partition: PartitionState) -> None:
        """Add a partition that has slices. Does nothing if it is watched already or has none left to expire."""
        if partition.has_deadline:
            return
        at = self._due(partition)
        if at is not None:
            partition.has_deadline = True
            heapq.heappush(self._heap, (at, partition.number, partition))

    def next_deadline(self) -> float | None:
        """When to call `expired` again."""
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[PartitionState]:
        """Remove and return partitions with expired records. The caller must `watch` them again."""
        found: list[PartitionState] = []
        while self._heap and self._heap[0][0] <= now:
            _, _, partition = heapq.heappop(self._heap)
            partition.has_deadline = False
            at = self._due(partition)
            if at is not None and at <= now:
                found.append(partition)
            else:
                self.watch(partition)
        return found

    def end_of(self, partition: PartitionState, now: float) -> int:
        """The first ordinal that has not expired."""
        end = partition.expired_to
        for ref in partition.slices:
            if ref.created_ms / 1000 + self._timeout_s > now:
                break
            end = max(end, ref.first + ref.count)
        return end

    def _due(self, partition: PartitionState) -> float | None:
        seen = max(partition.expired_to, partition.ack_mark)
        for ref in partition.slices:
            if ref.first + ref.count > seen:
                return ref.created_ms / 1000 + self._timeout_s
        return None


def split_expired(partition: PartitionState, end: int, sent_to: int) -> ExpiredSpans:
    """Split the records that expired now, those below `end`, at `sent_to`: no record from there on was ever sent."""
    first = max(partition.ack_mark, partition.expired_to)
    middle = min(max(first, sent_to), max(first, end))
    return ExpiredSpans((first, middle), (middle, max(middle, end)))


def expiry_failure(
    partition: PartitionState,
    kind: DeliveryFailureKind,
    phase: str,
    *,
    timeout_s: float,
    attempts: int,
    last_error: str,
) -> DeliveryFailure:
    """The failure of expired records, with the reason for the delay in its message."""
    where = f"{partition.topic}-{partition.index}"
    what = "may be in the log" if kind is DeliveryFailureKind.MAY_BE_WRITTEN else "never sent"
    text = f"not delivered to {where} within {round(timeout_s * 1000)} ms of its creation: {what}; {phase}"
    if attempts:
        text += f"; {attempts} attempt{'s' if attempts > 1 else ''}"
    if last_error:
        text += f"; last error: {last_error}"
    return DeliveryFailure(kind, -1, _NAME, text)
