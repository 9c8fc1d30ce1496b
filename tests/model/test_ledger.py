"""The tables of partitions against one flag per record: what was counted in comes out once."""

from enum import Enum, auto
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from penstock.daemon.ledger.entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    FrameEntry,
    IncarnationEntry,
    ParkedEntry,
    SliceEntry,
    StampRowEntry,
)
from penstock.daemon.ledger.partition_state import Ledger, LedgerPartition
from penstock.wire.messages import Anchor, BatchBounds, StampRow
from penstock.wire.record_ids import incarnation_at

from tests.harness.counts import model_examples

PARTITIONS = 2
partitions = st.integers(0, PARTITIONS - 1)
shares = st.floats(0, 1)


class Record(Enum):
    """Where a record is."""

    PENDING = auto()
    DELIVERED = auto()
    PARKED = auto()


class LedgerMachine(RuleBasedStateMachine):
    """Every record of every partition has one flag; the tables must say the same in short."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.records: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.stamps: list[dict[int, StampRow]] = [{} for _ in range(PARTITIONS)]
        self.incarnations: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """Of each record that was given out."""

    @initialize()
    def number(self) -> None:
        for index in range(PARTITIONS):
            self.ledger.apply(self.ledger.new_partition_entry("topic", b"", index))
            self.ledger.apply(StampRowEntry(index, StampRow(9, 0, 0, 0), "new"))
            self.stamps[index][0] = StampRow(9, 0, 0, 0)

    @rule(counts=st.lists(st.integers(1, 9), min_size=1, max_size=PARTITIONS))
    def take(self, counts: list[int]) -> None:
        parts: list[SliceEntry] = []
        for partition, count in enumerate(counts):
            parts.append(SliceEntry(partition, len(self.records[partition]), count, 1, 0, 10))
            self.records[partition] += [Record.PENDING] * count
            self.incarnations[partition] += [self.ledger.incarnation] * count
        self.ledger.apply(FrameEntry(None, 0, 0, -1, 2, 1, sum(counts), None, parts, self.ledger.incarnation))

    @rule(incarnation=st.integers(1, 5))
    def incarnate(self, incarnation: int) -> None:
        self.ledger.apply(IncarnationEntry(incarnation))

    @rule(partition=partitions, share=shares)
    def acknowledge(self, partition: int, share: float) -> None:
        state = self.state(partition)
        mark = state.mark + int((state.next_ordinal - state.mark) * share)
        for at in range(state.mark, mark):
            if self.records[partition][at] is Record.PENDING:
                self.records[partition][at] = Record.DELIVERED
        self.ledger.apply(AckedEntry(partition, mark, Anchor(mark, 1, 1, 1), 0))

    @rule(partition=partitions, ranges=st.lists(st.tuples(shares, st.integers(1, 6)), min_size=1, max_size=3))
    def park(self, partition: int, ranges: list[tuple[float, int]]) -> None:
        state = self.state(partition)
        parked: list[tuple[int, int]] = []
        for share, wanted in ranges:
            first = state.mark + int((state.next_ordinal - state.mark) * share)
            count = min(wanted, state.next_ordinal - first)
            if count:
                parked.append((first, count))
                for at in range(first, first + count):
                    self.records[partition][at] = Record.PARKED
        self.ledger.apply(ParkedEntry(partition, parked, 10, "too large", "letter"))

    @rule(partition=partitions, share=shares, epoch=st.integers(0, 5))
    def stamp(self, partition: int, share: float, epoch: int) -> None:
        state = self.state(partition)
        start = state.mark + int((state.next_ordinal - state.mark) * share)
        row = StampRow(9, epoch, start, start)
        self.stamps[partition] = {at: known for at, known in self.stamps[partition].items() if at < start}
        self.stamps[partition][start] = row
        self.ledger.apply(StampRowEntry(partition, row, "bump"))

    @rule(partition=partitions, share=shares, counts=st.lists(st.integers(1, 4), max_size=5))
    def return_cuts(self, partition: int, share: float, counts: list[int]) -> None:
        state = self.state(partition)
        at = state.mark + int((state.next_ordinal - state.mark) * share)
        cuts: list[BatchBounds] = []
        for count in counts:
            if at + count <= state.next_ordinal:
                cuts.append(BatchBounds(at, count, 0))
                at += count
        self.ledger.apply(BatchBoundsEntry(partition, cuts, facts=True, unknown_through=None))

    @rule()
    def start_again(self) -> None:
        checkpoint = CheckpointEntry(self.ledger.snapshot(), [], self.ledger.incarnation)
        self.ledger = Ledger()
        self.ledger.apply(checkpoint)

    @invariant()
    def every_record_is_counted_once(self) -> None:
        for partition, records in enumerate(self.records):
            if partition not in self.ledger.by_number:
                continue
            state = self.state(partition)
            state.assert_consistent()
            assert state.next_ordinal == len(records)
            pending = [at for at, record in enumerate(records) if record is Record.PENDING]
            assert state.pending == len(pending)
            assert all(at >= state.mark for at in pending)
            assert state.mark == len(records) or records[state.mark] is Record.PENDING
            holes = [at for hole in state.holes for at in range(hole.first, hole.end)]
            assert holes == [at for at in range(state.mark, len(records)) if records[at] is Record.PARKED]

    @invariant()
    def every_pending_record_has_the_stamp_it_was_given(self) -> None:
        for partition, stamps in enumerate(self.stamps):
            if partition in self.ledger.by_number:
                state = self.state(partition)
                for at in range(state.mark, state.next_ordinal):
                    assert self.ledger.stamp_row_at(state, at) == stamps[max(start for start in stamps if start <= at)]

    @invariant()
    def every_pending_record_keeps_the_incarnation_it_was_given_out_under(self) -> None:
        for state in self.ledger.by_number.values():
            given = self.incarnations[state.number]
            told = [incarnation_at(state.id_rows, at) or 0 for at in range(state.mark, state.next_ordinal)]
            assert told == given[state.mark :]
            assert (incarnation_at(state.id_rows, state.next_ordinal) or 0) == self.ledger.incarnation
            assert sum(row.start <= state.mark for row in state.id_rows) <= 1
            assert all(row.incarnation != after.incarnation for row, after in pairwise(state.id_rows))

    def state(self, partition: int) -> LedgerPartition:
        return self.ledger.by_number[partition]


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=model_examples(100), stateful_step_count=40, deadline=None)
