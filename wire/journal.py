"""The layout of a shard's cut journal: the batches that may have reached a socket.

One file per start of a shard, allocated in full, mapped shared, locked for the life of the process. Little-endian::

    0     header, 128 bytes
            0   4s   magic          b"PSCJ"
            4   u16  version        1
            6   u16  shard_id
            8   u64  shard_start
            16  u64  router_start   that of the router which welcomed the shard
            24  u32  pid
            28  u32  slots          number of slots
            32  16s  boot_id        raw bytes of /proc/sys/kernel/random/boot_id
            48  u32  crc            CRC-32C over bytes 0 … 47
    4096  slots, 64 bytes each
            0   u64  serial         rises from 1 in a file; 0: never used
            8   u32  partition number
            12  u32  generation
            16  i64  first ordinal
            24  u32  count
            28  i16  epoch
            30  u16  state          1: live; 2: freed
            32  i64  producer id
            40  u32  crc            CRC-32C over bytes 0 … 39 and the header's first 48

A shard writes a whole slot before it passes the request to the transport. A torn slot has a wrong checksum: nothing was
sent for it. The file is never synced: after a power failure (another boot id) its contents are hints, never facts.
"""

import struct
from typing import Final, NamedTuple

MAGIC: Final = b"PSCJ"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sHHQQII16s")
HEADER_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = 128
SLOTS_AT: Final = 4096
SLOT: Final = struct.Struct("<QIIqIhHq")
SLOT_CRC: Final = struct.Struct("<I")
SLOT_BYTES: Final = 64
STATE_AT: Final = 30
LIVE: Final = 1
FREED: Final = 2

assert HEADER.size == 48
assert SLOT.size == 40


class JournalHeader(NamedTuple):
    """The header: identifies the shard, its start and its router."""

    magic: bytes
    version: int
    shard_id: int
    shard_start: int
    router_start: int
    pid: int
    slots: int
    boot_id: bytes


class JournalSlot(NamedTuple):
    """One cut: a batch whose bytes may have reached a socket."""

    serial: int
    partition: int
    generation: int
    first: int
    count: int  # type: ignore[assignment]
    epoch: int
    state: int
    producer_id: int
