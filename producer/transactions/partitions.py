"""Contents of the current transaction, according to its coordinator and the brokers.

In version 1 a partition is new, then requested, then added, and only then sent to. In version 2 brokers add it with the
first batch: it counts from the first send, whatever the result.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from .requests import PartitionKey


class TransactionPartitions:
    """Partitions and offsets of one transaction."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._new: dict[PartitionKey, None] = {}
        self._pending: dict[PartitionKey, None] = {}
        self._added: dict[PartitionKey, None] = {}
        self.has_offsets = False
        """The group's offsets are part of the transaction, or (version 2) may be."""
        self.sent: dict[PartitionKey, None] = {}
        """The partitions for which a batch was sent."""
        self.in_doubt = False
        """An addition was given up without a response: the coordinator may have an open transaction."""

    def maybe_add(self, part: PartitionKey) -> None:
        """Note a partition with records. Version 2 needs no request for it."""
        if self._version == 1 and part not in self._pending and part not in self._added:
            self._new[part] = None

    def take_new(self, withheld: AbstractSet[PartitionKey]) -> tuple[PartitionKey, ...]:
        """Return all new partitions except `withheld`, to request them together."""
        parts = tuple(part for part in self._new if part not in withheld)
        for part in parts:
            del self._new[part]
            self._pending[part] = None
        return parts

    def drop_new(self) -> None:
        """Drop partitions not requested yet."""
        self._new.clear()

    def add(self, parts: Iterable[PartitionKey]) -> None:
        """Mark partitions as added by the coordinator."""
        for part in parts:
            self._pending.pop(part, None)
            self._added[part] = None

    def drop_pending(self, parts: Iterable[PartitionKey]) -> None:
        """Mark partitions as neither added nor requested any more."""
        for part in parts:
            self._pending.pop(part, None)

    def contains(self, part: PartitionKey) -> bool:
        """Whether the partition is part of the transaction."""
        return part in self._added

    def mark_sent(self, part: PartitionKey) -> None:
        """Note that a batch for the partition is sent."""
        self.sent[part] = None
        if self._version != 1:
            self._added[part] = None

    def forget(self) -> None:
        """Clear the contents, because the coordinator ended the transaction without EndTxn."""
        self._new.clear()
        self._pending.clear()
        self._added.clear()
        self.has_offsets = False
        self.in_doubt = False

    @property
    def has_partitions(self) -> bool:
        """Whether a partition was added."""
        return bool(self._added)

    @property
    def empty(self) -> bool:
        """Whether nothing is known to be part of the transaction."""
        return not self._added and not self.has_offsets

    @property
    def begun(self) -> bool:
        """Whether the coordinator has, or may have, a transaction to end (TXN-4)."""
        return self.in_doubt or not self.empty
