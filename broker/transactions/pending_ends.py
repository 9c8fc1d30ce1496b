"""Decided transactions whose markers are not yet in all their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from .states import Key, TransactionMetadata


@dataclass(frozen=True, slots=True)
class WrittenMarker:
    """A marker in a leader's log: leader epoch and the offset after the marker."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class PendingEnd:
    """A decided transaction, and the partitions whose markers are not written or not replicated."""

    due: float
    """When to write the markers (seconds)."""

    unwritten: set[Key]
    unreplicated: dict[Key, WrittenMarker] = field(default_factory=dict)


class PendingEnds:
    """All transactions that one node is ending."""

    def __init__(self) -> None:
        self._known: dict[str, PendingEnd] = {}

    def of(self, known: TransactionMetadata, due: float) -> PendingEnd:
        """Return the progress of a transaction's end; start it if it is new."""
        return self._known.setdefault(known.transactional_id, PendingEnd(due, set(known.partitions)))

    def retain(self, names: set[str]) -> None:
        """Forget all transactions except `names`."""
        for name in [name for name in self._known if name not in names]:
            del self._known[name]

    def next_deadline(self, now: float) -> float | None:
        """Return when the next markers are due, or None."""
        return min((one.due for one in self._known.values() if one.due > now), default=None)
