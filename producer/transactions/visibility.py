"""Checks whether a transaction has ended in its partitions.

EndTxn is answered before markers are written, and a marker can get lost (KAFKA-20734). A partition counts as done when
its last stable offset has passed our last record, or when its leader knows no open transaction of ours.

Until then the producer sends nothing more to the partition, whether the transaction was committed or aborted: the next
marker would end the old transaction with the outcome of the new one (TRX-3).
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from ..protocol.backoff import Backoff
from .requests import PartitionKey

UNKNOWN_OFFSET: Final = -1
"""Last offset of a partition that was sent to but never answered."""


class VisibilityCheckKind(Enum):
    """Request that checks a partition; both kinds go to its leader."""

    LAST_STABLE_OFFSET = auto()
    """ListOffsets, isolation read_committed, timestamp latest: the last stable offset. Needs the right DESCRIBE."""
    OPEN_TRANSACTIONS = auto()
    """DescribeProducers: the producers with open transactions. Needs the right READ."""


class VisibilityCheck(NamedTuple):
    """One check of one partition. The shell may batch checks of the same kind for the same leader into one request."""

    kind: VisibilityCheckKind
    part: PartitionKey


class LastStableOffsetResult(NamedTuple):
    """The last stable offset: the first offset that a read_committed consumer does not get."""

    code: int
    last_stable_offset: int = -1


class OpenTransactionsResult(NamedTuple):
    """Producer ids with an open transaction in the partition (`current_txn_start_offset` >= 0)."""

    code: int
    producer_ids: frozenset[int] = frozenset()


VisibilityResult = LastStableOffsetResult | OpenTransactionsResult


class _PendingVisibility:
    def __init__(self, producer_id: int, last_offset: int, now: float) -> None:
        self.producer_id: Final = producer_id
        self.last_offset: Final = last_offset
        self.since: Final = now
        self.due = now
        self.in_flight = False
        self.attempts = 0
        self.cannot_describe = False
        """The partition's leader refuses DescribeProducers."""
        self.alarmed = False
        self.next_kind = (
            VisibilityCheckKind.OPEN_TRANSACTIONS
            if last_offset == UNKNOWN_OFFSET
            else VisibilityCheckKind.LAST_STABLE_OFFSET
        )


class VisibilityTracker:
    """The partitions in which our last transaction may not have ended yet."""

    def __init__(self, look: Backoff, *, ask_leader_after_s: float, hanging_after_s: float) -> None:
        self._backoff: Final = look
        self._ask_leader_after_s: Final = ask_leader_after_s
        self._hanging_after_s: Final = hanging_after_s
        self._pending: Final[dict[PartitionKey, _PendingVisibility]] = {}

    def __contains__(self, part: PartitionKey) -> bool:
        return part in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def parts(self) -> tuple[PartitionKey, ...]:
        """The partitions not visible yet, in the order they were written to."""
        return tuple(self._pending)

    def track(self, producer_id: int, last_offsets: Mapping[PartitionKey, int], now: float) -> None:
        """Start checking these partitions, because their transaction has ended."""
        for part, offset in last_offsets.items():
            assert part not in self._pending, (
                f"{part} was sent to before the end of its last transaction was seen (TRX-3)"
            )
            self._pending[part] = _PendingVisibility(producer_id, offset, now)

    def take_checks(self, now: float) -> list[VisibilityCheck]:
        """The checks to send now. Each must end with `answered` or `lost`."""
        looks: list[VisibilityCheck] = []
        for part, unseen in self._pending.items():
            if not unseen.in_flight and now >= unseen.due:
                unseen.in_flight = True
                looks.append(VisibilityCheck(unseen.next_kind, part))
        return looks

    def answered(self, look: VisibilityCheck, answer: VisibilityResult, *, now: float, chance: float) -> bool:
        """Apply a response. True: the records are visible, or we cannot find out more. `chance` in [0, 1)."""
        unseen = self._pending.get(look.part)
        if unseen is None:
            return False
        match answer:
            case LastStableOffsetResult(code=0, last_stable_offset=last_stable):
                seen = last_stable > unseen.last_offset
            case OpenTransactionsResult(code=0, producer_ids=producer_ids):
                # If we are not listed, our marker is written: another producer holds the last stable offset back.
                seen = unseen.producer_id not in producer_ids
            case OpenTransactionsResult(code=code):
                unseen.cannot_describe = code in _CANNOT_DESCRIBE
                # Without an offset and without DescribeProducers there is nothing to check.
                seen = unseen.cannot_describe and unseen.last_offset == UNKNOWN_OFFSET
            case _:
                seen = False
        if seen:
            del self._pending[look.part]
            return True
        self._reschedule(unseen, look.kind, now, chance, answered=True)
        return False

    def lost(self, look: VisibilityCheck, *, now: float, chance: float) -> None:
        """The check was not answered, or there is no leader to send it to."""
        unseen = self._pending.get(look.part)
        if unseen is not None:
            self._reschedule(unseen, look.kind, now, chance, answered=False)

    def _reschedule(
        self, unseen: _PendingVisibility, kind: VisibilityCheckKind, now: float, chance: float, *, answered: bool
    ) -> None:
        unseen.in_flight = False
        may_ask_leader = now - unseen.since >= self._ask_leader_after_s and not unseen.cannot_describe
        if (
            answered
            and kind is VisibilityCheckKind.LAST_STABLE_OFFSET
            and may_ask_leader
            and unseen.last_offset != UNKNOWN_OFFSET
        ):
            # Alternate both kinds, so that a commit need not wait for another producer's long transaction.
            unseen.next_kind = VisibilityCheckKind.OPEN_TRANSACTIONS
            unseen.due = now
            return
        unseen.due = now + self._backoff.wait_s(unseen.attempts, chance)
        unseen.attempts += 1
        if unseen.last_offset != UNKNOWN_OFFSET:
            unseen.next_kind = VisibilityCheckKind.LAST_STABLE_OFFSET

    def report_hanging(self, now: float, tell: Callable[[str], None]) -> None:
        """Call `tell` once for each partition that has not been visible for too long."""
        for (topic, index), unseen in self._pending.items():
            if not unseen.alarmed and now - unseen.since >= self._hanging_after_s:
                unseen.alarmed = True
                end = "" if unseen.last_offset == UNKNOWN_OFFSET else f" through offset {unseen.last_offset}"
                tell(
                    f"hanging transaction: {topic}-{index} was written{end} by producer id "
                    f"{unseen.producer_id}, the transaction has ended, and readers of committed records do not get past it; "
                    "nothing more of this producer is sent to it"
                )

    def next_deadline(self) -> float | None:
        """When `take_checks` or `report_hanging` next has something to do."""
        times = [unseen.due for unseen in self._pending.values() if not unseen.in_flight]
        times += [unseen.since + self._hanging_after_s for unseen in self._pending.values() if not unseen.alarmed]
        return min(times, default=None)


_CANNOT_DESCRIBE: Final = frozenset({29, 35})
"""TOPIC_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION."""
