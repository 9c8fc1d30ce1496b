"""The backward probe: finds the end of the log after a broker refused the oldest unresolved batch as out of order.

Either that batch was appended and the broker has forgotten it (after a restart it knows one batch only), or
acknowledged records were lost. The probe tries the newest batch first, then the one before it, and so on. The first
success proves that everything up to it is in the log, but only on a connection that has refused the oldest batch
(PRB-6). After a lost response the probe therefore starts with the oldest batch again.
"""

from collections.abc import Sequence
from enum import Enum, auto

from ..accumulator.batch import ProducerBatch
from .modes import LeaderConnection


class ProbeStep(Enum):
    """What to do after a refused trial."""

    TRY_NEXT = auto()
    CUT_ANOTHER = auto()
    """The newest batch was refused for its content and may be in the log: cut and try one more batch behind it."""
    ALL_REFUSED = auto()
    INCONCLUSIVE = auto()
    """Two neighbours, or the oldest, were refused for their content: no trial can show if the log ends with them."""


class LogEndProbe:
    """One pass over the unresolved batches of a partition, newest to oldest."""

    def __init__(self, unresolved: Sequence[ProducerBatch], here: LeaderConnection, *, content: bool = False) -> None:
        """`content`: the oldest batch was refused for its content although it may be in the log. The batch right behind
        it is accepted exactly if the log ends with the oldest (ERR-2)."""
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
        """The batch to send on this connection and leader epoch; None: cut a new one and pass it to `one_more`."""
        if here != self._connection:
            self.start_again(here)
        return self._trial

    @property
    def _trial(self) -> ProducerBatch | None:
        if self._oldest_first:
            return self._unresolved[0]
        return self._last if self._at < self.content_refused else self._unresolved[self._at]

    def is_target(self, batch: ProducerBatch) -> bool:
        """Whether this batch is the current trial; the refusal of another, in flight since earlier, proves nothing."""
        return batch is self._trial

    def one_more(self, batch: ProducerBatch) -> None:
        """Add a newly cut batch behind all others; its trial ends the pass."""
        assert self._at < self.content_refused
        self._last = batch
        self._unresolved.append(batch)

    def start_again(self, here: LeaderConnection) -> None:
        """Start again with the oldest batch, after a response was lost or proved nothing. If it is refused, the pass
        follows."""
        self._connection = here
        self._begin(oldest_first=True)

    def refused(self, batch: ProducerBatch, *, unclear: bool = False) -> ProbeStep:
        """Apply a refusal as out of order, or (`unclear`) for the content of a batch that may be in the log (PRB-5)."""
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
        # If the log ended with a batch that has others behind it, the next one would have been accepted.
        self._wants_more = self._wants_more or (unclear and self._at == len(self._unresolved) - 1)
        self._at -= 1
        if self._at >= self.content_refused:
            return ProbeStep.TRY_NEXT
        return ProbeStep.CUT_ANOTHER if self._wants_more else ProbeStep.ALL_REFUSED
