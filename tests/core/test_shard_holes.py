"""Parked records inside slices: left out of batches, whatever slices and holes cut through."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.wire.messages import BatchBounds, StampRow, holes_between

from tests.fakes.shard_bench import PRODUCER_ID, ShardBench


def rows(holes: list[tuple[int, int]]) -> list[StampRow]:
    """As the router writes them: one behind every hole."""
    found, base = [StampRow(PRODUCER_ID, 1, 0, 0)], 0
    for first, end in holes:
        base += end - first
        found.append(StampRow(PRODUCER_ID, 1, end, base))
    return found


def test_a_hole_lies_before_a_later_row_of_the_same_epoch() -> None:
    assert holes_between([StampRow(7, 1, 0, 0), StampRow(7, 1, 18, 1), StampRow(7, 2, 40, 40)]) == [(17, 18)]
    assert holes_between([]) == []


def test_a_record_left_out_in_the_middle_of_a_slice_is_not_sent_and_sequences_have_no_gap() -> None:
    bench = ShardBench()
    bench.grant(rows=rows([(3, 4)]))
    bench.put(0, 10)
    bench.run()

    assert bench.ordinals() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    kept = bench.log().states[PRODUCER_ID]
    assert kept.last_sequence == 8


def test_a_batch_behind_a_hole_is_made_anew_with_the_same_bounds() -> None:
    bench = ShardBench()
    bench.grant(rows=rows([(3, 5)]), cuts=[BatchBounds(0, 3, 1), BatchBounds(5, 3, 1)])
    bench.put(0, 10)
    bench.run()

    assert bench.ordinals() == [0, 1, 2, 5, 6, 7, 8, 9]
    assert bench.log().batches == [3, 3, 2]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sets(st.integers(1, 30), max_size=8))
def test_whatever_is_left_out_the_rest_is_sent_in_order(counts: list[int], left_out: set[int]) -> None:
    total = sum(counts)
    holes: list[tuple[int, int]] = []
    for ordinal in sorted(ordinal for ordinal in left_out if ordinal < total):
        if holes and holes[-1][1] == ordinal:
            holes[-1] = (holes[-1][0], ordinal + 1)
        else:
            holes.append((ordinal, ordinal + 1))
    bench = ShardBench()
    bench.grant(rows=rows(holes))
    for count in counts:
        bench.put(0, count)
    bench.run()

    assert bench.ordinals() == [ordinal for ordinal in range(total) if ordinal not in left_out]
