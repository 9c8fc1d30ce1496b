"""Allocates segment files, keeps a spare file for a full disk, and writes buffers with retries after short writes."""

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
    """Allocates segment files in one directory. The spare is for control entries only: a new file for frames is created
    only while the spare exists (`admit_frames`)."""

    def __init__(self, directory: Path, segment_bytes: int, disk: Disk) -> None:
        self._directory = directory
        self._spare = directory / SPARE_NAME
        self._segment_bytes = segment_bytes
        self._disk = disk
        self._full_since: float | None = None
        self._spare_exists = self._spare.exists()

    @property
    def has_spare(self) -> bool:
        """Whether the spare file exists, so that control entries are sure to find space."""
        return self._spare_exists

    def free_bytes(self) -> int:
        """Return the free bytes of the file system."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def ensure_spare(self) -> None:
        """Create the spare if it is missing and the disk has space. Retries at most every 0.25 s."""
        if not self._spare_exists and self._may_retry():
            try:
                os.close(create(self._spare, self._segment_bytes, self._disk))
                self._spare_exists = True
            except OSError as error:
                self._note_full(error)

    def space_freed(self) -> None:
        """Allow an immediate retry, because a file was removed."""
        self._full_since = None

    def admit_frames(self) -> None:
        """Check that a file for frames may be created. Call it before any other work for that file.

        Raises:
            NoSpaceError: the disk was full within the last 0.25 s, or the spare does not exist.
        """
        self.ensure_spare()
        if not self.has_spare or not self._may_retry():
            raise NoSpaceError("the disk is full")

    def allocate(self, number: int, nbytes: int, least: int, *, for_frames: bool) -> tuple[int, int]:
        """Create a segment file of `nbytes`, and return its descriptor and size. If the disk is full and the file is
        not for frames, the spare is used, with at least `least` bytes, or without a spare a new file of `least` bytes.

        Raises:
            NoSpaceError: the disk is full, and the file was for frames.
            OSError: there is no space for control entries either, or the disk fails.
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
    """Write all buffers and return their number of bytes. After a short write, everything is written again from the
    start, so that a wrong count from the kernel does no harm.

    Raises:
        OSError: the write failed, or was short eight times.
    """
    nbytes = sum(len(buffer) for buffer in buffers)
    for _ in range(_WRITE_TRIES_MAX):
        if disk.write(fd, buffers, offset) == nbytes:
            return nbytes
    raise OSError(errno.EIO, f"the disk takes less than the {nbytes} bytes it is given")
