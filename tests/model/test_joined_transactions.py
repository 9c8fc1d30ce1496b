"""Transactions over random faults: what was told as committed is in the log once, in order, and nothing else is committed.

Brokers append late and early, answers get lost, batches are refused, expire, and the coordinator takes its time. Aborted records may
be in the log, in transactions that were aborted.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.producer.delivery.outcomes import Delivered
from penstock.producer.transactions.operations import TransactionOperation
from penstock.producer.transactions.requests import (
    AddPartitions,
    EndTxn,
    InitProducerId,
    TransactionRequest,
    TransactionResponse,
)
from penstock.producer.transactions.states import TransactionManagerState

from tests.conformance.joined_rig import (
    INVALID_RECORD,
    LEADER_NOT_AVAILABLE,
    NOT_LEADER,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    Request,
    Sent,
    error,
)
from tests.conformance.joined_transaction_rig import JoinedTransactionRig
from tests.fakes.model_broker import INVALID_PRODUCER_EPOCH
from tests.fakes.model_broker import Answer as LogAnswer
from tests.harness.counts import model_examples

TRANSACTION_ABORTABLE = 120
PARTITIONS = (0, 1, 2)
STEPS = 120
PASSING = (NOT_LEADER, LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT)


class World(JoinedTransactionRig):
    """The rig, with brokers that know which partitions are in the transaction, and what every transaction came to."""

    def __init__(self, version: int, random: Random, *, faults: bool) -> None:
        self.random = random
        self.faults = faults
        self.added: set[int] = set()
        self.open_from: dict[int, int] = {}
        self.committed: dict[int, list[bytes]] = {partition: [] for partition in PARTITIONS}
        self.promised: dict[int, list[bytes]] = {partition: [] for partition in PARTITIONS}
        self.written: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in PARTITIONS}
        self.count = 0
        super().__init__(version=version, warm=False, delivery_ms=3000, backoff_ms=(20, 200))

    # --- brokers -----------------------------------------------------------------------------------------------------

    def _answer(self, ask: TransactionRequest) -> TransactionResponse:
        if isinstance(ask, EndTxn):
            self._end(commit=ask.commit)
        answer = super()._answer(ask)
        if isinstance(ask, AddPartitions):
            self.added.update(index for _, index in ask.partitions)
        elif isinstance(ask, InitProducerId):
            self._end(commit=False)
        return answer

    def _end(self, *, commit: bool) -> None:
        for partition in PARTITIONS:
            log = self.log(partition)
            if commit:
                self.committed[partition] += log.records[self.open_from.get(partition, 0) :]
            self.open_from[partition] = len(log.records)
        self.added.clear()

    def judged(self, sent: Sent) -> LogAnswer:
        """The broker looks at a batch."""
        if sent.epoch != self.identity.epoch and (self.version == 1 or sent.epoch < self.identity.epoch):
            return error(INVALID_PRODUCER_EPOCH)
        if self.version == 1 and sent.partition not in self.added:
            return error(TRANSACTION_ABORTABLE)
        return self.log(sent.partition).produce(sent.data)

    def carry_out(self, request: Request) -> None:
        """The oldest request to its node is answered."""
        self.answer(request, {sent.partition: self.judged(sent) for sent in request.sent})

    def oldest(self) -> Request | None:
        if not self.wire:
            return None
        node = self.random.choice([one.node for one in self.wire])
        return next(one for one in self.wire if one.node == node)

    def drop(self) -> None:
        """A connection ends; some of what was on it arrived."""
        node = self.random.choice((0, 1))
        lost = [one for one in self.wire if one.node == node]
        for request in lost[: self.random.randrange(len(lost) + 1)]:
            for sent in request.sent:
                _ = self.judged(sent)
        self.lose(node)

    def spoil(self) -> None:
        request = self.oldest()
        if request is None:
            return
        sent = self.random.choice(request.sent)
        passing = self.random.random() < 0.8
        code = self.random.choice(PASSING) if passing else self.random.choice((INVALID_RECORD, OUT_OF_ORDER))
        told = {one.partition: self.judged(one) for one in request.sent if one is not sent}
        if code == REQUEST_TIMED_OUT and self.random.random() < 0.5:
            # Appended, and not acknowledged by all in time.
            _ = self.judged(sent)
        self.answer(request, {**told, sent.partition: error(code)})

    # --- the application ---------------------------------------------------------------------------------------------

    def write(self) -> None:
        partition = self.random.choice(PARTITIONS)
        count = self.random.choice((1, 1, 3))
        self.count += 1
        value = b"%d" % self.count
        first = self.append(partition, count=count, value=value)
        self.written[partition] += [(first + n, value) for n in range(count)]

    def promise(self) -> None:
        """A commit was told as done: all of its records were delivered, and readers are to see them."""
        for partition, records in self.written.items():
            number = self.joined.number_of("test", partition)
            delivered = {
                one.first + n
                for one in self.outcomes
                if isinstance(one, Delivered) and one.partition == number
                for n in range(one.count)
            }
            assert {ordinal for ordinal, _ in records} <= delivered
            self.promised[partition] += [value for _, value in records]

    def end(self, operation: TransactionOperation, *, commit: bool) -> None:
        """Go on until the operation ended; faults go on too for a while."""
        self.go_on()
        for step in range(400):
            self.run()
            if operation.done:
                break
            request = self.oldest()
            if request is not None:
                if self.faults and step < 30 and self.random.random() < 0.2:
                    self.random.choice((self.drop, self.spoil))()
                else:
                    self.carry_out(request)
            else:
                self.now += 0.02
        assert operation.done, (operation.kind, self.state, self.asks[-4:])
        assert self.faults or operation.failure is None, operation.failure
        operation.acknowledge()
        if commit and operation.failure is None:
            self.promise()

    def step(self) -> None:
        chance = self.random.random()
        if self.state is TransactionManagerState.READY:
            self.begin()
            for records in self.written.values():
                records.clear()
        elif self.state is TransactionManagerState.ABORTABLE_ERROR:
            assert self.faults, self.manager.error
            if chance < 0.7:
                self.end(self.abort(), commit=False)
            else:
                self.once(chance)
        elif chance < 0.06:
            self.end(self.commit(), commit=True)
        elif chance < 0.1:
            self.end(self.abort(), commit=False)
        elif chance < 0.5:
            self.write()
        else:
            self.once(chance)

    def once(self, chance: float) -> None:
        self.run()
        request = self.oldest()
        if chance < 0.9 or (not self.faults and chance < 0.95):
            if request is not None:
                self.carry_out(request)
        elif chance < 0.93:
            self.drop()
        elif self.faults and chance < 0.97:
            self.spoil()
        elif chance < 0.98:
            self.hold(AddPartitions)
        else:
            self.go_on()
            self.pass_ms(self.random.choice((1, 10, 300, 1500) if self.faults else (1, 10)))


def play(version: int, seed: int, *, faults: bool = True) -> World:
    world = World(version, Random(seed), faults=faults)
    for _ in range(STEPS):
        world.step()
    world.go_on()
    if world.state is TransactionManagerState.IN_TRANSACTION:
        world.end(world.commit(), commit=True)
    if world.state is TransactionManagerState.ABORTABLE_ERROR:
        world.end(world.abort(), commit=False)
    return world


@settings(max_examples=model_examples(100), deadline=None)
@given(st.sampled_from([1, 2]), st.integers(0, 2**32))
def test_what_was_told_as_committed_is_committed_once_and_nothing_else_is(version: int, seed: int) -> None:
    world = play(version, seed)
    assert world.state is TransactionManagerState.READY
    assert world.joined.idle
    assert world.committed == world.promised
    while (request := world.oldest()) is not None:
        world.carry_out(request)
    # Nothing of what was aborted keeps memory.
    assert world.pool.available_bytes == world.pool.total_bytes
    assert world.committed == world.promised


@settings(max_examples=model_examples(100), deadline=None)
@given(st.sampled_from([1, 2]), st.integers(0, 2**32))
def test_without_faults_every_commit_is_told_as_done(version: int, seed: int) -> None:
    world = play(version, seed, faults=False)
    assert world.state is TransactionManagerState.READY
    assert world.committed == world.promised


def test_many_transactions_of_both_versions_end_both_ways() -> None:
    ends: set[tuple[int, bool]] = set()
    for version in (1, 2):
        for seed in range(20):
            world = play(version, seed)
            assert world.committed == world.promised
            ends |= {(version, ask.commit) for ask in world.asks if isinstance(ask, EndTxn)}
    assert ends == {(1, True), (1, False), (2, True), (2, False)}
