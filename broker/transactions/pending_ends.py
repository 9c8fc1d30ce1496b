"""Transactions whose outcome is decided and not yet told to all their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from .states import Key, TransactionMetadata


@dataclass(frozen=True, slots=True)
class WrittenMarker:
    """A marker in the log of a leader."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class PendingEnd:
    """A transaction whose outcome is decided, and where it is not told yet."""

    due: float
    """When the markers are written (seconds)."""

    unwritten: set[Key]
    unreplicated: dict[Key, WrittenMarker] = field(default_factory=dict)


class PendingEnds:
    """All transactions that are being ended by one node."""

    def __init__(self) -> None:
        self._known: dict[str, PendingEnd] = {}

    def of(self, known: TransactionMetadata, due: float) -> PendingEnd:
        """How far a transaction's end has come."""
        return self._known.setdefault(known.transactional_id, PendingEnd(due, set(known.partitions)))

    def retain(self, names: set[str]) -> None:
        """Forget all others."""
        for name in [name for name in self._known if name not in names]:
            del self._known[name]

    def next_deadline(self, now: float) -> float | None:
        """When the next markers are to be written, if there are any that wait for that."""
        return min((one.due for one in self._known.values() if one.due > now), default=None)
