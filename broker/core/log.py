"""One partition: its batches in order of their offsets, and its producers.

There is one replica, so the end of the log is its high watermark, and the leader epoch is always 0.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import crc32c

from .batches import CRC_FROM, TIMESTAMP_TYPE_BIT, Head, read_head, unfold
from .errors import ErrorCode, Refusal
from .producer_state import Append, Duplicate, OutOfOrder, ProducerTable, StaleEpoch, Stored
from .topics import TimestampType

LEADER_EPOCH: Final = 0
OFFSET_BYTES: Final = 8
EPOCH_AT: Final = 12
EPOCH_BYTES: Final = 4
ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35


class Batch(NamedTuple):
    """A stored batch: its bytes begin with its offset in the log."""

    last_offset: int
    base_offset: int
    max_timestamp: int
    data: bytes


class Appended(NamedTuple):
    """The batch is new; `data` is what the log keeps."""

    base_offset: int
    log_append_time: int
    """Milliseconds; -1 on a topic with create time."""

    data: bytes


class Known(NamedTuple):
    """The batch was in the log already."""

    base_offset: int
    log_append_time: int
    """The stored batch's largest timestamp, whatever the topic's timestamp type."""


class BrokenLogError(ValueError):
    """A stored batch does not follow the one before it."""


def stored_bytes(data: bytes, base_offset: int, append_time: int | None) -> bytes:
    """Return a checked batch as it is stored: with its offset, and with `append_time` (ms) where the topic wants that."""
    placed = bytearray(data)
    placed[:OFFSET_BYTES] = base_offset.to_bytes(OFFSET_BYTES, "big")
    placed[EPOCH_AT : EPOCH_AT + EPOCH_BYTES] = LEADER_EPOCH.to_bytes(EPOCH_BYTES, "big")
    if append_time is not None:
        placed[ATTRIBUTES_AT + 1] |= TIMESTAMP_TYPE_BIT
        placed[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = append_time.to_bytes(8, "big", signed=True)
        checksum: int = crc32c.crc32c(memoryview(placed)[CRC_FROM:])
        placed[CRC_FROM - 4 : CRC_FROM] = checksum.to_bytes(4, "big")
    return bytes(placed)


class PartitionLog:
    """Batches and producer state of one partition.

    `append` is split in two, so that the caller can write the bytes down between them: `place` decides, `add` keeps.
    """

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self.producers = ProducerTable()
        self.start_offset = 0
        self.size = 0
        """Bytes of all batches."""

    @property
    def end_offset(self) -> int:
        """Offset of the next record; all below it is visible."""
        return self._batches[-1].last_offset + 1 if self._batches else self.start_offset

    def place(self, head: Head, data: bytes, kind: TimestampType, *, wall_ms: int) -> Appended | Known | Refusal:
        """Decide on a checked batch; nothing changes until `add`."""
        if head.producer_id >= 0:
            known = self._by_producer(head)
            if known is not None:
                return known
        time = wall_ms if kind is TimestampType.LOG_APPEND else None
        base = self.end_offset
        return Appended(base, -1 if time is None else time, stored_bytes(data, base, time))

    def _by_producer(self, head: Head) -> Known | Refusal | None:
        verdict = self.producers.judge(head.producer_id, head.producer_epoch, head.base_sequence, head.last_sequence)
        match verdict:
            case Append():
                return None
            case Duplicate(stored):
                return Known(stored.base_offset, stored.timestamp)
            case OutOfOrder(expected):
                why = f"sequence {head.base_sequence}, expected {expected}"
                return Refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, why, tells_log_start=True)
            case StaleEpoch(current):
                why = f"epoch {head.producer_epoch}, current {current}"
                return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, why, tells_log_start=True)

    def add(self, data: bytes) -> None:
        """Keep a stored batch, which must begin at the end of the log (anywhere, if the log is empty).

        Raises:
            BrokenLogError: it does not.
        """
        head = read_head(data)
        if not self._batches:
            self.start_offset = head.base_offset
        elif head.base_offset != self.end_offset:
            raise BrokenLogError(f"a batch at offset {head.base_offset}, expected {self.end_offset}")
        last = head.base_offset + head.last_offset_delta
        self._batches.append(Batch(last, head.base_offset, head.max_timestamp, data))
        self.size += len(data)
        if head.producer_id >= 0:
            stored = Stored(head.base_sequence, head.last_sequence, head.base_offset, last, head.max_timestamp)
            self.producers.appended(head.producer_id, head.producer_epoch, stored)

    def read(self, offset: int, limit: int) -> list[bytes]:
        """Return batches from the one that holds `offset`, together at most `limit` bytes but at least one if there is one."""
        found: list[bytes] = []
        size = 0
        # The list is in order of last offsets, which the tuples begin with.
        for at in range(bisect_left(self._batches, (offset,)), len(self._batches)):
            data = self._batches[at].data
            size += len(data)
            if found and size > limit:
                break
            found.append(data)
        return found

    def size_from(self, offset: int, limit: int) -> int:
        """Bytes that are there to be read from `offset`, counted no further than `limit`."""
        size = 0
        for at in range(bisect_left(self._batches, (offset,)), len(self._batches)):
            size += len(self._batches[at].data)
            if size >= limit:
                break
        return size

    def first_at(self, timestamp: int) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first record not older than `timestamp`.

        Raises:
            CodecError, RecordError: a batch was stored unlooked at, and its records do not decode.
        """
        for batch in self._batches:
            if batch.max_timestamp >= timestamp:
                for offset, time in _times(batch):
                    if time >= timestamp:
                        return offset, time
        return None

    def newest(self) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the record with the largest timestamp, the first of them.

        Raises:
            CodecError, RecordError: as `first_at`.
        """
        if not self._batches:
            return None
        batch = max(self._batches, key=lambda candidate: candidate.max_timestamp)
        return max(_times(batch), key=lambda pair: (pair[1], -pair[0]))


def _times(batch: Batch) -> list[tuple[int, int]]:
    head = read_head(batch.data)
    if head.attributes & TIMESTAMP_TYPE_BIT:
        return [(head.base_offset + delta, head.max_timestamp) for delta in range(head.records)]
    seen = unfold(batch.data)
    return [(head.base_offset + i, head.base_timestamp + record.timestamp_delta) for i, record in enumerate(seen)]
