"""Sealed chunks of the direct producer: slices in memory, numbered and read like the segments of a spool.

A chunk is kept until the last of its records is resolved. Its bytes then serve the next one: nothing reads them any more, what
is on its way to a broker was encoded into a buffer of its own.
"""

from typing import Final, NamedTuple


class SealedChunk(NamedTuple):
    """A chunk that is ready to be submitted: a slice that fills `length` bytes of `segment` from offset 0 on.

    `created_ms`: CLOCK_MONOTONIC when its first record came. `max_ts`: largest timestamp of its records, ms since 1970.
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
    """See the module. Chunks of `reusable_bytes` are kept for reuse, up to `kept_bytes` of them."""

    def __init__(self, reusable_bytes: int, kept_bytes: int) -> None:
        self._reusable_bytes: Final = reusable_bytes
        self._kept_max: Final = kept_bytes // reusable_bytes
        self._chunks: dict[int, tuple[bytearray, int]] = {}
        self._kept: list[bytearray] = []
        self._last = 0

    def make(self, size: int) -> bytearray:
        """Bytes for a chunk that is about to be opened; what they hold means nothing."""
        if size == self._reusable_bytes and self._kept:
            return self._kept.pop()
        return bytearray(size)

    def put(self, data: bytearray, end: int) -> int:
        """Keep a chunk of which `end` bytes count; returns the number of its segment: 1, 2, 3 …"""
        self._last += 1
        self._chunks[self._last] = (data, end)
        return self._last

    def read(self, segment: int, offset: int, length: int) -> memoryview | str:
        """Bytes of a chunk, valid until it is dropped; or what is wrong, in words."""
        found = self._chunks.get(segment)
        if found is None:
            return f"chunk {segment} is not there"
        data, end = found
        if offset < 0 or length < 0 or offset + length > end:
            return f"bytes {offset} to {offset + length} do not lie in chunk {segment} of {end}"
        return memoryview(data)[offset : offset + length].toreadonly()

    def drop(self, segment: int) -> None:
        """All its records are resolved: nobody reads it any more."""
        data, _ = self._chunks.pop(segment)
        if len(data) == self._reusable_bytes and len(self._kept) < self._kept_max:
            self._kept.append(data)

    def __len__(self) -> int:
        return len(self._chunks)
