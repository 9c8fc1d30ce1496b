"""The backward probe: where does the log end, after a broker refused the oldest unresolved batch as out of order?

Either that batch was appended and has left the broker's memory (after a restart it knows one batch only), or acknowledged
records were lost. The newest batch is tried first, then the one before it: the first success tells that everything up to it
is in the log. Only on a connection that refused the oldest first does this prove anything (PRB-6); a lost answer therefore
begins with the oldest again.
"""

from collections.abc import Sequence
from enum import Enum, auto

from ..accumulator.batch import ProducerBatch
from .modes import LeaderConnection


class ProbeStep(Enum):
    """What a refusal leads to."""

    TRY_NEXT = auto()
    CUT_ANOTHER = auto()
    """The newest batch was refused for its content and may be in the log: the batch behind it, cut for this, tells."""
    ALL_REFUSED = auto()
    INCONCLUSIVE = auto()
    """Two neighbours, or the oldest, were refused for their content: no trial can tell whether the log ends with them."""


class LogEndProbe:
    """One pass over the unresolved batches of a partition, newest to oldest."""

    def __init__(self, unresolved: Sequence[ProducerBatch], here: LeaderConnection, *, content: bool = False) -> None:
        """`content_refused`: the oldest was refused for its content although it may be in the log. What lies behind it tells: the batch
        right behind is taken exactly if the log ends with it (ERR-2)."""
        assert unresolved, "nothing to probe"
        self.content_refused = content
        self._unresolved = list(unresolved)
        self._connection = here
        self._begin(oldest_first=False)

    def _begin(self, *, oldest_first: bool) -> None:
        self._oldest_first = oldest_first
        self._at = len(self._unresolved) - 1
        self._passed_over = False
        self._wants_more = self.content_refused and len(self._unresolved) == 1
        self._last: ProducerBatch | None = None

    def target(self, here: LeaderConnection) -> ProducerBatch | None:
        """What to send on this connection and leader epoch; None: a batch that is yet to be cut, see `one_more`."""
        if here != self._connection:
            self.start_again(here)
        return self._trial

    @property
    def _trial(self) -> ProducerBatch | None:
        if self._oldest_first:
            return self._unresolved[0]
        return self._last if self._at < self.content_refused else self._unresolved[self._at]

    def is_target(self, batch: ProducerBatch) -> bool:
        """It is this batch's turn. A refusal of another one, which was on its way when the pass began, tells nothing."""
        return batch is self._trial

    def one_more(self, batch: ProducerBatch) -> None:
        """The batch behind all others was cut: its trial ends the pass."""
        assert self._at < self.content_refused
        self._last = batch
        self._unresolved.append(batch)

    def start_again(self, here: LeaderConnection) -> None:
        """An answer was lost, or told nothing: the oldest goes first, and the pass follows if it is refused."""
        self._connection = here
        self._begin(oldest_first=True)

    def refused(self, batch: ProducerBatch, *, unclear: bool = False) -> ProbeStep:
        """The batch was refused as out of order, or (`unclear`) for its content although it may be in the log (PRB-5)."""
        if self._oldest_first:
            assert batch is self._unresolved[0]
            if unclear and not self.content_refused:
                return ProbeStep.INCONCLUSIVE
            self.content_refused = unclear
            self._begin(oldest_first=False)
            return ProbeStep.TRY_NEXT
        if batch is self._last:
            return ProbeStep.INCONCLUSIVE if unclear else ProbeStep.ALL_REFUSED
        assert batch is self._unresolved[self._at]
        if unclear and (self._passed_over or (self.content_refused and self._at == 1)):
            return ProbeStep.INCONCLUSIVE
        self._passed_over = unclear
        # A batch with others behind it: had the log ended with it, the one behind it would have been taken.
        self._wants_more = self._wants_more or (unclear and self._at == len(self._unresolved) - 1)
        self._at -= 1
        if self._at >= self.content_refused:
            return ProbeStep.TRY_NEXT
        return ProbeStep.CUT_ANOTHER if self._wants_more else ProbeStep.ALL_REFUSED
