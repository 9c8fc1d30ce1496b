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


Judgement = Append | Duplicate | OutOfOrder | StaleEpoch


@dataclass(slots=True)
class Producer:
    """Memory of one producer id; `batches` is never empty and the newest is last."""

    epoch: int
    batches: deque[Stored] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    @property
    def last(self) -> Stored:
        """The newest batch."""
        return self.batches[-1]


class ProducerTable:
    """Producer ids of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def judge(self, producer_id: int, epoch: int, first: int, last: int) -> Judgement:
        """Say what is to be done with a batch of sequences `first` to `last`; nothing changes."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return Append()
        if epoch < producer.epoch:
            return StaleEpoch(producer.epoch)
        if epoch > producer.epoch:
            return Append() if first == 0 else OutOfOrder(0)
        for stored in producer.batches:
            if stored.first_sequence == first and stored.last_sequence == last:
                return Duplicate(stored)
        expected = (producer.last.last_sequence + 1) & SEQUENCE_MASK
        return Append() if first == expected else OutOfOrder(expected)

    def appended(self, producer_id: int, epoch: int, stored: Stored) -> None:
        """Remember a batch that went into the log."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = self._producers[producer_id] = Producer(epoch)
        producer.batches.append(stored)

    def shrink_to_last(self) -> None:
        """Keep one batch an id: all that a broker knows when it comes back from its log."""
        for producer in self._producers.values():
            while len(producer.batches) > 1:
                _ = producer.batches.popleft()

    def cut(self, end: int) -> bool:
        """Forget batches that begin at offset `end` or behind; tell whether there were any."""
        found = False
        for key, producer in list(self._producers.items()):
            while producer.batches and producer.last.base_offset >= end:
                _ = producer.batches.pop()
                found = True
            if not producer.batches:
                del self._producers[key]
        return found

    def expire(self, *, wall_ms: int, after_ms: int) -> None:
        """Forget ids whose last batch is older than `after_ms` by its records' own time."""
        old = [key for key, producer in self._producers.items() if wall_ms - producer.last.timestamp >= after_ms]
        for key in old:
            del self._producers[key]

    def snapshot(self) -> list[tuple[int, Producer]]:
        """Ids and what is known of them, in order of the ids."""
        return sorted(self._producers.items())
