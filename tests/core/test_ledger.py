"""The tables of partitions: what each entry does to them, and what they refuse."""

import pytest
from penstock.daemon.ledger.entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    FrameEntry,
    GrantedEntry,
    ParkedEntry,
    PartitionEntry,
    SliceEntry,
    StampRowEntry,
)
from penstock.daemon.ledger.partition_state import Ledger, LedgerHole, LedgerPartition
from penstock.wire.messages import Anchor, BatchBounds, StampRow

ANCHOR = Anchor(100, 5, 6, 7)


def frame(*slices: tuple[int, int, int]) -> FrameEntry:
    """A frame of (partition, first, count) slices."""
    parts = [SliceEntry(partition, first, count, 1, 0, 10) for partition, first, count in slices]
    return FrameEntry(None, 0, 0, -1, 2, 1, sum(part.count for part in parts), None, parts)


def ledger_with(records: int) -> tuple[Ledger, LedgerPartition]:
    ledger = Ledger()
    ledger.apply(ledger.new_partition_entry("topic", b"", 3))
    ledger.apply(StampRowEntry(0, StampRow(9, 0, 0, 0), "new"))
    if records:
        ledger.apply(frame((0, 0, records)))
    return ledger, ledger.by_number[0]


def test_partitions_get_rising_numbers_and_are_found_by_place() -> None:
    ledger = Ledger()
    for index in (4, 2):
        ledger.apply(ledger.new_partition_entry("topic", b"id", index))
    assert ledger.by_topic_partition["topic", 4].number == 0
    assert ledger.by_topic_partition["topic", 2].number == 1
    with pytest.raises(AssertionError, match="has a number"):
        ledger.new_partition_entry("topic", b"id", 2)


def test_a_frame_moves_the_next_ordinal_of_each_of_its_partitions() -> None:
    ledger, state = ledger_with(0)
    ledger.apply(ledger.new_partition_entry("topic", b"", 4))
    ledger.apply(frame((0, 0, 5), (1, 0, 2)))
    ledger.apply(frame((0, 5, 1)))
    assert (state.next_ordinal, ledger.by_number[1].next_ordinal) == (6, 2)


@pytest.mark.parametrize("first", [4, 6])
def test_an_ordinal_is_neither_used_again_nor_passed_over(first: int) -> None:
    ledger, _ = ledger_with(5)
    with pytest.raises(AssertionError, match="whose next ordinal is 5"):
        ledger.apply(frame((0, first, 1)))


def test_an_acknowledgement_moves_the_mark_and_brings_the_anchor() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(AckedEntry(0, 4, ANCHOR, 90))
    ledger.apply(AckedEntry(0, 6, ANCHOR._replace(base_offset=104), -1))
    assert (state.mark, state.anchor, state.log_start) == (6, ANCHOR._replace(base_offset=104), 90)
    assert state.pending == 4


@pytest.mark.parametrize("mark", [3, 11])
def test_a_mark_goes_neither_back_nor_beyond_the_last_ordinal(mark: int) -> None:
    ledger, _ = ledger_with(10)
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    with pytest.raises(AssertionError, match="not within 4 and 10"):
        ledger.apply(AckedEntry(0, mark, ANCHOR, 0))


def test_parked_ordinals_at_the_mark_move_it() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(ParkedEntry(0, [(0, 3), (3, 1)], 10, "too large", "letter"))
    assert (state.mark, state.holes, state.pending) == (4, [], 6)


def test_parked_ordinals_beyond_the_mark_are_a_hole_that_the_mark_jumps_over() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(ParkedEntry(0, [(4, 2), (8, 1)], 10, "too large", "letter"))
    assert (state.mark, state.holes, state.pending) == (0, [LedgerHole(4, 2), LedgerHole(8, 1)], 7)
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    assert (state.mark, state.holes, state.pending) == (6, [LedgerHole(8, 1)], 3)
    ledger.apply(AckedEntry(0, 10, ANCHOR, 0))
    assert (state.mark, state.holes, state.pending) == (10, [], 0)


def test_neighbouring_holes_become_one() -> None:
    ledger, state = ledger_with(10)
    for first in (7, 3, 5):
        ledger.apply(ParkedEntry(0, [(first, 2)], 10, "too large", "letter"))
    assert state.holes == [LedgerHole(3, 6)]


@pytest.mark.parametrize(("first", "count"), [(3, 2), (9, 2), (5, 0)])
def test_only_pending_ordinals_are_parked(first: int, count: int) -> None:
    ledger, _ = ledger_with(10)
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    with pytest.raises(AssertionError):
        ledger.apply(ParkedEntry(0, [(first, count)], 10, "too large", "letter"))


def test_cuts_replace_each_other_and_go_when_the_mark_has_passed_them() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(BatchBoundsEntry(0, [BatchBounds(4, 3, 0), BatchBounds(0, 4, 0)], facts=True, unknown_through=None))
    assert state.batch_bounds == [BatchBounds(0, 4, 0), BatchBounds(4, 3, 0)]
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    assert state.batch_bounds == [BatchBounds(4, 3, 0)]
    ledger.apply(BatchBoundsEntry(0, [], facts=False, unknown_through=8))
    assert (state.batch_bounds, state.batch_bounds_are_facts, state.unknown_through) == ([], False, 8)
    ledger.apply(AckedEntry(0, 9, ANCHOR, 0))
    assert state.unknown_through is None


@pytest.mark.parametrize("cuts", [[BatchBounds(0, 4, 0), BatchBounds(3, 2, 0)], [BatchBounds(8, 3, 0)]])
def test_cuts_do_not_overlap_and_end_with_the_last_ordinal(cuts: list[BatchBounds]) -> None:
    ledger, _ = ledger_with(10)
    with pytest.raises(AssertionError):
        ledger.apply(BatchBoundsEntry(0, cuts, facts=True, unknown_through=None))


def test_the_row_in_force_is_the_last_that_begins_at_or_below_the_ordinal() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(StampRowEntry(0, StampRow(9, 1, 4, 4), "bump"))
    assert ledger.stamp_row_at(state, 3).epoch == 0
    assert ledger.stamp_row_at(state, 4).epoch == 1
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    assert [row.epoch for row in state.rows] == [1]


def test_a_row_replaces_those_that_begin_at_it_or_later() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(StampRowEntry(0, StampRow(9, 0, 6, 8), "hole"))
    ledger.apply(StampRowEntry(0, StampRow(9, 1, 2, 2), "bump"))
    assert state.rows == [StampRow(9, 0, 0, 0), StampRow(9, 1, 2, 2)]


def test_without_a_row_nothing_can_be_stamped() -> None:
    ledger = Ledger()
    ledger.apply(ledger.new_partition_entry("topic", b"", 0))
    with pytest.raises(AssertionError, match="no stamp row"):
        ledger.stamp_row_at(ledger.by_number[0], 0)


def test_a_row_below_the_mark_is_refused() -> None:
    ledger, _ = ledger_with(10)
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    with pytest.raises(AssertionError, match="below the mark"):
        ledger.apply(StampRowEntry(0, StampRow(9, 1, 3, 3), "bump"))


def test_another_producer_id_has_no_anchor_and_a_bump_keeps_it() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(AckedEntry(0, 4, ANCHOR, 0))
    ledger.apply(StampRowEntry(0, StampRow(9, 1, 4, 4), "bump"))
    assert state.anchor == ANCHOR
    ledger.apply(StampRowEntry(0, StampRow(10, 0, 4, 4), "new identity"))
    assert state.anchor is None


def test_leader_epochs_do_not_go_back_unless_the_topic_is_another() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(PartitionEntry(0, "topic", b"one", 3))
    ledger.apply(GrantedEntry(0, 1, 0, 2, 8))
    ledger.apply(AckedEntry(0, 4, ANCHOR, 3))
    with pytest.raises(AssertionError, match="after 8"):
        ledger.apply(GrantedEntry(0, 2, 0, 2, 7))
    ledger.apply(PartitionEntry(0, "topic", b"two", 3))
    assert (state.leader_epoch, state.anchor, state.log_start) == (-1, None, -1)
    ledger.apply(GrantedEntry(0, 2, 0, 2, 0))
    assert (state.generation, state.leader_epoch) == (2, 0)


def test_a_checkpoint_gives_all_tables_back_and_shares_nothing_with_them() -> None:
    ledger, state = ledger_with(10)
    ledger.apply(ParkedEntry(0, [(5, 2)], 10, "too large", "letter"))
    ledger.apply(BatchBoundsEntry(0, [BatchBounds(0, 4, 0)], facts=False, unknown_through=9))
    ledger.apply(AckedEntry(0, 2, ANCHOR, 1))
    restored = Ledger()
    checkpoint = CheckpointEntry(ledger.snapshot(), [])
    restored.apply(checkpoint)
    assert restored.snapshot() == ledger.snapshot()
    ledger.apply(AckedEntry(0, 10, ANCHOR, 1))
    assert restored.by_number[0].mark == 2
    assert checkpoint.partitions[0].mark == 2
    assert state.mark == 10
