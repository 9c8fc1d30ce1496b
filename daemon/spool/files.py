"""Makes segment files, keeps the spare for a full disk, and writes without trusting a short answer."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...runtime.clock import monotonic
from ..ledger.slices import NoSpaceError
from .disk import Buffer, Disk
from .segment_files import SPARE_NAME, create, segment_path

_RETRY_S: Final = 0.25
_WRITE_TRIES_MAX: Final = 8


class SegmentAllocator:
    """New segment files of one directory. The spare is for facts only: a frame gets a file only while a spare stands ready (`admit_frames`)."""

    def __init__(self, directory: Path, segment_bytes: int, disk: Disk) -> None:
        self._directory = directory
        self._spare = directory / SPARE_NAME
        self._segment_bytes = segment_bytes
        self._disk = disk
        self._full_since: float | None = None
        self._spare_exists = self._spare.exists()

    @property
    def has_spare(self) -> bool:
        """Facts are sure to find room."""
        return self._spare_exists

    def free_bytes(self) -> int:
        """What the file system could still give."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def ensure_spare(self) -> None:
        """Make the spare if it is missing and the disk has room."""
        if not self._spare_exists and self._may_retry():
            try:
                os.close(create(self._spare, self._segment_bytes, self._disk))
                self._spare_exists = True
            except OSError as error:
                self._note_full(error)

    def space_freed(self) -> None:
        """A file was removed: ask again at once."""
        self._full_since = None

    def admit_frames(self) -> None:
        """To be asked before a file for frames is made, and before anything is prepared for it: the disk may just have been full.

        Raises:
            NoSpaceError: it was, or there is no spare.
        """
        self.ensure_spare()
        if not self.has_spare or not self._may_retry():
            raise NoSpaceError("the disk is full")

    def allocate(self, number: int, nbytes: int, least: int, *, for_frames: bool) -> tuple[int, int]:
        """A file for a segment: its descriptor and size. `nbytes` is what it should have; for facts, where the disk is full
        and the spare is gone, `least` will do.

        Raises:
            NoSpaceError: the disk is full, and the file was for frames.
            OSError: there is no room for facts either, or the disk fails.
        """
        path = segment_path(self._directory, number)
        try:
            return create(path, nbytes, self._disk), nbytes
        except OSError as error:
            self._note_full(error)
            if for_frames:
                raise NoSpaceError("the disk is full") from error
            return self._use_spare(path, least) if self.has_spare else (create(path, least, self._disk), least)

    def _use_spare(self, path: Path, nbytes: int) -> tuple[int, int]:
        self._spare.rename(path)
        self._spare_exists = False
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        size = os.fstat(fd).st_size
        if size < nbytes:
            try:
                self._disk.allocate(fd, nbytes)
            except OSError:
                os.close(fd)
                raise
            size = nbytes
        return fd, size

    def _may_retry(self) -> bool:
        return self._full_since is None or monotonic() >= self._full_since + _RETRY_S

    def _note_full(self, error: OSError) -> None:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise error
        self._full_since = monotonic()


def write_all(disk: Disk, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all of it; the number of bytes. After a short answer everything is written again from the start: an answer that
    claims more than was taken then does no harm.

    Raises:
        OSError: the disk refuses.
    """
    nbytes = sum(len(buffer) for buffer in buffers)
    for _ in range(_WRITE_TRIES_MAX):
        if disk.write(fd, buffers, offset) == nbytes:
            return nbytes
    raise OSError(errno.EIO, f"the disk takes less than the {nbytes} bytes it is given")
