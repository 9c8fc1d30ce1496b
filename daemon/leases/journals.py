"""Reads the batch journals of dead shards, and ends the shards of an earlier router at its successor's start (LSE-7).

Layout in `wire/journal.py`. A journal is complete once its owner is reaped, and is not used before. The caller removes
the files after their batch bounds are in the spool.
"""

import errno
import fcntl
import os
import select
import signal
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import crc32c

from ...wire.journal import (
    HEADER,
    HEADER_BYTES,
    HEADER_CRC,
    LIVE,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    SLOTS_AT,
    STATE_AT,
    VERSION,
    JournalHeader,
    JournalSlot,
)

_SLOT_AND_CRC: Final = struct.Struct(f"<QIIqIhHqI{SLOT_BYTES - SLOT.size - 4}x")
_SUFFIX: Final = ".journal"
_POLL_MS: Final = 20

assert _SLOT_AND_CRC.size == SLOT_BYTES


class JournalError(Exception):
    """A shard of an earlier router cannot be ended, so no lease may be granted."""


class DeadJournal(NamedTuple):
    """The content of a journal. `is_complete`: the live slots are all there are (JRN-8); otherwise they are hints, or
    the journal is unreadable. `header` None: its owner died before writing one, or it is damaged."""

    path: Path
    header: JournalHeader | None
    slots: list[JournalSlot]
    is_complete: bool


def read(path: Path, this_boot: bytes) -> DeadJournal:
    """Read the journal of a reaped shard. An unreadable file yields hints, never an error."""
    try:
        content = path.read_bytes()
    except OSError:
        return DeadJournal(path, None, [], is_complete=False)
    if not any(content[:HEADER_BYTES]):
        # The header is written before the first slot: without a header nothing was journaled, so nothing was sent.
        return DeadJournal(path, None, [], is_complete=True)
    header = _header(content)
    if header is None:
        return DeadJournal(path, None, [], is_complete=False)
    end = SLOTS_AT + header.slots * SLOT_BYTES
    if len(content) < end:
        return DeadJournal(path, header, [], is_complete=False)
    slots = list(_live(content[SLOTS_AT:end], content[: HEADER.size]))
    return DeadJournal(path, header, slots, header.boot_id == this_boot)


def is_locked(path: Path) -> bool:
    """Whether a process holds the journal's lock. A missing file is not locked."""
    with _opened(path) as descriptor:
        return descriptor is not None and not _take(descriptor)


def kill_owners(directory: Path, this_boot: bytes, *, wait_s: float, clock: Callable[[], float]) -> list[DeadJournal]:
    """Kill every shard that still holds a journal in the directory, and read all journals there.

    Raises:
        JournalError: a lock is still held after `wait_s`, or its owner is unknown.
    """
    until = clock() + wait_s
    for path in _files(directory):
        _end_owner(path, until, clock)
    return [read(path, this_boot) for path in _files(directory)]


def journal_of_shard(directory: Path, shard_start: int) -> Path | None:
    """The journal of a shard that died before it named its journal."""
    for path in _files(directory):
        with _opened(path) as descriptor:
            header = None if descriptor is None else _header(os.pread(descriptor, HEADER_BYTES, 0))
        if header is not None and header.shard_start == shard_start:
            return path
    return None


def header_at(path: Path) -> JournalHeader | None:
    """The header alone; None if there is no file or no complete header."""
    with _opened(path) as descriptor:
        return None if descriptor is None else _header(os.pread(descriptor, HEADER_BYTES, 0))


def remove(path: Path) -> None:
    """Remove a journal. Call it only after its batch bounds are written to the spool (JRN-7)."""
    path.unlink(missing_ok=True)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{_SUFFIX}"))


@contextmanager
def _opened(path: Path) -> Generator[int | None, None, None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Take the lock. Returns False if it is held. It is released when the descriptor closes."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_owner(path: Path, until: float, clock: Callable[[], float]) -> None:
    with _opened(path) as descriptor:
        if descriptor is None:
            return
        while not _take(descriptor):
            header = _header(os.pread(descriptor, HEADER_BYTES, 0))
            pidfd = _pidfd(header.pid) if header is not None else None
            if pidfd is not None:
                try:
                    # Still locked after the descriptor was opened: the lock is the owner's, not a later process's.
                    if not _take(descriptor):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    _await_end(pidfd, path, until, clock)
                finally:
                    os.close(pidfd)
            elif clock() > until:
                raise JournalError(f"{path} is held by a process that cannot be told; end it and start again")
            else:
                _ = select.select([], [], [], _POLL_MS / 1000)


def _await_end(pidfd: int, path: Path, until: float, clock: Callable[[], float]) -> None:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(max(0.0, until - clock()) * 1000):
        raise JournalError(f"the shard that holds {path} did not end after SIGKILL; see what blocks it and start again")


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ESRCH, errno.EINVAL}:
            return None
        raise


def _header(content: bytes) -> JournalHeader | None:
    if len(content) < HEADER_BYTES:
        return None
    (crc,) = HEADER_CRC.unpack_from(content, HEADER.size)
    if crc32c.crc32c(content[: HEADER.size]) != crc:
        return None
    header = JournalHeader(*HEADER.unpack_from(content))
    return header if header.magic == MAGIC and header.version == VERSION else None


def _live(slots: bytes, head: bytes) -> Iterator[JournalSlot]:
    # A restart waits for this, so one scan over all slots finds the few live ones.
    states = slots[STATE_AT::SLOT_BYTES]
    at = states.find(LIVE)
    while at >= 0:
        *fields, crc = _SLOT_AND_CRC.unpack_from(slots, at * SLOT_BYTES)
        # A torn slot was being written when its owner died: nothing was sent for it.
        body = slots[at * SLOT_BYTES : at * SLOT_BYTES + SLOT.size]
        if fields[0] != 0 and fields[6] == LIVE and crc32c.crc32c(head, crc32c.crc32c(body)) == crc:
            yield JournalSlot(*fields)
        at = states.find(LIVE, at + 1)
