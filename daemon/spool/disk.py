"""The spool's disk operations. Tests replace this class to simulate full disks, I/O errors and power cuts."""

import os
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview


class Disk:
    """Disk operations of the kernel. Every method raises OSError on failure."""

    def allocate(self, fd: int, nbytes: int) -> None:
        """Allocate the blocks of a file, so that writes into it cannot fail on a full disk."""
        os.posix_fallocate(fd, 0, nbytes)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers at `offset`, and return the number of bytes written, which may be fewer than given."""
        return os.pwritev(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        """Sync a file: its data and size are on disk when this returns."""
        os.fdatasync(fd)

    def sync_directory(self, fd: int) -> None:
        """Sync a directory: its file names are on disk when this returns."""
        os.fsync(fd)
