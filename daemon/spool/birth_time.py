"""When a file or directory was made: what tells it from another one that has its inode number now.

File systems give the numbers of what was deleted to what is made next, so a directory that was deleted and copied back may have the
number of the one before. Linux tells the time of birth by statx(2), which Python does not have.
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
"""Of the birth time: seconds in 64 bits with a sign, behind them nanoseconds in 32."""
_Statx = Callable[[int, bytes, int, int, "ctypes.Array[ctypes.c_char]"], int]


def _libc_statx() -> _Statx | None:
    """None: this C library has none."""
    try:
        return cast("_Statx", ctypes.CDLL(None, use_errno=True).statx)
    except (OSError, AttributeError):
        return None


_statx: Final = _libc_statx()


def birth_time_ns(descriptor: int) -> int | None:
    """Ns since 1970; None where the file system or the kernel does not tell. Raise OSError for a descriptor that is not open."""
    if _statx is None:
        return None
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, found) != 0:
        # Kernels without the call, and sandboxes that forbid it, must not keep a daemon from starting.
        _ = os.fstat(descriptor)
        return None
    if not _number(found, _MASK_AT, 4) & _STATX_BTIME:
        return None
    return _number(found, _BORN_AT, 8) * 1_000_000_000 + _number(found, _BORN_AT + 8, 4)


def _number(found: "ctypes.Array[ctypes.c_char]", at: int, size: int) -> int:
    return int.from_bytes(found.raw[at : at + size], sys.byteorder, signed=True)
