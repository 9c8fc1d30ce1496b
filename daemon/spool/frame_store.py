"""Adapts `Spool` to the interface of the cores: disk errors become `SpoolBrokenError`."""

from collections.abc import Sequence
from typing import NamedTuple

from ..ledger.entries import ControlEntry, FrameEntry, Lsn
from ..ledger.slices import FrameLocation
from .directory import SpoolError
from .log import Spool


class SpoolBrokenError(Exception):
    """The log cannot be written any more. Nothing unwritten was acked; the process exits."""


class SpoolFrameStore(NamedTuple):
    """The cores' log and frame store."""

    spool: Spool

    def append(self, entry: ControlEntry) -> Lsn:
        """Append one entry and return its LSN.

        Raises:
            SpoolBrokenError: there is no space even for control entries.
        """
        try:
            return self.spool.append(entry)
        except OSError as error:
            raise SpoolBrokenError(f"no entry can be added: {error}") from error

    def has_room(self, nbytes: int) -> bool:
        """Whether a frame of `nbytes` would be accepted now."""
        return self.spool.has_room(nbytes)

    def write(self) -> None:
        """Write everything staged to the segment files, without syncing them.

        Raises:
            SpoolBrokenError: the write failed.
        """
        try:
            self.spool.write()
        except (OSError, SpoolError) as error:
            raise SpoolBrokenError(f"a segment cannot be written: {error}") from error

    def finish_sync(self) -> Lsn:
        """Block until the running sync has finished. Returns the LSN before which everything is on disk.

        Raises:
            SpoolBrokenError: syncs keep failing.
        """
        try:
            return self.spool.finish_sync()
        except (OSError, SpoolError) as error:
            raise SpoolBrokenError(f"segments cannot be synced: {error}") from error

    def remove_unneeded(self) -> None:
        """Remove the segments that are no longer needed.

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
