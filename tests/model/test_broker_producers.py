"""The broker's producer memory against a slow model that keeps the whole history and reads the rules from it."""

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from penstock.broker.log.producer_state import (
    BatchMetadata,
    DuplicateBatch,
    NextBatch,
    OutOfOrderSequence,
    ProducerStateManager,
    StaleEpoch,
)

from tests.harness.counts import model_examples

MODULUS = 1 << 31
IDS = st.integers(1, 3)
EPOCHS = st.integers(0, 3)
# Near the place where the numbers go round, and near their beginning.
SEQUENCES = st.one_of(st.integers(0, 12), st.integers(MODULUS - 12, MODULUS - 1))
COUNTS = st.integers(1, 4)


class Event(NamedTuple):
    """A batch that was appended, or (sequence None) the loss of what a restart loses."""

    producer_id: int
    epoch: int
    first: int
    count: int
    offset: int
    timestamp: int


class ProducerMemory(RuleBasedStateMachine):
    """History of appends since the last expiry; `restarted` counts those before the last restart."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerStateManager()
        self.history: list[Event] = []
        self.restarted = 0
        self.clock = 1_000
        self.offset = 0

    def of(self, producer_id: int) -> list[Event]:
        return [event for event in self.history if event.producer_id == producer_id]

    def window(self, producer_id: int) -> list[Event]:
        """The batches that the rules recognise."""
        mine = self.of(producer_id)
        if not mine:
            return []
        epoch = mine[-1].epoch
        current: list[Event] = []
        for event in reversed(mine):
            if event.epoch != epoch:
                break
            current.append(event)
            # Of what was there before a restart, the last batch alone came back.
            if self.history.index(event) < self.restarted:
                break
        return current[:5]

    def expected(self, producer_id: int, epoch: int, first: int, count: int) -> object:
        mine = self.of(producer_id)
        if not mine:
            return NextBatch()
        if epoch < mine[-1].epoch:
            return StaleEpoch(mine[-1].epoch)
        if epoch > mine[-1].epoch:
            return NextBatch() if first == 0 else OutOfOrderSequence(0)
        for event in self.window(producer_id):
            if (event.first, event.count) == (first, count):
                return DuplicateBatch(stored(event))
        following = (mine[-1].first + mine[-1].count) % MODULUS
        return NextBatch() if first == following else OutOfOrderSequence(following)

    def offer(self, producer_id: int, epoch: int, first: int, count: int, timestamp: int) -> None:
        event = Event(producer_id, epoch, first, count, self.offset, timestamp)
        verdict = self.table.check_batch(producer_id, epoch, first, (first + count - 1) % MODULUS)
        assert verdict == self.expected(producer_id, epoch, first, count)
        assert type(verdict) is type(self.expected(producer_id, epoch, first, count))
        if isinstance(verdict, NextBatch):
            self.table.batch_appended(producer_id, epoch, stored(event))
            self.history.append(event)
            self.offset += count

    @rule(producer_id=IDS, epoch=EPOCHS, first=SEQUENCES, count=COUNTS, age=st.integers(0, 50))
    def any_batch(self, producer_id: int, epoch: int, first: int, count: int, age: int) -> None:
        self.offer(producer_id, epoch, first, count, self.clock - age)

    @rule(producer_id=IDS, count=COUNTS, age=st.integers(0, 50))
    def next_batch(self, producer_id: int, count: int, age: int) -> None:
        mine = self.of(producer_id)
        if mine:
            self.offer(
                producer_id, mine[-1].epoch, (mine[-1].first + mine[-1].count) % MODULUS, count, self.clock - age
            )

    @rule(producer_id=IDS, back=st.integers(0, 6))
    def batch_again(self, producer_id: int, back: int) -> None:
        mine = self.of(producer_id)
        if back < len(mine):
            again = mine[-1 - back]
            self.offer(producer_id, again.epoch, again.first, again.count, again.timestamp)

    @rule(producer_id=IDS, count=COUNTS)
    def bump(self, producer_id: int, count: int) -> None:
        mine = self.of(producer_id)
        if mine and mine[-1].epoch < 10:
            self.offer(producer_id, mine[-1].epoch + 1, 0, count, self.clock)

    @rule()
    def restart(self) -> None:
        self.table.keep_last_batches()
        self.restarted = len(self.history)

    @rule(passed=st.integers(0, 40), after=st.integers(1, 60))
    def expire(self, passed: int, after: int) -> None:
        self.clock += passed
        self.table.expire(wall_ms=self.clock, after_ms=after)
        ids = {event.producer_id for event in self.history}
        gone = {one for one in ids if self.clock - self.of(one)[-1].timestamp >= after}
        before = [event for event in self.history[: self.restarted] if event.producer_id not in gone]
        self.history = [event for event in self.history if event.producer_id not in gone]
        self.restarted = len(before)

    @invariant()
    def what_is_told_is_the_last_batch_of_each_id(self) -> None:
        told = [(key, one.epoch, one.last_sequence, one.timestamp) for key, one in self.table.snapshot()]
        last = [self.of(one)[-1] for one in sorted({event.producer_id for event in self.history})]
        assert told == [(e.producer_id, e.epoch, (e.first + e.count - 1) % MODULUS, e.timestamp) for e in last]


def stored(event: Event) -> BatchMetadata:
    last = (event.first + event.count - 1) % MODULUS
    return BatchMetadata(event.first, last, event.offset, event.offset + event.count - 1, event.timestamp)


TestProducerMemory = ProducerMemory.TestCase
TestProducerMemory.settings = settings(max_examples=model_examples(150), stateful_step_count=40, deadline=None)
