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


class Stored(NamedTuple):
    """A batch in the log, as its producer numbered it."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """Largest of its records, in milliseconds."""


class Append(NamedTuple):
    """The batch is the next one, or the first that is known of its producer."""


class Duplicate(NamedTuple):
    """The batch is in the log already."""

    stored: Stored


class OutOfOrder(NamedTuple):
    """The batch does not follow the last one."""

    expected: int


class StaleEpoch(NamedTuple):
    """A newer epoch of the id was seen."""

    current: int


class Plain(NamedTuple):
    """The batch is not of the transaction that its producer has open."""


Judgement = Append | Duplicate | OutOfOrder | StaleEpoch | Plain


class Kind(NamedTuple):
    """How a batch belongs to a transaction."""

    transactional: bool = False
    from_zero: bool = False
    """Version 2 of the protocol: a producer of which no batch is known begins with sequence 0."""


PLAIN: Final = Kind()


@dataclass(slots=True)
class Producer:
    """Memory of one producer id; the newest batch is last, and there is none behind the end of a transaction that took the epoch."""

    epoch: int
    batches: deque[Stored] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    timestamp: int = -1
    """Largest of the records of the newest batch, or of the end of the last transaction (milliseconds)."""

    open_from: int | None = None
    """First offset of the open transaction."""

    coordinator_epoch: int = -1
    """Of the coordinator that ended the last transaction."""

    @property
    def last_sequence(self) -> int:
        """Of the newest batch, or -1."""
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerTable:
    """Producer ids of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._refused: dict[int, tuple[int, int]] = {}
        """Epoch, and the lowest sequence that was asked for before the partition was in the transaction, by producer id."""

    def judge(self, producer_id: int, epoch: int, first: int, last: int, kind: Kind = PLAIN) -> Judgement:
        """Say what is to be done with a batch of sequences `first` to `last`; nothing changes."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return self._first_ever(producer_id, first, kind)
        if epoch < producer.epoch:
            return StaleEpoch(producer.epoch)
        if epoch == producer.epoch:
            for stored in producer.batches:
                if stored.first_sequence == first and stored.last_sequence == last:
                    return Duplicate(stored)
        expected = 0
        if epoch == producer.epoch and producer.batches:
            expected = (producer.last_sequence + 1) & SEQUENCE_MASK
        if first != expected or first > self._lowest(producer_id, first):
            return OutOfOrder(expected)
        return Plain() if producer.open_from is not None and not kind.transactional else Append()

    def _first_ever(self, producer_id: int, first: int, kind: Kind) -> Append | OutOfOrder:
        if kind.from_zero and first != 0:
            return OutOfOrder(0)
        lowest = self._lowest(producer_id, first)
        return Append() if first <= lowest else OutOfOrder(lowest)

    def _lowest(self, producer_id: int, otherwise: int) -> int:
        return self._refused.get(producer_id, (0, otherwise))[1]

    def asked(self, producer_id: int, epoch: int, first: int) -> None:
        """Note that a transactional batch came while nothing was known of an open transaction of its producer here."""
        known_epoch, lowest = self._refused.get(producer_id, (epoch, first))
        if epoch > known_epoch:
            self._refused[producer_id] = (epoch, first)
        else:
            self._refused[producer_id] = (known_epoch, min(lowest, first) if epoch == known_epoch else lowest)

    def has_open(self, producer_id: int, epoch: int | None) -> bool:
        """Whether a transaction of this epoch, or of any, is open."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.open_from is not None and epoch in {None, producer.epoch}

    def get(self, producer_id: int) -> Producer | None:
        """What is known of an id."""
        return self._producers.get(producer_id)

    def _of(self, producer_id: int, epoch: int) -> Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer

    def appended(
        self, producer_id: int, epoch: int, stored: Stored, *, transactional: bool = False, numbered: bool = True
    ) -> None:
        """Remember a batch that went into the log; one that is not `numbered` was written by a coordinator."""
        producer = self._of(producer_id, epoch)
        if numbered:
            producer.batches.append(stored)
        producer.timestamp = stored.timestamp
        if transactional:
            _ = self._refused.pop(producer_id, None)
            if producer.open_from is None:
                producer.open_from = stored.base_offset

    def ended(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int) -> int | None:
        """Remember the end of a transaction; return where it began in this log, if it did."""
        producer = self._of(producer_id, epoch)
        began = producer.open_from
        producer.open_from = None
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp = timestamp
        return began

    def first_open(self) -> int | None:
        """Where the oldest open transaction began."""
        return min((one.open_from for one in self._producers.values() if one.open_from is not None), default=None)

    def shrink_to_last(self) -> None:
        """Keep one batch an id: all that a broker knows when it comes back from its log."""
        self._refused.clear()
        for producer in self._producers.values():
            while len(producer.batches) > 1:
                _ = producer.batches.popleft()

    def cut(self, end: int) -> bool:
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
            if producer.open_from is None and wall_ms - producer.timestamp >= after_ms
        ]
        for key in old:
            del self._producers[key]

    def snapshot(self) -> list[tuple[int, Producer]]:
        """Ids and what is known of them, in order of the ids."""
        return sorted(self._producers.items())
