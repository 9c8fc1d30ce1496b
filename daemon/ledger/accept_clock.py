"""The clock that assigns records to minutes. It ignores small backward steps of the wall clock."""

from typing import Final

STEP_MS_MAX: Final = 3_600_000
"""The accept clock pauses if the wall clock is set back by no more than this; it follows a larger step."""


class AcceptClock:
    """Derives accept times from wall times; all in milliseconds since 1970.

    A minute that is over must stay over, so that its published counts can be final. The clock therefore pauses while
    the wall clock is behind by at most one hour. A pause of days would put all records into one minute, so the clock
    follows a larger step, increments `steps_back`, and minutes that were over occur again (RID-5).
    """

    def __init__(self, last_ms: int = 0, steps_back: int = 0) -> None:
        """`last_ms`, `steps_back`: the last accept time and the number of steps back, restored from the ledger."""
        self.last_ms = last_ms
        self.steps_back = steps_back

    def read(self, wall_ms: int) -> int:
        """Return the accept time for the wall time `wall_ms`."""
        if wall_ms >= self.last_ms:
            self.last_ms = wall_ms
        elif self.last_ms - wall_ms > STEP_MS_MAX:
            self.last_ms = wall_ms
            self.steps_back += 1
        return self.last_ms
