"""Finds the end of a partition's log when the bounds of its last batches are lost (LOC-1).

After a power cut, the ordinals from the mark up to some k, at most `through`, may be in the log. Under their old stamps
any batch is safe to try while the broker has our producer state: it accepts a batch that starts at k + 1, recognises
its last one as a duplicate, and refuses everything else. The trials are single records in order, one past `through` if
that record exists, and finally every batch that ends at `through`.
"""

from collections.abc import Collection
from typing import Final

from ...wire.messages import BatchBounds

TRIALS_MAX: Final = 50_000
"""Each refused trial is a line in the broker's log: beyond this limit an operator decides (LOC-7)."""


class LogEndSearch:
    """The trials of one partition, in order: from `first` on, ending at `through`.

    `left_out` are ordinals that are never sent. `floor`: a batch that ends at `through` starts there or later, because
    of a stamp row, a hole, or the batch size limit.
    """

    def __init__(self, first: int, through: int, epoch: int, *, floor: int = 0, left_out: Collection[int] = ()) -> None:
        self.through: Final = through
        self._epoch: Final = epoch
        self._left_out: Final = left_out
        self._floor: Final = max(first, floor)
        self._closing = False
        self._at = self._behind(first)
        self.trials = 0

    @property
    def trial(self) -> BatchBounds:
        """The batch to send now."""
        count = self.through + 1 - self._at if self._closing else 1
        return BatchBounds(self._at, count, self._epoch)

    def next_trial(self, next_ordinal: int) -> bool:
        """The trial was out of order. Returns False when no trial is left; `next_ordinal`: records exist below it."""
        self.trials += 1
        if self.trials >= TRIALS_MAX:
            return False
        if not self._closing:
            self._at = self._behind(self._at + 1)
            if self._at <= min(self.through + 1, next_ordinal - 1):
                return True
            # The single record at `through` has already been tried.
            self._closing = True
            self._at = self.through
        self._at -= 1
        return self._at >= self._floor and self.through not in self._left_out

    def _behind(self, ordinal: int) -> int:
        """The first ordinal from this one on that may be sent."""
        while ordinal in self._left_out:
            ordinal += 1
        return ordinal
