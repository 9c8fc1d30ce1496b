"""The identity file: the spool's number, its machine and directory, its count of starts, and its producer id.

`<spool>/identity` has two slots of 4096 bytes. Writes alternate between them and overwrite in place, so a full disk
cannot prevent a router from starting. A slot is one line of JSON, padded with spaces::

    [serial, crc, {fields}]    crc: CRC-32C over the fields as JSON without spaces, keys sorted; the higher serial wins

    version        1
    spool          random 63 bits, for the life of the spool; part of every checksum in its segments
    starts         incremented at every start of the router
    machine_id     /etc/machine-id ("" if missing)
    boot_id        of the last start that finished its recovery
    device, inode  of the directory
    born           creation time of the directory, ns since 1970; null if the file system does not report it
    file_inode     of this file
    file_born      creation time of this file
    producer_id    null until the brokers assign one
    reason         why a new producer id is needed; null once the stamp rows under that id are on disk
    clean          set by a clean shutdown, cleared by the next start after its recovery
    segment        number of the segment that the last start created, -1 before the first; it or a later one exists
    incarnation    random 48 bits, never 0, under which new records are numbered (`wire/record_ids.py`); replaced
                   together with `reason`, and created at the first start of a version that has this field

A crash during a write leaves that slot with a wrong checksum; the other slot stays valid. A write is synced before any
of its values is used.
"""

import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, cast

from crc32c import crc32c

from .directory import SpoolError
from .segment_files import read_range

NAME: Final = "identity"
VERSION: Final = 1
SLOTS: Final = 2
SLOT_BYTES: Final = 4096
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_MASK_AT: Final = 0
_BORN_AT: Final = 80
"""Offset of the birth time: seconds as signed 64 bits, then nanoseconds in 32 bits."""
_Statx = Callable[[int, bytes, int, int, "ctypes.Array[ctypes.c_char]"], int]


@dataclass(frozen=True, slots=True)
class IdentityFile:
    """Fields of the identity file, as the module docstring describes them."""

    version: int
    spool: int
    starts: int
    machine_id: str
    boot_id: str
    device: int
    inode: int
    producer_id: int | None
    reason: str | None
    clean: bool
    segment: int
    incarnation: int
    born: int | None = None
    file_inode: int | None = None
    file_born: int | None = None


def slot_of(serial: int, file: IdentityFile) -> bytes:
    fields = asdict(file)
    slot = json.dumps([serial, crc32c(canonical_fields(fields)), fields]).encode().ljust(SLOT_BYTES - 1) + b"\n"
    assert len(slot) == SLOT_BYTES, "the identity does not fit its slot"
    return slot


def read_identity(directory: Path) -> IdentityFile:
    """Read the identity file without claiming the directory.

    Raises:
        FileNotFoundError: the directory has no identity file, or a damaged one.
        OSError: the file cannot be read, or has another version.
    """
    try:
        stored = load_identity(directory).file
    except SpoolError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    if stored is None:
        raise FileNotFoundError(errno.ENOENT, "there is no spool here, or its identity file is damaged")
    return stored


class StoredIdentity(NamedTuple):
    """The newest valid slot. `file` None: the file is missing, or no slot is valid."""

    serial: int
    file: IdentityFile | None


def load_identity(directory: Path) -> StoredIdentity:
    path = directory / NAME
    try:
        data = read_range(path, 0, min(path.stat().st_size, SLOTS * SLOT_BYTES))
    except FileNotFoundError:
        return StoredIdentity(0, None)
    except OSError as error:
        raise SpoolError(f"{path} cannot be read: {error.strerror}") from error
    best = StoredIdentity(0, None)
    for start in range(0, len(data), SLOT_BYTES):
        serial, fields = _read_slot(data[start : start + SLOT_BYTES])
        if fields is None or serial <= best.serial:
            continue
        if fields.get("version") != VERSION:
            raise SpoolError(
                f"the spool in {directory} has version {fields.get('version')!r}, this program knows version {VERSION}: use the "
                "program that wrote it, or another data_dir"
            )
        best = StoredIdentity(serial, _checked(fields))
    return best


def _read_slot(data: bytes) -> tuple[int, dict[str, object] | None]:
    """Return a slot's serial and fields; the fields are None if its checksum or shape is wrong."""
    try:
        serial, crc, fields = json.loads(data)
        whole = isinstance(serial, int) and isinstance(fields, dict) and crc == crc32c(canonical_fields(fields))
    except (ValueError, TypeError, RecursionError):
        return 0, None
    return (serial, cast("dict[str, object]", fields)) if whole else (0, None)


def canonical_fields(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def _checked(stored: dict[str, object]) -> IdentityFile | None:
    numbers = [stored.get(name) for name in ("spool", "starts", "device", "inode", "segment")]
    numbers.append(stored.get("incarnation", 0))
    texts = [stored.get(name) for name in ("machine_id", "boot_id")]
    producer_id, reason, clean = stored.get("producer_id"), stored.get("reason"), stored.get("clean")
    # Earlier versions did not write these fields.
    marks = [stored.get(name) for name in ("born", "file_inode", "file_born")]
    if not all(type(number) is int for number in numbers) or not all(type(text) is str for text in texts):
        return None
    if not all(mark is None or type(mark) is int for mark in marks):
        return None
    if not isinstance(producer_id, int | None) or not isinstance(reason, str | None) or not isinstance(clean, bool):
        return None
    spool, starts, device, inode, segment, incarnation = cast("list[int]", numbers)
    machine_id, boot_id = cast("list[str]", texts)
    return IdentityFile(
        VERSION,
        spool,
        starts,
        machine_id,
        boot_id,
        device,
        inode,
        producer_id,
        reason,
        clean,
        segment,
        incarnation,
        *cast("list[int | None]", marks),
    )


def with_file_identity(file: IdentityFile, descriptor: int) -> IdentityFile:
    """Add the inode and creation time of the open file, which a copy of it does not share."""
    return replace(file, file_inode=os.fstat(descriptor).st_ino, file_born=birth_time_ns(descriptor))


def with_existing_file(file: IdentityFile, directory: Path) -> IdentityFile:
    """Add the inode and creation time of the identity file in a directory."""
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise SpoolError(f"{directory / NAME} cannot be read: {error.strerror}") from error
    try:
        return with_file_identity(file, descriptor)
    finally:
        os.close(descriptor)


def _libc_statx() -> _Statx | None:
    """Return the C library's statx, or None if it has none."""
    try:
        return cast("_Statx", ctypes.CDLL(None, use_errno=True).statx)
    except (OSError, AttributeError):
        return None


_statx: Final = _libc_statx()


def birth_time_ns(descriptor: int) -> int | None:
    """Return the creation time of an open file or directory in ns since 1970. File systems reuse the inode
    numbers of deleted files, so a copy may have the same one. Python does not provide statx(2). None if the file system or the kernel does not report it. Raises
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
