"""What a partition remembers of idempotent producers, and what follows for a batch.

Kafka's rules: the last five batches of an id's newest epoch are recognised; without any memory of an id everything is taken;
an id is forgotten when the largest record timestamp of its last batch has become too old.
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
    """Largest of its records, in milliseconds."""


class NextBatch(NamedTuple):
    """The batch is the next one, or the first that is known of its producer."""


class DuplicateBatch(NamedTuple):
    """The batch is in the log already."""

    stored: BatchMetadata


class OutOfOrderSequence(NamedTuple):
    """The batch does not follow the last one."""

    expected: int


class StaleEpoch(NamedTuple):
    """A newer epoch of the id was seen."""

    current: int


class NotInTransaction(NamedTuple):
    """The batch is not of the transaction that its producer has open."""


BatchCheckResult = NextBatch | DuplicateBatch | OutOfOrderSequence | StaleEpoch | NotInTransaction


class TransactionalFlags(NamedTuple):
    """How a batch belongs to a transaction."""

    transactional: bool = False
    starts_at_zero: bool = False
    """Version 2 of the protocol: a producer of which no batch is known begins with sequence 0."""


NON_TRANSACTIONAL: Final = TransactionalFlags()


@dataclass(slots=True)
class ProducerStateEntry:
    """Memory of one producer id; the newest batch is last, and there is none behind the end of a transaction that took the epoch."""

    epoch: int
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    timestamp: int = -1
    """Largest of the records of the newest batch, or of the end of the last transaction (milliseconds)."""

    current_txn_first_offset: int | None = None
    """First offset of the open transaction."""

    coordinator_epoch: int = -1
    """Of the coordinator that ended the last transaction."""

    @property
    def last_sequence(self) -> int:
        """Of the newest batch, or -1."""
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStateManager:
    """Producer ids of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._unverified: dict[int, tuple[int, int]] = {}
        """Epoch, and the lowest sequence that was asked for before the partition was in the transaction, by producer id."""

    def check_batch(
        self, producer_id: int, epoch: int, first: int, last: int, kind: TransactionalFlags = NON_TRANSACTIONAL
    ) -> BatchCheckResult:
        """Say what is to be done with a batch of sequences `first` to `last`; nothing changes."""
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
        """Note that a transactional batch came while nothing was known of an open transaction of its producer here."""
        known_epoch, lowest = self._unverified.get(producer_id, (epoch, first))
        if epoch > known_epoch:
            self._unverified[producer_id] = (epoch, first)
        else:
            self._unverified[producer_id] = (known_epoch, min(lowest, first) if epoch == known_epoch else lowest)

    def has_open_transaction(self, producer_id: int, epoch: int | None) -> bool:
        """Whether a transaction of this epoch, or of any, is open."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None and producer.current_txn_first_offset is not None and epoch in {None, producer.epoch}
        )

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        """What is known of an id."""
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
        """Remember a batch that went into the log; one that is not `numbered` was written by a coordinator."""
        producer = self._entry(producer_id, epoch)
        if numbered:
            producer.batches.append(stored)
        producer.timestamp = stored.timestamp
        if transactional:
            _ = self._unverified.pop(producer_id, None)
            if producer.current_txn_first_offset is None:
                producer.current_txn_first_offset = stored.base_offset

    def transaction_ended(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int) -> int | None:
        """Remember the end of a transaction; return where it began in this log, if it did."""
        producer = self._entry(producer_id, epoch)
        began = producer.current_txn_first_offset
        producer.current_txn_first_offset = None
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp = timestamp
        return began

    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction began."""
        return min(
            (
                one.current_txn_first_offset
                for one in self._producers.values()
                if one.current_txn_first_offset is not None
            ),
            default=None,
        )

    def keep_last_batches(self) -> None:
        """Keep one batch an id: all that a broker knows when it comes back from its log."""
        self._unverified.clear()
        for producer in self._producers.values():
            while len(producer.batches) > 1:
                _ = producer.batches.popleft()

    def truncate(self, end: int) -> bool:
        """Forget batches that begin at offset `end` or behind; tell whether there were any."""
        found = False
        for key, producer in list(self._producers.items()):
            while producer.batches and producer.batches[-1].base_offset >= end:
                _ = producer.batches.pop()
                found = True
            if found and not producer.batches:
                del self._producers[key]
        return found

    def expire(self, *, wall_ms: int, after_ms: int) -> None:
        """Forget ids whose last batch is older than `after_ms` by its records' own time, but for those with an open transaction."""
        old = [
            key
            for key, producer in self._producers.items()
            if producer.current_txn_first_offset is None and wall_ms - producer.timestamp >= after_ms
        ]
        for key in old:
            del self._producers[key]

    def snapshot(self) -> list[tuple[int, ProducerStateEntry]]:
        """Ids and what is known of them, in order of the ids."""
        return sorted(self._producers.items())
