"""The spool as intake sees it: its outcomes under the names that cores know."""

from collections.abc import Sequence
from typing import NamedTuple

from ..ledger.entries import ControlEntry, FrameEntry, Lsn
from ..ledger.slices import FrameLocation
from .directory import SpoolError
from .log import Spool


class SpoolBrokenError(Exception):
    """The log can be written no further. Nothing that was not written was answered; the process ends."""


class SpoolFrameStore(NamedTuple):
    """Log and frame store of the cores."""

    spool: Spool

    def append(self, entry: ControlEntry) -> Lsn:
        """Place one entry.

        Raises:
            SpoolBrokenError: there is no room even for facts.
        """
        try:
            return self.spool.append(entry)
        except OSError as error:
            raise SpoolBrokenError(f"no entry can be added: {error}") from error

    def has_room(self, nbytes: int) -> bool:
        """Whether a frame of so many bytes would be taken now."""
        return self.spool.has_room(nbytes)

    def write(self) -> None:
        """Hand everything staged to the kernel.

        Raises:
            SpoolBrokenError: the disk refuses.
        """
        try:
            self.spool.write()
        except (OSError, SpoolError) as error:
            raise SpoolBrokenError(f"a segment cannot be written: {error}") from error

    def finish_sync(self) -> Lsn:
        """The place before which everything is on disk now.

        Raises:
            SpoolBrokenError: syncs keep failing.
        """
        try:
            return self.spool.finish_sync()
        except (OSError, SpoolError) as error:
            raise SpoolBrokenError(f"segments cannot be synced: {error}") from error

    def remove_unneeded(self) -> None:
        """Remove the segments that nothing needs any more.

        Raises:
            SpoolBrokenError: the directory cannot be changed.
        """
        try:
            _ = self.spool.remove_unneeded()
        except OSError as error:
            raise SpoolBrokenError(f"the spool cannot be cleaned: {error}") from error

    def append_frame(self, entry: FrameEntry, payloads: Sequence[bytearray], *, created_ms: int) -> FrameLocation:
        """Stage one frame.

        Raises:
            NoSpaceError: the disk is full.
            SpoolFullError: the spool is at its limit.
            SpoolBrokenError: the disk fails.
        """
        try:
            return self.spool.append_frame(entry, payloads, created_ms=created_ms)
        except OSError as error:
            raise SpoolBrokenError(f"no segment can be begun: {error}") from error
