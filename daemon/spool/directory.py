"""The spool's directory: checks of its owner and file system, and the lock that keeps a second router out."""

import ctypes
import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .disk import Disk

LOCK_NAME: Final = "lock"
_PROBE_NAME: Final = "self-test.tmp"
_PROBE_BYTES: Final = 4096
_STATFS_BYTES: Final = 256
_OVERLAY: Final = 0x794C7630
_UNSAFE: Final = {
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
}


class SpoolError(Exception):
    """The spool cannot be used. The text gives the reason and the remedy; the process exits with `Exit.SPOOL`."""


@dataclass(slots=True, eq=False)
class Claim:
    """A directory that only this process may write to. `descriptor`: the open directory. `lock`: its lock file."""

    path: Path
    descriptor: int
    lock: int
    warnings: list[str]

    def close(self) -> None:
        """Release the lock, so that another process can claim the directory."""
        os.close(self.descriptor)
        os.close(self.lock)


def claim(path: Path, *, allow_unsafe_filesystem: bool = False, disk: Disk | None = None) -> Claim:
    """Create the directory if it is missing, check it, and lock it until `Claim.close` or the end of the process.

    Raises:
        SpoolError: the directory belongs to another user, is accessible to others, is on an unsafe file system (in
            memory or remote), cannot be written, or is in use.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise SpoolError(f"the spool directory {path} cannot be opened: {error.strerror}") from error
    try:
        _check_owner(path, os.fstat(descriptor))
        warnings = check_file_system(path, allow_unsafe_filesystem=allow_unsafe_filesystem)
        lock = _lock(path)
    except SpoolError:
        os.close(descriptor)
        raise
    claimed = Claim(path, descriptor, lock, warnings)
    try:
        _self_test(claimed, disk or Disk())
    except SpoolError:
        claimed.close()
        raise
    return claimed


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise SpoolError(
            f"the spool directory {path} belongs to uid {found.st_uid}, not to {os.geteuid()}: chown it, or run as its owner"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise SpoolError(
            f"the spool directory {path} has mode {stat.S_IMODE(found.st_mode):04o}, which lets others see records: chmod 700 it"
        )


def check_file_system(path: Path, *, allow_unsafe_filesystem: bool) -> list[str]:
    """Return warnings about the file system of a path.

    Raises:
        SpoolError: the file system is in memory or remote, and `allow_unsafe_filesystem` is False.
    """
    kind = _file_system(path)
    unsafe = _UNSAFE.get(kind)
    if unsafe is not None and not allow_unsafe_filesystem:
        raise SpoolError(
            f"the spool directory {path} lies on {unsafe}, where a sync means little: put it on a local disk, or set "
            "spool.allow_unsafe_filesystem = true"
        )
    if unsafe is not None:
        return [f"the spool lies on {unsafe}: a power cut may take records that were answered"]
    if kind == _OVERLAY:
        return ["the spool lies on an overlay file system: give the container a volume for it"]
    return []


def _file_system(path: Path) -> int:
    """Return the magic number of a path's file system; 0 if statfs fails."""
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), answer) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF


def _lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock = os.open(path / LOCK_NAME, flags, 0o600)
    except OSError as error:
        raise SpoolError(f"the spool directory {path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise SpoolError(
            f"the spool directory {path} is in use by another daemon (process {holder}): stop that one, or give this one a "
            "data_dir of its own"
        ) from None
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        # The pid is only for messages, so a full disk must not prevent the start.
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            os.close(lock)
            raise SpoolError(f"the lock in {path} cannot be written: {error.strerror}") from error
    return lock


def _self_test(claimed: Claim, disk: Disk) -> None:
    """Test the operations that the spool needs: create, allocate, write, sync, rename. A full disk does not fail the
    test, because it must not prevent the start."""
    probe = claimed.path / _PROBE_NAME
    renamed = claimed.path / (_PROBE_NAME + ".renamed")
    step = "create a file"
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            step = "allocate space"
            disk.allocate(fd, _PROBE_BYTES)
            step = "write"
            disk.write(fd, [b"penstock"], 0)
            step = "sync a file"
            disk.sync(fd)
        finally:
            os.close(fd)
        step = "rename a file"
        probe.replace(renamed)
        step = "sync the directory"
        disk.sync_directory(claimed.descriptor)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise SpoolError(
                f"the spool directory {claimed.path} fails its test, cannot {step}: {error.strerror}"
            ) from error
    finally:
        probe.unlink(missing_ok=True)
        renamed.unlink(missing_ok=True)
