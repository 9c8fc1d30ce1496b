"""One start of a spool: decides whether its producer id may still be used, and stores its identity file."""

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...runtime.host import boot_id
from ...wire.errors import FrameError
from ...wire.record_ids import INCARNATION_BITS
from ..ledger import segment_scan
from .directory import Claim, SpoolError, claim
from .disk import Disk
from .files import write_all
from .identity_file import (
    NAME,
    SLOT_BYTES,
    SLOTS,
    VERSION,
    IdentityFile,
    birth_time_ns,
    load_identity,
    slot_of,
    with_existing_file,
    with_file_identity,
)
from .segment_files import is_segment_file, read_range, segment_numbers, segment_path

_MACHINE_ID: Final = Path("/etc/machine-id")


class SpoolIdentity:
    """One start of one spool. Holds the directory's lock until `close`.

    `start`: this router's start number, above 0 and unique. `new_producer_id_reason`: why a new producer id must be
    requested before anything is sent (IDN-9), None if the old id remains in use. `power_cut`: the machine went down
    without a clean shutdown, so stored batch bounds are only hints and the unsynced tail may be torn. `was_clean`: the
    last shutdown was clean.
    """

    def __init__(self, claimed: Claim, file: IdentityFile, serial: int, *, power_cut: bool, disk: Disk) -> None:
        self.was_clean = file.clean
        self.claim = claimed
        self._file = file
        self._serial = serial
        self._disk = disk
        self.power_cut = power_cut
        self.boot_id = boot_id().hex()
        self.start = file.starts << 32 | secrets.randbits(32)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        allow_unsafe_filesystem: bool = False,
        restored: bool = False,
        disk: Disk | None = None,
    ) -> "SpoolIdentity":
        """Lock the directory and count a new start of its spool: the new start number is on disk when this returns.

        Raises:
            SpoolError: the directory cannot be claimed, or the file has an unknown version.
        """
        disk = disk or Disk()
        claimed = claim(directory, allow_unsafe_filesystem=allow_unsafe_filesystem, disk=disk)
        try:
            return cls._begin(claimed, restored=restored, disk=disk)
        except SpoolError:
            claimed.close()
            raise

    @classmethod
    def _begin(cls, claimed: Claim, *, restored: bool, disk: Disk) -> "SpoolIdentity":
        found = os.fstat(claimed.descriptor)
        here = IdentityFile(
            version=VERSION,
            spool=secrets.randbits(63),
            starts=1,
            machine_id=_first_line(_MACHINE_ID),
            boot_id="",
            device=found.st_dev,
            inode=found.st_ino,
            born=birth_time_ns(claimed.descriptor),
            producer_id=None,
            reason="the spool is new",
            clean=False,
            segment=-1,
            incarnation=_new_incarnation(),
        )
        serial, stored = load_identity(claimed.path)
        power_cut = False
        if stored is not None:
            here = with_existing_file(here, claimed.path)
            reason = (
                "told to be restored"
                if restored
                else _copied_reason(stored, here) or _emptied_reason(stored, claimed.path)
            )
            # A reason left over from the last start already has its own incarnation: continue numbering under it.
            incarnation = stored.incarnation if reason is None else 0
            reason = reason or stored.reason
            here = replace(
                here,
                spool=stored.spool,
                starts=stored.starts + 1,
                boot_id=stored.boot_id,
                clean=stored.clean,
                segment=stored.segment,
                incarnation=incarnation or here.incarnation,
                producer_id=None if reason else stored.producer_id,
                reason=reason,
            )
            power_cut = stored.boot_id != boot_id().hex() and not stored.clean
        else:
            spool = _number_in_segments(claimed.path)
            if spool is not None:
                here = replace(here, spool=spool, reason="the identity file was missing or damaged")
                power_cut = True
        identity = cls(claimed, here, serial, power_cut=power_cut, disk=disk)
        identity._store(here)
        return identity

    @property
    def spool(self) -> int:
        """The spool's number."""
        return self._file.spool

    @property
    def spool_id(self) -> str:
        """The spool's number as 16 hex digits."""
        return f"{self._file.spool:016x}"

    @property
    def starts(self) -> int:
        return self._file.starts

    @property
    def producer_id(self) -> int | None:
        """The id to send under; None: request one first."""
        return self._file.producer_id

    @property
    def new_producer_id_reason(self) -> str | None:
        return self._file.reason

    @property
    def segment(self) -> int:
        """Number of the segment that the last start created; `mark_recovered` replaces it."""
        return self._file.segment

    @property
    def incarnation(self) -> int:
        """The incarnation under which new records are numbered."""
        return self._file.incarnation

    def mark_recovered(self, segment: int) -> None:
        """Record that the result of recovery is on disk, in this segment. From now on the next stop determines `clean`
        and `power_cut`, not the last one.

        Raises:
            SpoolError: the file cannot be written.
        """
        self._store(replace(self._file, boot_id=self.boot_id, clean=False, segment=segment))

    def set_producer_id(self, producer_id: int) -> None:
        """Store a producer id from the brokers; it is on disk when this returns. The reason stays until
        `confirm_producer_id`: a start that finds a reason requests another id, because it cannot know which partitions
        already use this one.

        Raises:
            SpoolError: the file cannot be written; the id must not be used.
        """
        self._store(replace(self._file, producer_id=producer_id))

    @property
    def producer_id_unconfirmed(self) -> bool:
        """Whether a new producer id is stored whose stamp rows may not be on disk yet."""
        return self._file.producer_id is not None and self._file.reason is not None

    def confirm_producer_id(self) -> None:
        """Clear the reason: every stamp row under the new producer id is on disk. `Spool` calls this.

        Raises:
            SpoolError: the file cannot be written.
        """
        self._store(replace(self._file, reason=None))

    def require_new_producer_id(self, reason: str) -> None:
        """Discard the producer id and start a new incarnation: the spool may be older than what the brokers saw
        (IDN-9).

        Raises:
            SpoolError: the file cannot be written.
        """
        self._store(replace(self._file, producer_id=None, reason=reason, incarnation=_new_incarnation()))

    def mark_clean(self) -> None:
        """Record a clean shutdown: all batch bounds are in the spool, and everything is synced.

        Raises:
            SpoolError: the file cannot be written.
        """
        self._store(replace(self._file, clean=True))

    def close(self) -> None:
        """Release the directory's lock."""
        self.claim.close()

    def _store(self, file: IdentityFile) -> None:
        path = self.claim.path / NAME
        self._serial += 1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                file = with_file_identity(file, fd)
                slot = slot_of(self._serial, file)
                is_new = os.fstat(fd).st_size == 0
                if is_new:
                    self._disk.allocate(fd, SLOTS * SLOT_BYTES)
                _ = write_all(self._disk, fd, [slot], self._serial % SLOTS * SLOT_BYTES)
                self._disk.sync(fd)
            finally:
                os.close(fd)
            if is_new:
                self._disk.sync_directory(self.claim.descriptor)
        except OSError as error:
            raise SpoolError(
                f"{path} cannot be written: {error.strerror}; free some space, or mend the disk"
            ) from error
        self._file = file


def _new_incarnation() -> int:
    return secrets.randbelow((1 << INCARNATION_BITS) - 1) + 1


def _copied_reason(stored: IdentityFile, here: IdentityFile) -> str | None:
    """Why this is not the directory in which the file was written (IDN-9 b); None: it is."""
    if stored.machine_id != here.machine_id:
        return "the spool was copied from another machine"
    if stored.inode != here.inode:
        return "the spool directory was copied or restored: its inode is another one"
    # File systems soon reuse the inode of a deleted directory.
    if _differ(stored.born, here.born):
        return "the spool directory was copied or restored: it was made at another time"
    if _differ(stored.file_inode, here.file_inode) or _differ(stored.file_born, here.file_born):
        return "the files of the spool were copied or restored: its identity is in another file"
    # Devices without a disk of their own (overlay, btrfs) get a new number at every boot.
    if stored.device != here.device and os.major(here.device) != 0:
        return "the spool directory was copied or restored: it lies on another device"
    return None


def _differ(stored: int | None, here: int | None) -> bool:
    """Whether both are known and different."""
    return stored is not None and here is not None and stored != here


def _emptied_reason(stored: IdentityFile, directory: Path) -> str | None:
    if stored.producer_id is not None and not segment_numbers(directory):
        return "the spool was emptied"
    return None


def _number_in_segments(directory: Path) -> int | None:
    """Read the spool's number from its newest readable segment."""
    for number in reversed(segment_numbers(directory)):
        path = segment_path(directory, number)
        if is_segment_file(path):
            try:
                return segment_scan.read_segment_header(read_range(path, 0, segment_scan.ENTRIES_AT)).spool
            except (FrameError, OSError):
                continue
    return None


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return ""
