"""The backward probe: where does the log end, after a broker refused the oldest unresolved batch as out of order?

Either that batch was appended and has left the broker's memory (after a restart it knows one batch only), or acknowledged
records were lost. The newest batch is tried first, then the one before it: the first success tells that everything up to it
is in the log. Only on a connection that refused the oldest first does this prove anything (PRB-6); a lost answer therefore
begins with the oldest again.
"""

from collections.abc import Sequence
from enum import Enum, auto

from ...producer.core.cuts import Batch
from .modes import Here


class Step(Enum):
    """What a refusal leads to."""

    TRY_NEXT = auto()
    ALL_REFUSED = auto()


class Probe:
    """One pass over the unresolved batches of a partition, newest to oldest."""

    def __init__(self, unresolved: Sequence[Batch], here: Here) -> None:
        assert unresolved, "nothing to probe"
        self._unresolved = tuple(unresolved)
        self._here = here
        self._at = len(self._unresolved) - 1
        self._oldest_first = False
        self.refusals = 0

    def target(self, here: Here) -> Batch:
        """What to send on this connection and leader epoch."""
        if here != self._here:
            self.start_again(here)
        return self._unresolved[0] if self._oldest_first else self._unresolved[self._at]

    def start_again(self, here: Here) -> None:
        """An answer was lost, or told nothing: the oldest goes first, and the pass follows if it is refused."""
        self._here = here
        self._oldest_first = True

    def refused(self, batch: Batch) -> Step:
        """The batch was refused as out of order."""
        self.refusals += 1
        if self._oldest_first:
            assert batch is self._unresolved[0]
            self._oldest_first = False
            self._at = len(self._unresolved) - 1
            return Step.TRY_NEXT
        assert batch is self._unresolved[self._at]
        if self._at == 0:
            return Step.ALL_REFUSED
        self._at -= 1
        return Step.TRY_NEXT
