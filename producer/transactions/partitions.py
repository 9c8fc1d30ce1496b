"""What belongs to the transaction under way, as far as its coordinator and the brokers know.

In version 1 a partition is wanted, then asked for, then added, and only then sent to. In version 2 brokers add it when they see the
first batch: it counts from the first send on, whatever comes of it.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from .requests import Part


class Contents:
    """Partitions and offsets of one transaction."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._wanted: dict[Part, None] = {}
        self._asked: dict[Part, None] = {}
        self._added: dict[Part, None] = {}
        self.has_offsets = False
        """The group's offsets are part of it, or (version 2) may be."""
        self.sent: dict[Part, None] = {}
        """The partitions for which a batch went out."""
        self.doubtful = False
        """A request to add something was given up without an answer: the coordinator may hold an open transaction."""

    def want(self, part: Part) -> None:
        """Records for it have come. In version 2 nothing has to be asked."""
        if self._version == 1 and part not in self._asked and part not in self._added:
            self._wanted[part] = None

    def next_parts(self, withheld: AbstractSet[Part]) -> tuple[Part, ...]:
        """All that are to be asked for now, in one request."""
        parts = tuple(part for part in self._wanted if part not in withheld)
        for part in parts:
            del self._wanted[part]
            self._asked[part] = None
        return parts

    def drop_wanted(self) -> None:
        """What was not asked for is not needed any more."""
        self._wanted.clear()

    def add(self, parts: Iterable[Part]) -> None:
        """The coordinator has them, or (version 2) a batch for them went out."""
        for part in parts:
            self._asked.pop(part, None)
            self._added[part] = None

    def refuse(self, parts: Iterable[Part]) -> None:
        """Not added, and not asked for any more."""
        for part in parts:
            self._asked.pop(part, None)

    def holds(self, part: Part) -> bool:
        """It is part of the transaction."""
        return part in self._added

    def send(self, part: Part) -> None:
        """A batch for it goes out."""
        self.sent[part] = None
        if self._version != 1:
            self._added[part] = None

    def forget(self) -> None:
        """The coordinator has ended it without being asked."""
        self._wanted.clear()
        self._asked.clear()
        self._added.clear()
        self.has_offsets = False
        self.doubtful = False

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
        return self.doubtful or not self.empty
