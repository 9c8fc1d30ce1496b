"""Partitions for records that name none and have no key."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.producer.accumulator.partitioners import (
    PartitionChoices,
    PartitionLoadStats,
    QueueSize,
    StickyPartitioner,
    choose,
    partition_load_stats,
)


def drawn(*numbers: int) -> Callable[[], int]:
    rest: Iterator[int] = iter(numbers)
    return lambda: next(rest)


def test_a_sticky_partition_is_kept_until_twice_a_batch_has_gone_there() -> None:
    sticky = StickyPartitioner(1000, drawn(1, 2))
    sticky.update(PartitionChoices(4, (0, 1, 2, 3)))
    sticky.appended(1999)
    assert sticky.partition == 1
    sticky.appended(1)
    assert sticky.partition == 2


def test_a_sticky_partition_is_left_after_one_batch_when_all_batches_are_full() -> None:
    sticky = StickyPartitioner(1000, drawn(1, 2))
    sticky.update(PartitionChoices(4, (0, 1, 2, 3)))
    sticky.appended(999, all_batches_full=True)
    assert sticky.partition == 1
    sticky.appended(1, all_batches_full=True)
    assert sticky.partition == 2


def test_a_switch_counts_from_zero_even_to_the_same_partition() -> None:
    sticky = StickyPartitioner(1000, drawn(0, 0, 0))
    sticky.update(PartitionChoices(1, (0,)))
    sticky.appended(5000)
    sticky.appended(1999)
    assert sticky.partition == 0
    sticky.appended(1)  # a third draw, else `drawn` would still have one
    with pytest.raises(StopIteration):
        sticky.appended(5000)


def test_a_partition_without_a_leader_is_left_at_once_if_another_has_one() -> None:
    sticky = StickyPartitioner(1000, drawn(1, 0))
    sticky.update(PartitionChoices(3, ()))
    assert sticky.partition == 1
    sticky.update(PartitionChoices(3, (2,)))
    assert sticky.partition == 2


def test_news_that_change_nothing_leave_the_choice_alone() -> None:
    sticky = StickyPartitioner(1000, drawn(1))
    sticky.update(PartitionChoices(3, (0, 1, 2)))
    sticky.update(PartitionChoices(5, (0, 1, 2, 3, 4)))
    assert sticky.partition == 1


def test_a_batch_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="batch of 0 bytes"):
        StickyPartitioner(0, drawn())


def test_only_partitions_with_a_leader_are_chosen_while_there_is_one() -> None:
    assert [choose(PartitionChoices(6, (1, 4)), r) for r in range(4)] == [1, 4, 1, 4]
    assert [choose(PartitionChoices(3, ()), r) for r in range(4)] == [0, 1, 2, 0]


def test_the_table_of_loads_prefers_short_queues() -> None:
    table = partition_load_stats([QueueSize(7, 0), QueueSize(8, 3), QueueSize(9, 1)])
    assert table == PartitionLoadStats([7, 8, 9], [4, 5, 8])
    chosen = [choose(PartitionChoices(10, (7, 8, 9), table), r) for r in range(8)]
    assert chosen == [7, 7, 7, 7, 8, 9, 9, 9]


def test_an_excluded_partition_leaves_no_trace_in_its_neighbour() -> None:
    assert partition_load_stats(
        [QueueSize(0, 5, excluded=True), QueueSize(1, 0), QueueSize(2, 1)]
    ) == PartitionLoadStats([1, 2], [2, 3])


def test_the_table_is_used_for_one_left_over_but_not_for_equal_queues() -> None:
    assert partition_load_stats([QueueSize(0, 1), QueueSize(1, 1, excluded=True)]) == PartitionLoadStats([0], [1])
    assert partition_load_stats([QueueSize(0, 2), QueueSize(1, 2)]) is None
    assert partition_load_stats([QueueSize(0, 2)]) is None
    assert partition_load_stats([QueueSize(0, 2, excluded=True), QueueSize(1, 2, excluded=True)]) is None


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8), st.integers(0, (1 << 31) - 1))
def test_every_choice_by_load_is_one_of_the_table(sizes: list[int], random31: int) -> None:
    table = partition_load_stats([QueueSize(i, size) for i, size in enumerate(sizes)])
    if table is not None:
        assert choose(PartitionChoices(len(sizes), range(len(sizes)), table), random31) in range(len(sizes))
        assert table.sums[-1] == sum(max(sizes) + 1 - size for size in sizes)
