"""Reads slices from the spool's segments, with plain reads into one reused buffer (MEM-1).

A segment is opened once, read-only, and stays readable after the router unlinks it; the most recent stay open.
"""

import os
from collections import OrderedDict
from pathlib import Path
from typing import Final

from ..wire.slices import segment_name

_OPEN_MAX: Final = 64
_BUFFER_BYTES: Final = 512 << 10


class ShardSegmentReader:
    """The `SliceSource` of the accumulator."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def read(self, segment: int, offset: int, length: int) -> memoryview | str:
        """The bytes, valid until the next call, or an error text."""
        if length > len(self._buffer):
            self._buffer = memoryview(bytearray(length))
        view = self._buffer[:length]
        try:
            count = os.preadv(self._descriptor(segment), [view], offset)
        except OSError as error:
            return f"{segment_name(segment)}: {error.strerror}"
        if count != length:
            return f"{segment_name(segment)} ends at {offset + count}, a slice reaches to {offset + length}"
        return view

    @property
    def open_count(self) -> int:
        """Number of open segments."""
        return len(self._descriptors)

    def close(self) -> None:
        """Close all segments."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _descriptor(self, segment: int) -> int:
        found = self._descriptors.get(segment)
        if found is not None:
            self._descriptors.move_to_end(segment)
            return found
        if len(self._descriptors) >= _OPEN_MAX:
            _, oldest = self._descriptors.popitem(last=False)
            os.close(oldest)
        opened = os.open(self._directory / segment_name(segment), os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors[segment] = opened
        return opened
