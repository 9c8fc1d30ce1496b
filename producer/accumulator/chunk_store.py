"""Sealed chunks of the direct producer: slices in memory, numbered and read like the segments of a spool.

A chunk is kept until the last of its records is resolved. Its memory can then be reused: batches in flight are encoded
into buffers of their own, so nothing reads the chunk any more.
"""

from typing import Final, NamedTuple


class SealedChunk(NamedTuple):
    """A chunk ready to be submitted: a slice of `length` bytes at offset 0 of `segment`.

    `created_ms`: CLOCK_MONOTONIC at the arrival of its first record. `max_ts`: largest record timestamp, ms since 1970.
    """

    topic: str
    index: int  # type: ignore[assignment]
    segment: int
    length: int
    first: int
    count: int  # type: ignore[assignment]
    created_ms: int
    max_ts: int


class ChunkStore:
    """Holds sealed chunks. Dropped chunks of `reusable_bytes` are kept for reuse, up to `kept_bytes` in all."""

    def __init__(self, reusable_bytes: int, kept_bytes: int) -> None:
        self._reusable_bytes: Final = reusable_bytes
        self._kept_max: Final = kept_bytes // reusable_bytes
        self._chunks: dict[int, tuple[bytearray, int]] = {}
        self._kept: list[bytearray] = []
        self._last = 0

    def make(self, size: int) -> bytearray:
        """Memory for a new chunk; its contents are arbitrary."""
        if size == self._reusable_bytes and self._kept:
            return self._kept.pop()
        return bytearray(size)

    def put(self, data: bytearray, end: int) -> int:
        """Store a chunk of which `end` bytes are used. Returns its segment number: 1, 2, 3 …"""
        self._last += 1
        self._chunks[self._last] = (data, end)
        return self._last

    def read(self, segment: int, offset: int, length: int) -> memoryview | str:
        """Bytes of a chunk, valid until it is dropped; or an error message."""
        found = self._chunks.get(segment)
        if found is None:
            return f"chunk {segment} is not there"
        data, end = found
        if offset < 0 or length < 0 or offset + length > end:
            return f"bytes {offset} to {offset + length} do not lie in chunk {segment} of {end}"
        return memoryview(data)[offset : offset + length].toreadonly()

    def drop(self, segment: int) -> None:
        """Drop a chunk whose records are all resolved."""
        data, _ = self._chunks.pop(segment)
        if len(data) == self._reusable_bytes and len(self._kept) < self._kept_max:
            self._kept.append(data)

    def __len__(self) -> int:
        return len(self._chunks)
