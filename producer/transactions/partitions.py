"""What belongs to the transaction under way, as far as its coordinator and the brokers know.

In version 1 a partition is wanted, then asked for, then added, and only then sent to. In version 2 brokers add it when they see the
first batch: it counts from the first send on, whatever comes of it.
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
        """The group's offsets are part of it, or (version 2) may be."""
        self.sent: dict[PartitionKey, None] = {}
        """The partitions for which a batch went out."""
        self.in_doubt = False
        """A request to add something was given up without an answer: the coordinator may hold an open transaction."""

    def maybe_add(self, part: PartitionKey) -> None:
        """Records for it have come. In version 2 nothing has to be asked."""
        if self._version == 1 and part not in self._pending and part not in self._added:
            self._new[part] = None

    def take_new(self, withheld: AbstractSet[PartitionKey]) -> tuple[PartitionKey, ...]:
        """All that are to be asked for now, in one request."""
        parts = tuple(part for part in self._new if part not in withheld)
        for part in parts:
            del self._new[part]
            self._pending[part] = None
        return parts

    def drop_new(self) -> None:
        """What was not asked for is not needed any more."""
        self._new.clear()

    def add(self, parts: Iterable[PartitionKey]) -> None:
        """The coordinator has them, or (version 2) a batch for them went out."""
        for part in parts:
            self._pending.pop(part, None)
            self._added[part] = None

    def drop_pending(self, parts: Iterable[PartitionKey]) -> None:
        """Not added, and not asked for any more."""
        for part in parts:
            self._pending.pop(part, None)

    def contains(self, part: PartitionKey) -> bool:
        """It is part of the transaction."""
        return part in self._added

    def mark_sent(self, part: PartitionKey) -> None:
        """A batch for it goes out."""
        self.sent[part] = None
        if self._version != 1:
            self._added[part] = None

    def forget(self) -> None:
        """The coordinator has ended it without being asked."""
        self._new.clear()
        self._pending.clear()
        self._added.clear()
        self.has_offsets = False
        self.in_doubt = False

    @property
    def has_partitions(self) -> bool:
        """Something was added."""
        return bool(self._added)

    @property
    def empty(self) -> bool:
        """Nothing is known to be part of it."""
        return not self._added and not self.has_offsets

    @property
    def begun(self) -> bool:
        """The coordinator has, or may have, something to end (TXN-4)."""
        return self.in_doubt or not self.empty
