"""What the coordinators of transactions on this node know: the newest record of each transactional id in their partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from ..log.batch_writer import Pair, pairs_of
from .states import State, Transaction

SPARE_RECORDS: Final = 1_000
"""Records that a log may have beyond four times what it must tell, before it is written anew."""


class TransactionTable:
    """States by transactional id, partition by partition of `__transaction_state`, as far as this node leads them."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, Transaction]] = {}
        self._ready_at: dict[int, float] = {}
        self._ends: dict[str, int] = {}
        self._records: dict[int, int] = {}

    def load(self, index: int, batches: Iterable[bytes], ready_at: float) -> None:
        """Take a partition over; nothing is told before `ready_at` (seconds)."""
        self.forget(index)
        self._known[index] = {}
        self._ready_at[index] = ready_at
        for data in batches:
            self.appended(index, data)

    def forget(self, index: int) -> None:
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

    def appended(self, index: int, data: bytes) -> None:
        """Learn what a batch says, which is in the log now."""
        states = self._known[index]
        for key, value in pairs_of(data):
            assert key is not None
            self._records[index] = self._records.get(index, 0) + 1
            if value is None:
                _ = states.pop(key.decode(), None)
            else:
                states[key.decode()] = _decoded(key.decode(), value)

    def get(self, index: int, transactional_id: str) -> Transaction | None:
        """What is known of a transactional id."""
        return self._known[index].get(transactional_id)

    def all(self) -> Iterator[tuple[int, Transaction]]:
        """Everything that is known, with its partition."""
        return iter([(index, one) for index, states in self._known.items() for one in states.values()])

    def written(self, transactional_id: str, end_offset: int) -> None:
        """Note how far the replicas must come before a state counts."""
        self._ends[transactional_id] = end_offset

    def end_of(self, transactional_id: str) -> int:
        """How far the replicas must come."""
        return self._ends.get(transactional_id, 0)

    def is_long(self, index: int) -> bool:
        """Whether the log of a partition says most things more than once."""
        return self._records.get(index, 0) > 4 * len(self._known[index]) + SPARE_RECORDS

    def shortened(self, index: int) -> list[Pair]:
        """All that a partition's log must say; it is counted anew from here."""
        self._records[index] = 0
        return [encoded(one) for one in self._known[index].values()]


def encoded(known: Transaction) -> Pair:
    """A state as a record."""
    told = known._asdict() | {"state": known.state.value, "partitions": sorted(known.partitions)}
    del told["transactional_id"]
    return Pair(known.transactional_id.encode(), json.dumps(told).encode())


def removed(transactional_id: str) -> Pair:
    """The record that a transactional id is forgotten."""
    return Pair(transactional_id.encode(), None)


def _decoded(transactional_id: str, value: bytes) -> Transaction:
    told = json.loads(value)
    told["state"] = State(told["state"])
    told["partitions"] = frozenset((str(name), int(index)) for name, index in told["partitions"])
    return Transaction(transactional_id, **told)
