"""Alarms and log events about leases."""

from collections import Counter
from dataclasses import dataclass

from .lease import Lease
from .states import BlockReason


@dataclass(frozen=True, slots=True)
class LeaseAlarm:
    """A partition that needs an operator. It covers ordinals [first, end); `since` is CLOCK_MONOTONIC seconds."""

    partition: int
    topic: str
    index: int
    since: float
    why: BlockReason
    text: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LeaseNotice:
    """A log event: its name in `event`, and the ordinals [first, end)."""

    event: str
    topic: str
    index: int
    first: int
    end: int
    text: str


class LeaseAlarms:
    """Owner of the alarms, by partition number, and of the log events, which the router empties."""

    def __init__(self, counters: Counter[str]) -> None:
        self.active: dict[int, LeaseAlarm] = {}
        self.notices: list[LeaseNotice] = []
        self._counters = counters

    def notify(self, event: str, lease: Lease, first: int, end: int, text: str) -> None:
        """Log an event about the ordinals [first, end)."""
        self.notices.append(LeaseNotice(event, lease.durable.topic, lease.durable.index, first, end, text))

    def possible_duplicates(self, lease: Lease, first: int, end: int, text: str) -> None:
        """Count and report records that may have been written twice."""
        self._counters["possible_duplicates"] += end - first
        self.notify("possible_duplicates", lease, first, end, text)

    def set(self, lease: Lease, why: BlockReason, text: str, first: int, end: int, *, now: float) -> None:
        """Raise the alarm or update its text. `since` stays the time it was first raised."""
        durable, known = lease.durable, self.active.get(lease.number)
        since = known.since if known is not None else now
        self.active[lease.number] = LeaseAlarm(lease.number, durable.topic, durable.index, since, why, text, first, end)
        if known is None or known.why is not why:
            self.notify(why.value, lease, first, end, text)
            if why is BlockReason.GAP:
                self._counters["gap_records"] += end - first

    def clear(self, lease: Lease) -> None:
        """Remove the partition's alarm, if there is one."""
        _ = self.active.pop(lease.number, None)
