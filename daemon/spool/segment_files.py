"""Creates, lists, reads, truncates and quarantines segment files. `daemon/ledger/segment_scan.py` has their layout."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...wire.slices import segment_name
from .disk import Disk

SUFFIX: Final = ".seg"
SPARE_NAME: Final = "spare"
QUARANTINE_NAME: Final = "quarantine"
SEGMENT_BYTES_MAX: Final = 2 << 30
_BLOCK_BYTES: Final = 4096


def segment_path(directory: Path, number: int) -> Path:
    return directory / segment_name(number)


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of all files named like segments, ascending."""
    numbers: list[int] = []
    for name in os.listdir(directory):  # noqa: PTH208 - names only
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
        if suffix == SUFFIX and len(stem) == 16:
            with contextlib.suppress(ValueError):
                numbers.append(int(stem, 16))
    return sorted(numbers)


def is_segment_file(path: Path) -> bool:
    """Whether a path is a regular file of at most `SEGMENT_BYTES_MAX`: not a link, a pipe, or a huge sparse file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= SEGMENT_BYTES_MAX


def create(path: Path, nbytes: int, disk: Disk) -> int:
    """Create a file with all its blocks allocated, and return its descriptor. On an error the file is removed.

    Raises:
        OSError: the file exists or cannot be allocated (ENOSPC, EDQUOT, …).
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        disk.allocate(fd, nbytes)
    except OSError:
        os.close(fd)
        path.unlink()
        raise
    return fd


def read_whole(path: Path) -> bytearray:
    """Return all bytes of a file. Blocks that the disk cannot read are returned as zeros, which recovery finds damaged.

    Raises:
        OSError: the file cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        data = bytearray(os.fstat(fd).st_size)
        with memoryview(data) as view:
            for position, end in _data_ranges(fd, len(data)):
                _read_into(fd, view[:end], position)
        return data
    finally:
        os.close(fd)


def _data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that contain data. The rest, most of a new segment, is zeros and need not be read."""
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                yield position, size
            return
        yield start, min(end, size)
        position = end


def _read_into(fd: int, view: memoryview, position: int) -> None:
    """Read from `position` to the end of the view or of the file."""
    while position < len(view):
        try:
            taken = os.preadv(fd, [view[position:]], position)
        except OSError:
            taken = _read_blocks(fd, view, position)
        if taken == 0:
            return
        position += taken


def read_range(path: Path, offset: int, length: int) -> bytes:
    """Return `length` bytes of a file.

    Raises:
        OSError: the file cannot be read, or ends before the range does.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(fd, length, offset)
            if not part:
                raise OSError(f"{path} ends before {offset + length}")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def truncate(path: Path, nbytes: int, disk: Disk) -> None:
    """Truncate a file and sync it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(fd, nbytes)
        disk.sync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path, disk: Disk) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        disk.sync(fd)
    finally:
        os.close(fd)


class Quarantine:
    """Keeps damaged bytes for inspection. Copies are limited to `bytes_max`; beyond it, damage is only counted."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory / QUARANTINE_NAME
        self._bytes_max = bytes_max

    def copy(self, segment: int, start: int, data: bytes | bytearray | memoryview) -> bool:
        """Store a copy of damaged bytes, once. False: not stored, because the limit is reached or the write failed."""
        path = self._directory / f"{segment:016x}-{start:08x}.bytes"
        if path.exists():
            return True
        if self._used() + len(data) > self._bytes_max:
            return False
        self._directory.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            return False
        return True

    def move_file(self, path: Path) -> Path:
        """Move a whole file into quarantine, and return its new path. Its segment number is not used again."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        target = self._directory / path.name
        attempt = 0
        while target.exists():
            attempt += 1
            target = self._directory / f"{path.name}.{attempt}"
        return path.rename(target)

    def numbers(self) -> list[int]:
        """Return the segment numbers of files in quarantine."""
        return segment_numbers(self._directory) if self._directory.is_dir() else []

    def _used(self) -> int:
        if not self._directory.is_dir():
            return 0
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(self._directory))


def _read_blocks(fd: int, view: memoryview, position: int) -> int:
    """Read up to the end of the current block. An unreadable block stays zero and counts as read."""
    end = min(len(view), (position // _BLOCK_BYTES + 1) * _BLOCK_BYTES)
    try:
        return os.preadv(fd, [view[position:end]], position)
    except OSError:
        return end - position
