"""State of the transaction coordinators on this node: the newest record of each transactional id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from ..log.batch_writer import InternalRecord, read_internal_records
from .states import TransactionMetadata, TransactionState

SPARE_RECORDS: Final = 1_000
"""Records that a log may have beyond four per transactional id before it is compacted."""


class TransactionTable:
    """States by transactional id, for the partitions of `__transaction_state` that this node leads."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, TransactionMetadata]] = {}
        self._ready_at: dict[int, float] = {}
        self._ends: dict[str, int] = {}
        self._records: dict[int, int] = {}

    def load(self, index: int, batches: Iterable[bytes], ready_at: float) -> None:
        """Take over a partition; it counts as loading until `ready_at` (seconds)."""
        self.unload(index)
        self._known[index] = {}
        self._ready_at[index] = ready_at
        for data in batches:
            self.replay(index, data)

    def unload(self, index: int) -> None:
        """Drop a partition that another node took over or that no longer exists."""
        for name in self._known.pop(index, {}):
            _ = self._ends.pop(name, None)
        _ = self._records.pop(index, None)

    def leads(self, index: int) -> bool:
        """Return whether a partition was loaded."""
        return index in self._known

    def loading(self, index: int, now: float) -> bool:
        """Return whether a partition is still loading."""
        return now < self._ready_at[index]

    def replay(self, index: int, data: bytes) -> None:
        """Apply an appended batch."""
        states = self._known[index]
        for key, value in read_internal_records(data):
            assert key is not None
            self._records[index] = self._records.get(index, 0) + 1
            if value is None:
                _ = states.pop(key.decode(), None)
            else:
                states[key.decode()] = _decode_record(key.decode(), value)

    def get(self, index: int, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id, or None."""
        return self._known[index].get(transactional_id)

    def all(self) -> Iterator[tuple[int, TransactionMetadata]]:
        """Iterate over all states, with their partition."""
        return iter([(index, one) for index, states in self._known.items() for one in states.values()])

    def note_written(self, transactional_id: str, end_offset: int) -> None:
        """Record the offset that must be replicated before a state takes effect."""
        self._ends[transactional_id] = end_offset

    def end_of(self, transactional_id: str) -> int:
        """Return the offset that must be replicated before the last state takes effect."""
        return self._ends.get(transactional_id, 0)

    def needs_compaction(self, index: int) -> bool:
        """Return whether the log of a partition has too many outdated records."""
        return self._records.get(index, 0) > 4 * len(self._known[index]) + SPARE_RECORDS

    def compacted(self, index: int) -> list[InternalRecord]:
        """Return records of a partition's whole current state; restart its record count."""
        self._records[index] = 0
        return [encode_record(one) for one in self._known[index].values()]


def encode_record(known: TransactionMetadata) -> InternalRecord:
    """Encode a state as a record."""
    told = known._asdict() | {"state": known.state.value, "partitions": sorted(known.partitions)}
    del told["transactional_id"]
    return InternalRecord(known.transactional_id.encode(), json.dumps(told).encode())


def tombstone(transactional_id: str) -> InternalRecord:
    """Return the record that deletes a transactional id."""
    return InternalRecord(transactional_id.encode(), None)


def _decode_record(transactional_id: str, value: bytes) -> TransactionMetadata:
    told = json.loads(value)
    told["state"] = TransactionState(told["state"])
    told["partitions"] = frozenset((str(name), int(index)) for name, index in told["partitions"])
    return TransactionMetadata(transactional_id, **told)
