"""Log of one replica: its batches in offset order, the start offsets of leader epochs, and its producers' state."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

import crc32c

from .batch_writer import EndTxnMarker, read_marker
from .batches import (
    CONTROL_BIT,
    CRC_FROM,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    decode_batch,
    read_header,
)
from .error_codes import AppendRejection, ErrorCode
from .producer_state import (
    NON_TRANSACTIONAL,
    BatchMetadata,
    DuplicateBatch,
    NextBatch,
    NotInTransaction,
    OutOfOrderSequence,
    ProducerStateManager,
    StaleEpoch,
    TransactionalFlags,
)
from .topics import TimestampType

FIRST_EPOCH: Final = 0
UNKNOWN_EPOCH: Final = -1
TIDY_MIN: Final = 1_000
"""Completed transactions that a log keeps before it first prunes them."""

OFFSET_BYTES: Final = 8
EPOCH_AT: Final = 12
EPOCH_BYTES: Final = 4
ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35


class StoredBatch(NamedTuple):
    """A stored batch: its bytes begin with its offset in the log."""

    last_offset: int
    base_offset: int
    max_timestamp: int
    data: bytes


class LogAppendInfo(NamedTuple):
    """The batch is new; `data` is the batch as the log stores it."""

    base_offset: int
    last_offset: int
    log_append_time: int
    """Milliseconds; -1 on a topic with create time."""

    data: bytes


class DuplicateAppend(NamedTuple):
    """The batch is already in the log."""

    base_offset: int
    last_offset: int
    log_append_time: int
    """The stored batch's largest timestamp, whatever the topic's timestamp type."""


class CompletedTxn(NamedTuple):
    """A transaction whose records and end marker are in the log."""

    producer_id: int
    first_offset: int
    marker_offset: int
    commit: bool


class DeletedBatch(NamedTuple):
    """A deleted batch, with its marker if it ended a transaction."""

    head: BatchHeader
    marker: EndTxnMarker | None


class CorruptLogError(ValueError):
    """A stored batch does not follow the one before it."""


class EpochStart(NamedTuple):
    """A leader epoch and the first offset that its leader wrote or would have written."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """The newest epoch of a log not newer than the requested one, and the offset after its last record."""

    epoch: int
    end_offset: int


def stored_bytes(data: bytes, base_offset: int, append_time: int | None, epoch: int = FIRST_EPOCH) -> bytes:
    """Return a validated batch as stored: with its offset, leader epoch and, unless None, `append_time` (ms)."""
    placed = bytearray(data)
    placed[:OFFSET_BYTES] = base_offset.to_bytes(OFFSET_BYTES, "big")
    placed[EPOCH_AT : EPOCH_AT + EPOCH_BYTES] = epoch.to_bytes(EPOCH_BYTES, "big")
    if append_time is not None:
        placed[ATTRIBUTES_AT + 1] |= TIMESTAMP_TYPE_BIT
        placed[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = append_time.to_bytes(8, "big", signed=True)
        checksum: int = crc32c.crc32c(memoryview(placed)[CRC_FROM:])
        placed[CRC_FROM - 4 : CRC_FROM] = checksum.to_bytes(4, "big")
    return bytes(placed)


class PartitionLog:
    """Batches and producer state of one replica.

    An append has two steps, so that the caller can store the bytes in between: `prepare_append` decides, `add` appends.
    """

    def __init__(self) -> None:
        self._batches: list[StoredBatch] = []
        self._epochs: list[EpochStart] = []
        self._reload_offset = 0
        """End of the log at the last start; of earlier batches, the log remembers only each producer's last one."""

        self._completed_txns: list[CompletedTxn] = []
        """In marker order. Now and then, committed ones whose marker is replicated are pruned."""

        self._tidy_at = TIDY_MIN

        self._deleted: list[DeletedBatch] = []
        """Deleted batches that a restart still sees, because their file is kept or a snapshot holds them."""

        self.producers = ProducerStateManager()
        self.start_offset = 0
        self.high_watermark = 0
        """This replica knows that all earlier records are on every in-sync replica; readers see only those."""

        self.size = 0
        """Total bytes of all batches."""

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return max(self.start_offset, self._batches[-1].last_offset + 1 if self._batches else 0)

    @property
    def last_stable_offset(self) -> int:
        """All earlier records are on every in-sync replica and in no open transaction."""
        stable = self.high_watermark
        opened = self.producers.first_undecided_offset()
        if opened is not None:
            stable = min(stable, opened)
        # A transaction counts as ended once its marker is replicated.
        for ended in reversed(self._completed_txns):
            if ended.marker_offset < self.high_watermark:
                break
            stable = min(stable, ended.first_offset)
        return stable

    def aborted_transactions(self, offset: int, end: int) -> list[CompletedTxn]:
        """Return the aborted transactions that a reader of the records from `offset` to `end` must filter out."""
        at = bisect_left(self._completed_txns, offset, key=lambda one: one.marker_offset)
        return [one for one in self._completed_txns[at:] if not one.commit and one.first_offset < end]

    # Leader epochs

    @property
    def last_epoch(self) -> int:
        """The newest leader epoch in the log, or -1."""
        return self._epochs[-1].epoch if self._epochs else UNKNOWN_EPOCH

    def begin_epoch(self, epoch: int) -> None:
        """Record that a leader of this epoch appends from the end of the log."""
        if epoch > self.last_epoch:
            self._epochs.append(EpochStart(epoch, self.end_offset))

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the end offset of an epoch; (-1, -1) if the log has no epochs or `epoch` is negative or too new."""
        if not self._epochs or epoch > self.last_epoch or epoch < 0:
            return EpochEnd(UNKNOWN_EPOCH, -1)
        if epoch < self._epochs[0].epoch:
            return EpochEnd(epoch, self._epochs[0].start_offset)
        at = bisect_right(self._epochs, epoch, key=lambda one: one.epoch) - 1
        last = at == len(self._epochs) - 1
        return EpochEnd(self._epochs[at].epoch, self.end_offset if last else self._epochs[at + 1].start_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which an offset was or would be written; -1 when unknown."""
        at = bisect_right(self._epochs, offset, key=lambda one: one.start_offset) - 1
        return self._epochs[at].epoch if at >= 0 else UNKNOWN_EPOCH

    # Appending

    def prepare_append(
        self,
        head: BatchHeader,
        data: bytes,
        kind: TimestampType,
        *,
        wall_ms: int,
        epoch: int = FIRST_EPOCH,
        belongs: TransactionalFlags = NON_TRANSACTIONAL,
    ) -> LogAppendInfo | DuplicateAppend | AppendRejection:
        """Decide whether to append a validated batch; `add` then changes the log."""
        if head.producer_id >= 0:
            known = self._check_producer(head, belongs)
            if known is not None:
                return known
        return self.assign_offsets(head, data, kind, wall_ms=wall_ms, epoch=epoch)

    def assign_offsets(
        self, head: BatchHeader, data: bytes, kind: TimestampType, *, wall_ms: int, epoch: int
    ) -> LogAppendInfo:
        """Assign a batch its offsets at the end of the log, without producer checks; `add` then changes the log."""
        time = wall_ms if kind is TimestampType.LOG_APPEND else None
        base = self.end_offset
        last = base + head.last_offset_delta
        return LogAppendInfo(base, last, -1 if time is None else time, stored_bytes(data, base, time, epoch))

    def _check_producer(
        self, head: BatchHeader, belongs: TransactionalFlags
    ) -> DuplicateAppend | AppendRejection | None:
        sequences = (head.base_sequence, head.last_sequence)
        verdict = self.producers.check_batch(head.producer_id, head.producer_epoch, *sequences, belongs)
        match verdict:
            case NextBatch():
                return None
            case DuplicateBatch(stored):
                return DuplicateAppend(stored.base_offset, stored.last_offset, stored.timestamp)
            case OutOfOrderSequence(expected):
                why = f"sequence {head.base_sequence}, expected {expected}"
                return AppendRejection(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, why, has_log_start_offset=True)
            case StaleEpoch(current):
                why = f"epoch {head.producer_epoch}, current {current}"
                return AppendRejection(ErrorCode.INVALID_PRODUCER_EPOCH, why, has_log_start_offset=True)
            case NotInTransaction():
                why = "its producer has a transaction open, to which it does not belong"
                return AppendRejection(ErrorCode.INVALID_TXN_STATE, why, has_log_start_offset=True)

    def add(self, data: bytes) -> None:
        """Append a stored batch, which must begin at the end of the log (anywhere if the log is empty at offset 0).

        Raises:
            CorruptLogError: it does not.
        """
        head = read_header(data)
        if not self._batches and self.end_offset == 0:
            self.start_offset = head.base_offset
        elif head.base_offset != self.end_offset:
            raise CorruptLogError(f"a batch at offset {head.base_offset}, expected {self.end_offset}")
        if head.leader_epoch > self.last_epoch:
            self._epochs.append(EpochStart(head.leader_epoch, head.base_offset))
        last = head.base_offset + head.last_offset_delta
        self._batches.append(StoredBatch(last, head.base_offset, head.max_timestamp, data))
        self.size += len(data)
        self._update_producer_state(head, _marker(head, data))

    def _update_producer_state(self, head: BatchHeader, marker: EndTxnMarker | None) -> None:
        if head.producer_id < 0:
            return
        if marker is not None:
            coordinator, time = marker.coordinator_epoch, head.max_timestamp
            began = self.producers.transaction_ended(head.producer_id, head.producer_epoch, coordinator, time)
            if began is not None:
                self._note_end(CompletedTxn(head.producer_id, began, head.base_offset, marker.commit))
            return
        last = head.base_offset + head.last_offset_delta
        stored = BatchMetadata(head.base_sequence, head.last_sequence, head.base_offset, last, head.max_timestamp)
        transactional = bool(head.attributes & TRANSACTIONAL_BIT)
        numbered = head.base_sequence >= 0
        self.producers.batch_appended(
            head.producer_id, head.producer_epoch, stored, transactional=transactional, numbered=numbered
        )

    def _note_end(self, ended: CompletedTxn) -> None:
        self._completed_txns.append(ended)
        if len(self._completed_txns) >= self._tidy_at:
            # Readers do not need a committed transaction once its marker is replicated.
            seen = self.high_watermark
            self._completed_txns = [one for one in self._completed_txns if not one.commit or one.marker_offset >= seen]
            self._tidy_at = 2 * len(self._completed_txns) + TIDY_MIN

    # Truncating, deleting, reloading

    def truncate(self, end: int) -> None:
        """Remove batches that contain `end` or later offsets: they were never committed, or their leader was lost."""
        end = max(end, self.start_offset)
        # An epoch may have started at `end` without a record.
        self._epochs = [one for one in self._epochs if one.start_offset < end]
        if end >= self.end_offset:
            return
        at = bisect_left(self._batches, (end,))
        cut = self._batches[at:]
        self.size -= sum(len(batch.data) for batch in cut)
        del self._batches[at:]
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self._reload_offset = min(self._reload_offset, self.end_offset)
        in_transactions = any(read_header(batch.data).attributes & TRANSACTIONAL_BIT for batch in cut)
        if self.producers.truncate(end) or in_transactions:
            self._rebuild_producer_state()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start at `offset`, because the leader's log starts after the end of this log."""
        self._batches.clear()
        self._epochs.clear()
        self._deleted.clear()
        self._completed_txns.clear()
        self.producers = ProducerStateManager()
        self.size = 0
        self.start_offset = self.high_watermark = self._reload_offset = offset

    def delete_before(self, offset: int, *, files: bool = False, leads: bool = True) -> None:
        """Move the log's start forward; the state of producers is kept although their batches are gone.

        With `files`, whole files are deleted, as by retention. Otherwise the batches stay in their file, as with
        DeleteRecords. A file that follows has a snapshot of the producers at its start. If this replica `leads`, this
        holds for an empty file too.
        """
        at = bisect_left(self._batches, (offset,))
        gone = self._batches[:at]
        del self._batches[:at]
        self.size -= sum(len(batch.data) for batch in gone)
        heads = [(read_header(batch.data), batch.data) for batch in gone]
        self._deleted += [DeletedBatch(head, _marker(head, data)) for head, data in heads if head.producer_id >= 0]
        if files:
            told = bool(self._batches) or leads
            self._deleted = list({one.head.producer_id: one for one in self._deleted}.values()) if told else []
        self.start_offset = max(self.start_offset, offset)
        self._completed_txns = [one for one in self._completed_txns if one.marker_offset >= self.start_offset]
        self.high_watermark = max(self.high_watermark, self.start_offset)

    def reload(self, *, clean: bool, wall_ms: int, after_ms: int) -> None:
        """Restore the state after a restart; `clean` means the process before it shut down in order.

        A snapshot at or below the log's start is ignored. A clean shutdown leaves a snapshot at the log's end.
        """
        if self.end_offset == self.start_offset:
            self.producers = ProducerStateManager()
            self._deleted.clear()
            self._completed_txns.clear()
        elif not clean:
            self._reload_offset = self.end_offset
            self._rebuild_producer_state()
        self._reload_offset = self.end_offset
        self.producers.keep_last_batches()
        self.producers.expire(wall_ms=wall_ms, after_ms=after_ms)

    def _rebuild_producer_state(self) -> None:
        """Rebuild the state of producers from the remaining batches."""
        self.producers = ProducerStateManager()
        self._completed_txns.clear()
        shrunk = False
        heads = ((read_header(batch.data), batch.data) for batch in self._batches)
        for head, marker in (*self._deleted, *((head, _marker(head, data)) for head, data in heads)):
            if not shrunk and head.base_offset >= self._reload_offset:
                self.producers.keep_last_batches()
                shrunk = True
            self._update_producer_state(head, marker)
        if not shrunk:
            self.producers.keep_last_batches()
        self._completed_txns = [one for one in self._completed_txns if one.marker_offset >= self.start_offset]

    # Reading

    def read(self, offset: int, limit: int, *, below: int) -> list[bytes]:
        """Return batches from the one that holds `offset` up to the offset `below`.

        They total at most `limit` bytes, except that one available batch is returned whatever its size.
        """
        found: list[bytes] = []
        size = 0
        # The list is sorted by last offset, the first field of each tuple.
        for at in range(bisect_left(self._batches, (offset,)), len(self._batches)):
            if self._batches[at].last_offset >= below:
                break
            data = self._batches[at].data
            size += len(data)
            if found and size > limit:
                break
            found.append(data)
        return found

    def size_from(self, offset: int, limit: int, *, below: int) -> int:
        """Count bytes from `offset` up to the offset `below`; stop counting once they reach `limit`."""
        size = 0
        for at in range(bisect_left(self._batches, (offset,)), len(self._batches)):
            if self._batches[at].last_offset >= below:
                break
            size += len(self._batches[at].data)
            if size >= limit:
                break
        return size

    def find_by_timestamp(self, timestamp: int, *, below: int) -> tuple[int, int] | None:
        """Return offset and timestamp (ms) of the first record before the offset `below` not older than `timestamp`.

        Raises:
            CodecError, RecordDecodeError: the records of a batch that was stored unchecked do not decode.
        """
        for batch in self._batches:
            if batch.last_offset >= below:
                break
            if batch.max_timestamp >= timestamp:
                for offset, time in _times(batch):
                    if time >= timestamp:
                        return offset, time
        return None

    def find_max_timestamp(self, *, below: int) -> tuple[int, int] | None:
        """Return offset and timestamp (ms) of the first record before the offset `below` with the largest timestamp.

        Raises:
            CodecError, RecordDecodeError: as `find_by_timestamp`.
        """
        seen = [batch for batch in self._batches if batch.last_offset < below]
        if not seen:
            return None
        batch = max(seen, key=lambda candidate: candidate.max_timestamp)
        return max(_times(batch), key=lambda pair: (pair[1], -pair[0]))


def _marker(head: BatchHeader, data: bytes) -> EndTxnMarker | None:
    return read_marker(data) if head.attributes & CONTROL_BIT else None


def _times(batch: StoredBatch) -> list[tuple[int, int]]:
    head = read_header(batch.data)
    if head.attributes & TIMESTAMP_TYPE_BIT:
        return [(head.base_offset + delta, head.max_timestamp) for delta in range(head.record_count)]
    seen = decode_batch(batch.data)
    return [(head.base_offset + i, head.base_timestamp + record.timestamp_delta) for i, record in enumerate(seen)]
