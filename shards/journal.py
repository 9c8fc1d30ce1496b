"""The batch journal of this process: every batch is recorded before any of its bytes may reach a socket (HO-12).

Layout in `wire/journal.py`. The file is mapped shared and never synced: it survives the process, not a machine crash.
Only this process writes it; the router reads it once the process is reaped.
"""

import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import crc32c

from ..runtime.host import boot_id
from ..wire.journal import (
    FREED,
    HEADER,
    HEADER_CRC,
    LIVE,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    SLOT_CRC,
    SLOTS_AT,
    VERSION,
    JournalHeader,
    JournalSlot,
)

SLOTS: Final = 65_536


class Journal:
    """The open journal. `record` hands out slot numbers and `release` takes them back."""

    def __init__(self, directory: Path, header: JournalHeader) -> None:
        """Create the file, allocate all of its space, map and lock it.

        Raises:
            OSError: no space, no permission, or the file already exists.
        """
        self.path = directory / f"shard-{header.shard_id}-{header.shard_start}.journal"
        self._head = HEADER.pack(*header)
        self._serial = 0
        self._live: dict[int, JournalSlot] = {}
        self._free: deque[int] = deque(range(header.slots))
        size = SLOTS_AT + header.slots * SLOT_BYTES
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A store into a page without disk space raises SIGBUS, so the space is allocated first.
            os.posix_fallocate(self._descriptor, 0, size)
            self._map = mmap.mmap(self._descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError:
            # A file without a header has no known owner, and every start on a full disk would leave another one.
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise
        self._map[: len(self._head) + HEADER_CRC.size] = self._head + HEADER_CRC.pack(crc32c.crc32c(self._head))

    @property
    def name(self) -> str:
        """The file's name inside the journal directory."""
        return self.path.name

    @property
    def free_slots(self) -> int:
        """How many batches may still be recorded. At 0 no batch is built: a live slot is never overwritten (JRN-2)."""
        return len(self._free)

    def record(self, partition: int, generation: int, first: int, count: int, *, producer_id: int, epoch: int) -> int:
        """Record a batch and return its slot. Only after this may its bytes be passed to a transport."""
        assert self._free, "a cut without a free slot"
        slot = self._free.popleft()
        self._serial += 1
        cut = JournalSlot(self._serial, partition, generation, first, count, epoch, LIVE, producer_id)
        self._live[slot] = cut
        self._write(slot, cut)
        return slot

    def release(self, slots: Iterable[int]) -> None:
        """Free slots whose batches are in the router's spool, or replaced by other recorded batches."""
        for slot in slots:
            cut = self._live.pop(slot)
            self._write(slot, cut._replace(state=FREED))
            self._free.append(slot)

    def close(self) -> None:
        """Unmap and unlock; the file stays for the router."""
        self._map.close()
        os.close(self._descriptor)

    def _write(self, slot: int, cut: JournalSlot) -> None:
        body = SLOT.pack(*cut)
        crc = crc32c.crc32c(self._head, crc32c.crc32c(body))
        at = SLOTS_AT + slot * SLOT_BYTES
        self._map[at : at + SLOT.size + SLOT_CRC.size] = body + SLOT_CRC.pack(crc)


def open_journal(directory: Path, *, seat: int, shard_start: int, router_start: int, slots: int = SLOTS) -> Journal:
    """Create the journal of this process, which the router with start number `router_start` welcomed.

    Raises:
        OSError: as `Journal`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    header = JournalHeader(MAGIC, VERSION, seat, shard_start, router_start, os.getpid(), slots, boot_id())
    return Journal(directory, header)
