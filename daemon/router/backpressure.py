"""When frames that found no room in the spool are worth offering again; removes the segments that nothing needs any more."""

from typing import Final

from ..sessions.intake import Intake
from ..spool.frame_store import FrameStore

SLICES_MAX: Final = 1_000_000
SLICES_AGAIN: Final = 900_000
"""Slices that are not at their end, each of which costs memory, which small frames fill long before the spool. At the first
number frames wait as for a full spool, until the second is reached."""
_LOOK_EVERY_S: Final = 0.1


class Room:
    """Owner of `intake.full`, but for the moment at which the spool says no."""

    def __init__(self, store: FrameStore, intake: Intake) -> None:
        self._store = store
        self._intake = intake
        self._freed = False
        self._crowded = False
        self._look_at = 0.0

    def freed(self) -> None:
        """A sync has ended, or segments are gone."""
        self._freed = True

    def is_there(self, now: float) -> bool:
        """Whether held frames may fit now."""
        found = self._freed or now >= self._look_at
        self._freed = False
        if found:
            self._intake.full = self._crowded
        return found

    def look(self, now: float) -> None:
        """Every now and then: clean the spool, and count what waits.

        Raises:
            SpoolBrokenError: the spool's directory cannot be changed.
        """
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        self._store.clean()
        pending = self._store.spool.segments.pending
        self._crowded = pending > (SLICES_AGAIN if self._crowded else SLICES_MAX)
        self._intake.full = self._intake.full or self._crowded

    def next_deadline(self) -> float | None:
        return self._look_at if self._intake.held or self._crowded else None
