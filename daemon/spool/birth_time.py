"""Creation time of a file or directory, which distinguishes it from a later one with the same inode number.

File systems reuse the inode numbers of deleted files, so a directory that was deleted and copied back may have the same
number as before. Linux reports the creation time by statx(2), which Python does not provide.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final, cast

_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_MASK_AT: Final = 0
_BORN_AT: Final = 80
"""Offset of the birth time: seconds as signed 64 bits, then nanoseconds in 32 bits."""
_Statx = Callable[[int, bytes, int, int, "ctypes.Array[ctypes.c_char]"], int]


def _libc_statx() -> _Statx | None:
    """Return the C library's statx, or None if it has none."""
    try:
        return cast("_Statx", ctypes.CDLL(None, use_errno=True).statx)
    except (OSError, AttributeError):
        return None


_statx: Final = _libc_statx()


def birth_time_ns(descriptor: int) -> int | None:
    """Return the creation time in ns since 1970; None if the file system or the kernel does not report it. Raises
    OSError if the descriptor is not open."""
    if _statx is None:
        return None
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, found) != 0:
        # Kernels without the call, and sandboxes that forbid it, must not prevent a daemon from starting.
        _ = os.fstat(descriptor)
        return None
    if not _number(found, _MASK_AT, 4) & _STATX_BTIME:
        return None
    return _number(found, _BORN_AT, 8) * 1_000_000_000 + _number(found, _BORN_AT + 8, 4)


def _number(found: "ctypes.Array[ctypes.c_char]", at: int, size: int) -> int:
    return int.from_bytes(found.raw[at : at + size], sys.byteorder, signed=True)
