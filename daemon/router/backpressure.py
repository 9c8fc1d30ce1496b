"""Decides when to retry frames that did not fit into the spool, and removes unneeded segments."""

from typing import Final

from ..sessions.intake import FrameIntake
from ..spool.frame_store import SpoolFrameStore

SLICES_MAX: Final = 1_000_000
SLICES_AGAIN: Final = 900_000
"""Limits of unresolved slices. Each costs memory, which small frames fill long before the spool. At the first number
frames wait as for a full spool, until the second is reached."""
_LOOK_EVERY_S: Final = 0.1


class SpoolBackpressure:
    """Owner of `intake.spool_full`; only intake itself sets it too, when the spool refuses a frame."""

    def __init__(self, store: SpoolFrameStore, intake: FrameIntake) -> None:
        self._store = store
        self._intake = intake
        self._space_freed = False
        self._too_many_slices = False
        self._look_at = 0.0

    def space_freed(self) -> None:
        """A sync ended, or segments were removed."""
        self._space_freed = True

    def may_have_space(self, now: float) -> bool:
        """Whether held frames may fit now."""
        found = self._space_freed or now >= self._look_at
        self._space_freed = False
        if found:
            self._intake.spool_full = self._too_many_slices
        return found

    def check(self, now: float) -> None:
        """Clean the spool and check the slice limits, at most every 0.1 s.

        Raises:
            SpoolBrokenError: the spool's directory cannot be changed.
        """
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        self._store.remove_unneeded()
        pending = self._store.spool.segments.pending
        self._too_many_slices = pending > (SLICES_AGAIN if self._too_many_slices else SLICES_MAX)
        self._intake.spool_full = self._intake.spool_full or self._too_many_slices

    def next_deadline(self) -> float | None:
        return self._look_at if self._intake.held or self._too_many_slices else None
