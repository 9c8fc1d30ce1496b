"""Stores logs in a folder, so that they survive the process.

    <folder>/lock                     held (flock) by the process that uses the folder
    <folder>/start                    number of the last start of this node, in digits
    <folder>/<topic id>/<index>.log   record batches, one after the other, each beginning with its offset
    <folder>/<topic id>/<index>.start offset before which everything was deleted, in digits; none: nothing was

The store writes a batch with `write` before the response and never syncs it: it survives `kill -9` of the broker, but
not a power cut. A crash during a write leaves a torn batch at the end, which the next load cuts off.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import crc32c

from .log.batches import CRC_FROM, HEAD, MAGIC, read_header
from .log.topics import BrokerTopic

OPEN_FILES_MAX: Final = 256
START_SUFFIX: Final = ".start"


class FolderInUseError(Exception):
    """Another process uses the log folder."""


class MemoryLogStore:
    """A store that keeps nothing: logs exist only in memory."""

    def load(self, topic: BrokerTopic, partition: int) -> Sequence[bytes]:
        """Return no batches."""
        _ = topic, partition
        return []

    def append(self, topic: BrokerTopic, partition: int, data: bytes) -> None:
        """Do nothing."""

    def start_offset(self, topic: BrokerTopic, partition: int) -> int:
        """Return 0."""
        _ = topic, partition
        return 0

    def keep_start(self, topic: BrokerTopic, partition: int, offset: int) -> None:
        """Do nothing."""

    def discard(self, topic: BrokerTopic) -> None:
        """Do nothing."""


class FolderLogStore:
    """The logs of one node, in its own folder."""

    def __init__(self, folder: Path) -> None:
        """Open and lock `folder`, created if it is missing.

        Raises:
            FolderInUseError: another process uses it.
            OSError: it cannot be used.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise FolderInUseError(f"{folder} is in use by another broker") from error
        self._open: OrderedDict[Path, int] = OrderedDict()

    def next_start(self) -> int:
        """Return a start number that no earlier start in this folder used."""
        path = self._folder / "start"
        number = int(path.read_text()) + 1 if path.exists() else 0
        aside = path.with_suffix(".tmp")
        _ = aside.write_text(str(number))
        _ = aside.rename(path)
        return number

    def load(self, topic: BrokerTopic, partition: int) -> Sequence[bytes]:
        """Return the complete batches of a partition; truncate the file after the last one."""
        path = self._path(topic, partition)
        if not path.exists():
            return []
        content = path.read_bytes()
        batches, good = whole_batches(content)
        if good < len(content):
            os.truncate(path, good)
        return batches

    def append(self, topic: BrokerTopic, partition: int, data: bytes) -> None:
        """Append a batch to the log file.

        Raises:
            OSError: the write failed. The file may end in a torn batch, so callers must not append again.
        """
        descriptor = self._descriptor(self._path(topic, partition))
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def start_offset(self, topic: BrokerTopic, partition: int) -> int:
        """Return the start offset of a log."""
        path = self._path(topic, partition).with_suffix(START_SUFFIX)
        return int(path.read_text()) if path.exists() else 0

    def keep_start(self, topic: BrokerTopic, partition: int, offset: int) -> None:
        """Store the start offset of a log; earlier batches stay in the file.

        Raises:
            OSError: the write failed.
        """
        path = self._path(topic, partition).with_suffix(START_SUFFIX)
        path.parent.mkdir(exist_ok=True)
        aside = path.with_suffix(".tmp")
        _ = aside.write_text(str(offset))
        _ = aside.rename(path)

    def discard(self, topic: BrokerTopic) -> None:
        """Delete the logs of a topic."""
        folder = self._folder / topic.id.hex
        for path in [path for path in self._open if path.parent == folder]:
            os.close(self._open.pop(path))
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Close all files and release the folder."""
        while self._open:
            os.close(self._open.popitem()[1])
        os.close(self._lock)

    def _path(self, topic: BrokerTopic, partition: int) -> Path:
        return self._folder / topic.id.hex / f"{partition}.log"

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._open[path] = descriptor
            if len(self._open) > OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(path)
        return descriptor


def whole_batches(content: bytes) -> tuple[list[bytes], int]:
    """Return the batches of a log file before the first torn or non-consecutive one, and their size in bytes."""
    batches: list[bytes] = []
    at = 0
    expected: int | None = None
    while True:
        try:
            head = read_header(content, at)
        except struct.error:
            return batches, at
        data = content[at : at + head.size]
        follows = expected is None or head.base_offset == expected
        if head.magic != MAGIC or head.size < HEAD.size or len(data) < head.size or not follows:
            return batches, at
        if crc32c.crc32c(memoryview(data)[CRC_FROM:]) != head.crc:
            return batches, at
        batches.append(data)
        at += head.size
        expected = head.base_offset + head.last_offset_delta + 1
