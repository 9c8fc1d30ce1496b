"""The backward probe: where does the log end, after a broker refused the oldest unresolved batch as out of order?

Either that batch was appended and has left the broker's memory (after a restart it knows one batch only), or acknowledged
records were lost. The newest batch is tried first, then the one before it: the first success tells that everything up to it
is in the log. Only on a connection that refused the oldest first does this prove anything (PRB-6); a lost answer therefore
begins with the oldest again.
"""

from collections.abc import Sequence
from enum import Enum, auto

from ..accumulator.batch import Batch
from .modes import Here


class Step(Enum):
    """What a refusal leads to."""

    TRY_NEXT = auto()
    ONE_MORE = auto()
    """The newest batch was refused for its content and may be in the log: the batch behind it, cut for this, tells."""
    ALL_REFUSED = auto()
    UNSETTLED = auto()
    """Two neighbours, or the oldest, were refused for their content: no trial can tell whether the log ends with them."""


class Probe:
    """One pass over the unresolved batches of a partition, newest to oldest."""

    def __init__(self, unresolved: Sequence[Batch], here: Here, *, content: bool = False) -> None:
        """`content`: the oldest was refused for its content although it may be in the log. What lies behind it tells: the batch
        right behind is taken exactly if the log ends with it (ERR-2)."""
        assert unresolved, "nothing to probe"
        self.content = content
        self._unresolved = list(unresolved)
        self._here = here
        self._begin(oldest_first=False)

    def _begin(self, *, oldest_first: bool) -> None:
        self._oldest_first = oldest_first
        self._at = len(self._unresolved) - 1
        self._passed_over = False
        self._wants_more = self.content and len(self._unresolved) == 1
        self._last: Batch | None = None

    def target(self, here: Here) -> Batch | None:
        """What to send on this connection and leader epoch; None: a batch that is yet to be cut, see `one_more`."""
        if here != self._here:
            self.start_again(here)
        return self._trial

    @property
    def _trial(self) -> Batch | None:
        if self._oldest_first:
            return self._unresolved[0]
        return self._last if self._at < self.content else self._unresolved[self._at]

    def tries(self, batch: Batch) -> bool:
        """It is this batch's turn. A refusal of another one, which was on its way when the pass began, tells nothing."""
        return batch is self._trial

    def one_more(self, batch: Batch) -> None:
        """The batch behind all others was cut: its trial ends the pass."""
        assert self._at < self.content
        self._last = batch
        self._unresolved.append(batch)

    def start_again(self, here: Here) -> None:
        """An answer was lost, or told nothing: the oldest goes first, and the pass follows if it is refused."""
        self._here = here
        self._begin(oldest_first=True)

    def refused(self, batch: Batch, *, unclear: bool = False) -> Step:
        """The batch was refused as out of order, or (`unclear`) for its content although it may be in the log (PRB-5)."""
        if self._oldest_first:
            assert batch is self._unresolved[0]
            if unclear and not self.content:
                return Step.UNSETTLED
            self.content = unclear
            self._begin(oldest_first=False)
            return Step.TRY_NEXT
        if batch is self._last:
            return Step.UNSETTLED if unclear else Step.ALL_REFUSED
        assert batch is self._unresolved[self._at]
        if unclear and (self._passed_over or (self.content and self._at == 1)):
            return Step.UNSETTLED
        self._passed_over = unclear
        # A batch with others behind it: had the log ended with it, the one behind it would have been taken.
        self._wants_more = self._wants_more or (unclear and self._at == len(self._unresolved) - 1)
        self._at -= 1
        if self._at >= self.content:
            return Step.TRY_NEXT
        return Step.ONE_MORE if self._wants_more else Step.ALL_REFUSED
