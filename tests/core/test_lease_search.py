"""Which batches are tried, and that one of them always tells where the log ends."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.leases.log_end_search import TRIALS_MAX, LogEndSearch
from penstock.wire.messages import BatchBounds


def trials(search: LogEndSearch, next_ordinal: int) -> list[tuple[int, int]]:
    """All of them, as bounds."""
    found = [search.trial[:2]]
    while search.next_trial(next_ordinal):
        found.append(search.trial[:2])
    return found


def test_one_record_after_the_other_then_batches_that_end_at_the_last() -> None:
    assert trials(LogEndSearch(5, 7, 0), 8) == [(5, 1), (6, 1), (7, 1), (6, 2), (5, 3)]


def test_a_newer_record_is_tried_before_the_batches() -> None:
    assert trials(LogEndSearch(5, 6, 0), 9) == [(5, 1), (6, 1), (7, 1), (5, 2)]


def test_a_range_of_one_is_one_trial() -> None:
    assert trials(LogEndSearch(5, 5, 3), 6) == [(5, 1)]
    assert LogEndSearch(5, 5, 3).trial == BatchBounds(5, 1, 3)


def test_what_is_left_out_is_not_tried_and_no_batch_crosses_it() -> None:
    assert trials(LogEndSearch(5, 9, 0, floor=8, left_out={7}), 10) == [(5, 1), (6, 1), (8, 1), (9, 1), (8, 2)]


def test_batches_are_no_larger_than_the_floor_allows() -> None:
    assert trials(LogEndSearch(0, 4, 0, floor=3), 5)[-2:] == [(4, 1), (3, 2)]


def test_a_search_has_an_end_whatever_the_range() -> None:
    assert len(trials(LogEndSearch(0, 1 << 40, 0), 1 << 41)) == TRIALS_MAX


@given(
    st.integers(0, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(0, 8),
    st.integers(0, 3),
)
def test_wherever_the_log_ends_some_trial_is_accepted_or_recognised(
    first: int, batches: list[int], written: int, newer: int
) -> None:
    ends = [first]
    for count in batches:
        ends.append(ends[-1] + count)
    log_end = ends[min(written, len(batches))]
    last = (ends[min(written, len(batches)) - 1], log_end) if written else None
    through = ends[-1] - 1

    def accepted(trial: tuple[int, int]) -> bool:
        begin, count = trial
        return begin == log_end or (begin, begin + count) == last

    tried = trials(LogEndSearch(first, through, 0), through + 1 + newer)
    taken = next(trial for trial in tried if accepted(trial))
    assert taken[0] + taken[1] >= log_end
