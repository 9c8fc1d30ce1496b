"""How slices end, whatever batches and parked records they are made of."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.leases.backlog import Backlog, BatchAck, DeadLetterRange
from penstock.daemon.ledger.entries import Lsn
from penstock.daemon.ledger.slices import PendingSlice, SliceEnded
from penstock.wire.frames import Run

from tests.fakes.lease_desk import a_frame


def a_slice(first: int, count: int) -> PendingSlice:
    return PendingSlice(3, first, count, 1, 0, 100, 0, 0, Lsn(1), a_frame(count))


def filled(*counts: int, mark: int = 0) -> Backlog:
    backlog, first = Backlog(5, mark), 0
    for count in counts:
        backlog.push(a_slice(first, count))
        first += count
    return backlog


def offsets(ended: list[SliceEnded]) -> list[list[tuple[int, int]]]:
    return [[(run.offset, run.count) for run in one.runs] for one in ended]


def test_one_batch_over_several_slices_ends_them_all() -> None:
    backlog = filled(3, 4, 5)

    ended = backlog.advance(12, BatchAck(0, 12, 100, 77))

    assert offsets(ended) == [[(100, 3)], [(103, 4)], [(107, 5)]]
    assert ended[0].runs == [Run(5, 100, 3, 77)]
    assert not backlog.unresolved
    assert not backlog.waiting


def test_a_slice_in_two_batches_ends_with_the_second() -> None:
    backlog = filled(10)

    assert backlog.advance(4, BatchAck(0, 4, 100, -1)) == []
    assert offsets(backlog.advance(10, BatchAck(4, 6, 300, -1))) == [[(100, 4), (300, 6)]]


def test_what_is_older_than_the_batch_has_no_offset() -> None:
    assert offsets(filled(4, 4).advance(8, BatchAck(6, 2, 50, -1))) == [[(-1, 4)], [(-1, 2), (50, 2)]]


def test_an_answer_without_an_offset_gives_none() -> None:
    assert offsets(filled(4).advance(4, BatchAck(0, 4, -1, -1))) == [[(-1, 4)]]


def test_a_slice_recovered_in_the_middle_has_no_offsets_for_its_first_part() -> None:
    assert offsets(filled(10, mark=6).advance(10, BatchAck(6, 4, 900, -1))) == [[(-1, 6), (900, 4)]]


def test_parked_records_have_words_instead_of_offsets() -> None:
    backlog = filled(10)
    backlog.add_dead_lettered([DeadLetterRange(3, 2, "no"), DeadLetterRange(8, 2, "never")])

    backlog.advance(3, BatchAck(0, 3, 0, -1))
    backlog.advance(8, BatchAck(5, 3, 3, -1))
    ended = backlog.advance(10, None)

    assert offsets(ended) == [[(0, 3), (3, 3)]]
    assert ended[0].parked == [(3, 2, "no"), (8, 2, "never")]


def test_a_parked_piece_over_two_slices_belongs_to_both() -> None:
    backlog = filled(4, 4)
    backlog.add_dead_lettered([DeadLetterRange(2, 4, "no")])

    backlog.advance(2, BatchAck(0, 2, 0, -1))
    ended = backlog.advance(6, None) + backlog.advance(8, BatchAck(6, 2, 2, -1))

    assert [one.parked for one in ended] == [[(2, 2, "no")], [(0, 2, "no")]]
    assert offsets(ended) == [[(0, 2)], [(2, 2)]]


def test_rewinding_hands_everything_unresolved_out_again() -> None:
    backlog = filled(2, 2, 2)
    backlog.waiting.clear()
    backlog.advance(2, BatchAck(0, 2, 0, -1))

    backlog.rewind()

    assert [piece.first for piece in backlog.waiting] == [2, 4]


@given(st.data())
def test_every_record_is_told_exactly_once(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    total = sum(counts)
    backlog = filled(*counts)
    parked = data.draw(st.sets(st.integers(0, total - 1)))
    backlog.add_dead_lettered([DeadLetterRange(ordinal, 1, str(ordinal)) for ordinal in parked])
    ended: list[SliceEnded] = []
    at = 0
    while at < total:
        end = data.draw(st.integers(at + 1, total))
        first = data.draw(st.integers(at, end - 1))
        known = not any(first <= ordinal < end for ordinal in parked)
        ended += backlog.advance(end, BatchAck(first, end - first, 1_000 + first, -1) if known else None)
        at = end

    assert [one.slice.count for one in ended] == counts
    for one in ended:
        told = sum(run.count for run in one.runs) + sum(count for _, count, _ in one.parked)
        assert told == one.slice.count
        place = {one.slice.first + index for index, count, _ in one.parked for index in range(index, index + count)}
        assert place == {ordinal for ordinal in parked if one.slice.first <= ordinal < one.slice.end}
        rest = iter(sorted(set(range(one.slice.first, one.slice.end)) - place))
        for run in one.runs:
            ordinals = [next(rest) for _ in range(run.count)]
            assert run.offset == -1 or [run.offset + i for i in range(run.count)] == [1_000 + o for o in ordinals]
