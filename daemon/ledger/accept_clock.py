"""The clock by which records are counted into minutes: it does not go back for a little."""

from typing import Final

STEP_MS_MAX: Final = 3_600_000
"""A wall clock that is set back by no more than this is waited for; beyond, it is followed."""


class AcceptClock:
    """Made of wall times as they are read; all in milliseconds since 1970.

    A minute that is over stays over, so what is told of it can be final: the clock stands still while the wall clock is behind
    by an hour at most. Standing still for days would put all records into one minute, so a larger step is followed, and
    `steps_back` counts one: minutes that were over come again (RID-5).
    """

    def __init__(self, last_ms: int = 0, steps_back: int = 0) -> None:
        """`last_ms`: what it said last, in an earlier life."""
        self.last_ms = last_ms
        self.steps_back = steps_back

    def read(self, wall_ms: int) -> int:
        """The accept time where the wall clock says `wall_ms`."""
        if wall_ms >= self.last_ms:
            self.last_ms = wall_ms
        elif self.last_ms - wall_ms > STEP_MS_MAX:
            self.last_ms = wall_ms
            self.steps_back += 1
        return self.last_ms
