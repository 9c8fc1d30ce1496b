"""What the coordinators of transactions on this node know: the newest record of each transactional id in their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from ..log.batch_writer import InternalRecord, read_internal_records
from .states import TransactionMetadata, TransactionState

SPARE_RECORDS: Final = 1_000
"""Records that a log may have beyond four times what it must tell, before it is written anew."""


class TransactionTable:
    """States by transactional id, partition by partition of `__transaction_state`, as far as this node leads them."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, TransactionMetadata]] = {}
        self._ready_at: dict[int, float] = {}
        self._ends: dict[str, int] = {}
        self._records: dict[int, int] = {}

    def load(self, index: int, batches: Iterable[bytes], ready_at: float) -> None:
        """Take a partition over; nothing is told before `ready_at` (seconds)."""
        self.unload(index)
        self._known[index] = {}
        self._ready_at[index] = ready_at
        for data in batches:
            self.replay(index, data)

    def unload(self, index: int) -> None:
        """Leave a partition to another node."""
        for name in self._known.pop(index, {}):
            _ = self._ends.pop(name, None)
        _ = self._records.pop(index, None)

    def leads(self, index: int) -> bool:
        """Whether a partition was taken over."""
        return index in self._known

    def loading(self, index: int, now: float) -> bool:
        """Whether it is too early to tell anything."""
        return now < self._ready_at[index]

    def replay(self, index: int, data: bytes) -> None:
        """Learn what a batch says, which is in the log now."""
        states = self._known[index]
        for key, value in read_internal_records(data):
            assert key is not None
            self._records[index] = self._records.get(index, 0) + 1
            if value is None:
                _ = states.pop(key.decode(), None)
            else:
                states[key.decode()] = _decode_record(key.decode(), value)

    def get(self, index: int, transactional_id: str) -> TransactionMetadata | None:
        """What is known of a transactional id."""
        return self._known[index].get(transactional_id)

    def all(self) -> Iterator[tuple[int, TransactionMetadata]]:
        """Everything that is known, with its partition."""
        return iter([(index, one) for index, states in self._known.items() for one in states.values()])

    def note_written(self, transactional_id: str, end_offset: int) -> None:
        """Note how far the replicas must come before a state counts."""
        self._ends[transactional_id] = end_offset

    def end_of(self, transactional_id: str) -> int:
        """How far the replicas must come."""
        return self._ends.get(transactional_id, 0)

    def needs_compaction(self, index: int) -> bool:
        """Whether the log of a partition says most things more than once."""
        return self._records.get(index, 0) > 4 * len(self._known[index]) + SPARE_RECORDS

    def compacted(self, index: int) -> list[InternalRecord]:
        """All that a partition's log must say; it is counted anew from here."""
        self._records[index] = 0
        return [encode_record(one) for one in self._known[index].values()]


def encode_record(known: TransactionMetadata) -> InternalRecord:
    """A state as a record."""
    told = known._asdict() | {"state": known.state.value, "partitions": sorted(known.partitions)}
    del told["transactional_id"]
    return InternalRecord(known.transactional_id.encode(), json.dumps(told).encode())


def tombstone(transactional_id: str) -> InternalRecord:
    """The record that a transactional id is forgotten."""
    return InternalRecord(transactional_id.encode(), None)


def _decode_record(transactional_id: str, value: bytes) -> TransactionMetadata:
    told = json.loads(value)
    told["state"] = TransactionState(told["state"])
    told["partitions"] = frozenset((str(name), int(index)) for name, index in told["partitions"])
    return TransactionMetadata(transactional_id, **told)
