"""A disk that forgets what was not synced when its power is cut, and that can be full, failing, or the place of a kill."""

import errno
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.daemon.spool.disk import Buffer, Disk

SECTOR = 512


class Killed(BaseException):
    """The process ends here."""


@dataclass(slots=True, eq=False)
class _File:
    """`doomed`: what a failed sync was to write. The kernel forgets that it never was: a later sync says that all is well."""

    durable: bytes = b""
    doomed: bytes | None = None


class TornDisk(Disk):
    """Real files below, and beside them a record of what is on disk.

    `kill_in`: so many calls from now the process dies, in a write after a part of the bytes (None: not). `full`: no room for
    new files. `failing_syncs`: so many syncs of files fail, and what they would have written never gets to the disk.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kill_in: int | None = None
        self.kill_after_part = 0.5
        self.full = False
        self.failing_syncs = 0
        self.syncs = 0
        self._files: dict[int, _File] = {}
        self._names: dict[str, _File] = {}

    def allocate(self, fd: int, nbytes: int) -> None:
        self._step()
        if self.full:
            raise OSError(errno.ENOSPC, "no space")
        self._files[os.fstat(fd).st_ino] = _File()
        super().allocate(fd, nbytes)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.kill_in == 0:
            data = b"".join(buffers)
            os.pwrite(fd, data[: int(len(data) * self.kill_after_part)], offset)
        self._step()
        return super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        self._step()
        self.syncs += 1
        file = self._files.setdefault(os.fstat(fd).st_ino, _File())
        data = Path(f"/proc/self/fd/{fd}").read_bytes()
        if self.failing_syncs:
            self.failing_syncs -= 1
            file.doomed = data
            raise OSError(errno.EIO, "the disk fails")
        if file.doomed is not None:
            file.doomed = file.doomed[: len(data)]
            data = _without(data, file.doomed, file.durable)
        file.durable = data

    def sync_directory(self, fd: int) -> None:
        self._step()
        self._names = {
            entry.name: self._files.setdefault(entry.inode(), _File())
            for entry in os.scandir(self.directory)
            if entry.is_file(follow_symlinks=False)
        }

    def cut_power(self, chance: random.Random) -> None:
        """Leave in the directory what a power cut might: all that was synced, and any sectors and names of the rest."""
        self.kill_in, self.full, self.failing_syncs = None, False, 0
        now = {entry.name: entry for entry in os.scandir(self.directory) if entry.is_file(follow_symlinks=False)}
        images: dict[str, bytes] = {}
        for name in sorted({*now, *self._names}):
            entry = now.get(name)
            file = self._names.get(name)
            if (file is None or entry is None) and chance.random() < 0.5:
                continue  # a name that is new, or gone, since the directory was synced
            if file is None:
                assert entry is not None
                file = self._files.get(entry.inode(), _File())
            current = b""
            if entry is not None and self._files.get(entry.inode()) is file:
                current = Path(entry.path).read_bytes()
            if file.doomed is not None and chance.random() < 0.5:
                current = file.doomed
            images[name] = _torn(file.durable, current, chance)
        for entry in now.values():
            Path(entry.path).unlink()
        for name, data in images.items():
            (self.directory / name).write_bytes(data)
        self._restart(images)

    def _restart(self, images: dict[str, bytes]) -> None:
        """What survived is what is on disk now."""
        self._files = {}
        self._names = {}
        for name in images:
            path = self.directory / name
            self._files[path.stat().st_ino] = self._names[name] = _File(path.read_bytes())

    def _step(self) -> None:
        if self.kill_in is None or threading.current_thread() is not threading.main_thread():
            return
        if self.kill_in == 0:
            self.kill_in = None
            raise Killed
        self.kill_in -= 1


def _without(data: bytes, doomed: bytes, durable: bytes) -> bytes:
    """What is on disk of `data` when the sectors that a failed sync was to write never got there, unless they were written
    anew with something else."""
    left = bytearray(data)
    for at in range(0, len(data), SECTOR):
        sector = data[at : at + SECTOR]
        if sector == doomed[at : at + SECTOR] != durable[at : at + SECTOR]:
            left[at : at + len(sector)] = durable[at : at + len(sector)].ljust(len(sector), b"\0")
    return bytes(left)


def _torn(durable: bytes, current: bytes, chance: random.Random) -> bytes:
    """Sectors of `current` over `durable`, as chance has it; the length of the one or the other."""
    length = chance.choice([len(durable), max(len(current), len(durable))])
    torn = bytearray(durable.ljust(length, b"\0"))
    share = chance.choice([0.0, 0.3, 0.7, 1.0])
    for at in range(0, len(current), SECTOR):
        if chance.random() < share:
            sector = current[at : at + SECTOR]
            if at + len(sector) <= length:
                torn[at : at + len(sector)] = sector
    return bytes(torn)
