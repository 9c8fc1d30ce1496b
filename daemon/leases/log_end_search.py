"""Where does a partition's log end, when nobody remembers how its last records were cut (LOC-1)?

After a power cut ordinals from the mark to `through` may be in the log, up to some k. Under their old stamps any batch is safe to
try while the broker has our state: it takes a batch that begins at k + 1, recognises its last one, and refuses everything else.
So one record is tried after the other, one further than `through` if there is one, and at last every batch that ends at `through`.
"""

from collections.abc import Collection
from typing import Final

from ...wire.messages import BatchBounds

TRIALS_MAX: Final = 50_000
"""Each refused trial is a line in the broker's log: beyond this people decide (LOC-7)."""


class LogEndSearch:
    """The trials of one partition, in order: from `first` on, ending at `through`.

    `left_out` are ordinals that are never sent. `floor`: a batch that ends at `through` begins there or later, because of a row,
    a hole, or the size of batches.
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
        """What to send now."""
        count = self.through + 1 - self._at if self._closing else 1
        return BatchBounds(self._at, count, self._epoch)

    def next_trial(self, next_ordinal: int) -> bool:
        """The trial was out of order. Returns False when there is none left to try; `next_ordinal`: records exist below."""
        self.trials += 1
        if self.trials >= TRIALS_MAX:
            return False
        if not self._closing:
            self._at = self._behind(self._at + 1)
            if self._at <= min(self.through + 1, next_ordinal - 1):
                return True
            # The single record at `through` was tried on the way.
            self._closing = True
            self._at = self.through
        self._at -= 1
        return self._at >= self._floor and self.through not in self._left_out

    def _behind(self, ordinal: int) -> int:
        """The first ordinal from this one on that may be sent."""
        while ordinal in self._left_out:
            ordinal += 1
        return ordinal
