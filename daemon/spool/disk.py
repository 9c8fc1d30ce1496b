"""The calls by which the spool reaches the disk: the seam at which tests fill it, break it and cut its power."""

import os
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview


class Disk:
    """What the kernel does. Every method raises OSError."""

    def allocate(self, fd: int, nbytes: int) -> None:
        """Give a file its blocks, so that writes into it cannot find the disk full."""
        os.posix_fallocate(fd, 0, nbytes)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Bytes taken, which may be fewer than given."""
        return os.pwritev(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        """The data of a file, and its size, are on disk when this returns."""
        os.fdatasync(fd)

    def sync_directory(self, fd: int) -> None:
        """The names in a directory are on disk when this returns."""
        os.fsync(fd)
