"""What a dead shard's journal and the spool say together (JRN-6)."""

from penstock.daemon.leases.batch_bounds import OpenBatches, from_journal_slots, overlay, stamp_row_at
from penstock.wire.journal import FREED, LIVE, JournalSlot
from penstock.wire.messages import BatchBounds, StampRow

ROWS = [StampRow(7, 0, 0, 0)]


def slot(serial: int, first: int, count: int, *, epoch: int = 0, generation: int = 1, state: int = LIVE) -> JournalSlot:
    return JournalSlot(serial, 3, generation, first, count, epoch, state, 7)


def cuts(*bounds: tuple[int, int], epoch: int = 0) -> list[BatchBounds]:
    return [BatchBounds(first, count, epoch) for first, count in bounds]


def test_live_slots_above_the_mark_count() -> None:
    slots = [slot(1, 0, 5), slot(2, 5, 5), slot(3, 10, 5), slot(4, 15, 5, state=FREED)]

    assert from_journal_slots(slots, [], ROWS, 5) == OpenBatches(cuts((5, 5), (10, 5)), certain=True)


def test_the_spools_cuts_stand_where_the_journal_says_nothing() -> None:
    assert from_journal_slots([slot(1, 5, 5)], cuts((5, 5), (10, 5)), ROWS, 5).bounds == cuts((5, 5), (10, 5))


def test_children_that_cover_their_parent_replace_it() -> None:
    slots = [slot(1, 0, 10), slot(2, 0, 4), slot(3, 4, 6)]

    assert from_journal_slots(slots, [], ROWS, 0).bounds == cuts((0, 4), (4, 6))


def test_children_that_do_not_cover_their_parent_were_never_sent() -> None:
    slots = [slot(1, 0, 10), slot(2, 0, 4)]

    assert from_journal_slots(slots, cuts((10, 5)), ROWS, 0) == OpenBatches(cuts((0, 10), (10, 5)), certain=True)


def test_children_whose_eldest_is_acknowledged_still_replace_their_parent() -> None:
    slots = [slot(1, 0, 10), slot(2, 0, 4, state=FREED), slot(3, 4, 6)]

    assert from_journal_slots(slots, [], ROWS, 4) == OpenBatches(cuts((4, 6)), certain=True)


def test_grandchildren_replace_a_child() -> None:
    slots = [slot(1, 0, 8), slot(2, 0, 4), slot(3, 4, 4), slot(4, 4, 2), slot(5, 6, 2)]

    assert from_journal_slots(slots, [], ROWS, 0).bounds == cuts((0, 4), (4, 2), (6, 2))


def test_a_later_holders_split_stands_above_an_earlier_holders_parent() -> None:
    slots = [slot(900, 0, 10), slot(1, 0, 4, generation=2), slot(2, 4, 6, generation=2)]

    assert from_journal_slots(slots, [], ROWS, 0).bounds == cuts((0, 4), (4, 6))


def test_slots_of_an_epoch_that_ended_do_not_count() -> None:
    rows = [StampRow(7, 1, 0, 0)]

    assert from_journal_slots([slot(1, 0, 5)], cuts((5, 5)), rows, 0) == OpenBatches([], certain=True)


def test_a_batch_half_below_the_mark_is_no_fact() -> None:
    assert not from_journal_slots([slot(1, 0, 10)], [], ROWS, 4).certain


def test_the_row_in_force_is_the_last_that_begins_at_or_before() -> None:
    rows = [StampRow(7, 0, 0, 0), StampRow(7, 1, 10, 10)]

    assert stamp_row_at(rows, 9) is rows[0]
    assert stamp_row_at(rows, 10) is rows[1]
    assert stamp_row_at([], 0) is None


def test_the_end_of_nothing_is_nothing() -> None:
    assert overlay([], ROWS, 0).end == 0
    assert overlay(cuts((3, 4)), ROWS, 0).end == 7
