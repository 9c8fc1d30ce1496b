"""The spool as intake sees it: its outcomes under the names that cores know."""

from collections.abc import Sequence
from typing import NamedTuple

from .core.entries import ControlEntry, FrameEntry, Lsn
from .core.model import FramePlace
from .spool import Spool


class FrameStore(NamedTuple):
    """Log and frame store of the cores."""

    spool: Spool

    def append(self, entry: ControlEntry) -> Lsn:
        return self.spool.append(entry)

    def append_frame(self, entry: FrameEntry, payloads: Sequence[bytearray], *, created_ms: int) -> FramePlace:
        """Stage one frame.

        Raises:
            NoSpaceError: the disk is full.
            SpoolFullError: the spool is at its limit.
        """
        return self.spool.append_frame(entry, payloads, created_ms=created_ms)
