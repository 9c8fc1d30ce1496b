"""A partition's state of idempotent producers, and the checks of batches against it.

Kafka's rules: the last five batches of an id's newest epoch are recognised as duplicates. Any batch of an unknown id is
accepted. An id expires when the largest record timestamp of its last batch is too old.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

REMEMBERED_BATCHES: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF


class BatchMetadata(NamedTuple):
    """A batch in the log, as its producer numbered it."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """Largest timestamp of its records, in milliseconds."""


class NextBatch(NamedTuple):
    """The batch is the next one, or the first of an unknown producer."""


class DuplicateBatch(NamedTuple):
    """The batch is already in the log."""

    stored: BatchMetadata


class OutOfOrderSequence(NamedTuple):
    """The batch does not follow the last one."""

    expected: int


class StaleEpoch(NamedTuple):
    """The log has a newer epoch of the producer id."""

    current: int


class NotInTransaction(NamedTuple):
    """The batch does not belong to the open transaction of its producer."""


BatchCheckResult = NextBatch | DuplicateBatch | OutOfOrderSequence | StaleEpoch | NotInTransaction


class TransactionalFlags(NamedTuple):
    """How a batch belongs to a transaction."""

    transactional: bool = False
    starts_at_zero: bool = False
    """Protocol version 2: a producer without known batches must start with sequence 0."""


NON_TRANSACTIONAL: Final = TransactionalFlags()


@dataclass(slots=True)
class ProducerStateEntry:
    """State of one producer id. The newest batch is last; a transaction end that bumped the epoch leaves no batches."""

    epoch: int
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    timestamp: int = -1
    """Largest record timestamp of the newest batch or of the last transaction marker (milliseconds)."""

    current_txn_first_offset: int | None = None
    """First offset of the open transaction."""

    coordinator_epoch: int = -1
    """Epoch of the coordinator that ended the last transaction."""

    @property
    def last_sequence(self) -> int:
        """Last sequence of the newest batch, or -1."""
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStateManager:
    """State of all producer ids of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._unverified: dict[int, tuple[int, int]] = {}
        """By producer id: epoch and lowest sequence received before the partition was in the transaction."""

    def check_batch(
        self, producer_id: int, epoch: int, first: int, last: int, kind: TransactionalFlags = NON_TRANSACTIONAL
    ) -> BatchCheckResult:
        """Decide how to treat a batch of sequences `first` to `last`; the state does not change."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return self._check_unknown_producer(producer_id, first, kind)
        if epoch < producer.epoch:
            return StaleEpoch(producer.epoch)
        if epoch == producer.epoch:
            for stored in producer.batches:
                if stored.first_sequence == first and stored.last_sequence == last:
                    return DuplicateBatch(stored)
        expected = 0
        if epoch == producer.epoch and producer.batches:
            expected = (producer.last_sequence + 1) & SEQUENCE_MASK
        if first != expected or first > self._lowest_sequence(producer_id, first):
            return OutOfOrderSequence(expected)
        return (
            NotInTransaction()
            if producer.current_txn_first_offset is not None and not kind.transactional
            else NextBatch()
        )

    def _check_unknown_producer(
        self, producer_id: int, first: int, kind: TransactionalFlags
    ) -> NextBatch | OutOfOrderSequence:
        if kind.starts_at_zero and first != 0:
            return OutOfOrderSequence(0)
        lowest = self._lowest_sequence(producer_id, first)
        return NextBatch() if first <= lowest else OutOfOrderSequence(lowest)

    def _lowest_sequence(self, producer_id: int, otherwise: int) -> int:
        return self._unverified.get(producer_id, (0, otherwise))[1]

    def add_unverified(self, producer_id: int, epoch: int, first: int) -> None:
        """Record a transactional batch that arrived while its producer had no open transaction in this log."""
        known_epoch, lowest = self._unverified.get(producer_id, (epoch, first))
        if epoch > known_epoch:
            self._unverified[producer_id] = (epoch, first)
        else:
            self._unverified[producer_id] = (known_epoch, min(lowest, first) if epoch == known_epoch else lowest)

    def has_open_transaction(self, producer_id: int, epoch: int | None) -> bool:
        """Return whether a transaction of this epoch (None: of any) is open."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None and producer.current_txn_first_offset is not None and epoch in {None, producer.epoch}
        )

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        """Return the state of a producer id, or None."""
        return self._producers.get(producer_id)

    def _entry(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = ProducerStateEntry(epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer

    def batch_appended(
        self, producer_id: int, epoch: int, stored: BatchMetadata, *, transactional: bool = False, numbered: bool = True
    ) -> None:
        """Record an appended batch; a coordinator wrote it if it is not `numbered`."""
        producer = self._entry(producer_id, epoch)
        if numbered:
            producer.batches.append(stored)
        producer.timestamp = stored.timestamp
        if transactional:
            _ = self._unverified.pop(producer_id, None)
            if producer.current_txn_first_offset is None:
                producer.current_txn_first_offset = stored.base_offset

    def transaction_ended(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int) -> int | None:
        """Record the end of a transaction; return its first offset in this log, or None."""
        producer = self._entry(producer_id, epoch)
        began = producer.current_txn_first_offset
        producer.current_txn_first_offset = None
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp = timestamp
        return began

    def first_undecided_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction, or None."""
        return min(
            (
                one.current_txn_first_offset
                for one in self._producers.values()
                if one.current_txn_first_offset is not None
            ),
            default=None,
        )

    def keep_last_batches(self) -> None:
        """Keep only the last batch of each id, as a broker does after it reloads its log."""
        self._unverified.clear()
        for producer in self._producers.values():
            while len(producer.batches) > 1:
                _ = producer.batches.popleft()

    def truncate(self, end: int) -> bool:
        """Forget batches that begin at offset `end` or later; return whether there were any."""
        found = False
        for key, producer in list(self._producers.items()):
            while producer.batches and producer.batches[-1].base_offset >= end:
                _ = producer.batches.pop()
                found = True
            if found and not producer.batches:
                del self._producers[key]
        return found

    def expire(self, *, wall_ms: int, after_ms: int) -> None:
        """Forget ids without an open transaction whose last batch is older than `after_ms` by its record timestamps."""
        old = [
            key
            for key, producer in self._producers.items()
            if producer.current_txn_first_offset is None and wall_ms - producer.timestamp >= after_ms
        ]
        for key in old:
            del self._producers[key]

    def snapshot(self) -> list[tuple[int, ProducerStateEntry]]:
        """Return the ids and their state, sorted by id."""
        return sorted(self._producers.items())
