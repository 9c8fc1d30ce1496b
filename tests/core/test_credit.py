"""A session is stopped at its limit and read again at three quarters of it."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.sessions.flow_control import SessionCredit


def test_the_limit_stops_and_three_quarters_start_again() -> None:
    credit = SessionCredit(100, 1_000)
    credit.take(99, 1)
    assert not credit.exhausted
    credit.take(1, 1)
    assert credit.exhausted
    assert not credit.give(24, 1)
    assert credit.exhausted
    assert credit.give(1, 0)
    assert not credit.exhausted


def test_records_count_as_much_as_bytes() -> None:
    credit = SessionCredit(1_000_000, 4)
    credit.take(1, 4)
    assert credit.exhausted
    assert credit.give(1, 1)


def test_one_frame_may_lie_over_the_limit() -> None:
    credit = SessionCredit(100, 1_000)
    credit.take(5_000, 1)
    assert credit.exhausted
    assert credit.give(5_000, 1)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=60), st.randoms(use_true_random=False))
def test_it_is_exhausted_exactly_between_reaching_the_limit_and_falling_to_three_quarters(
    frames: list[tuple[int, int]], chance: object
) -> None:
    credit = SessionCredit(100, 10)
    held: list[tuple[int, int]] = []
    stopped = False
    for nbytes, records in frames:
        if held and chance.random() < 0.5:  # type: ignore[attr-defined]
            credit.give(*held.pop(0))
            low = credit.nbytes <= 75 and credit.records * 4 <= 30
            stopped = stopped and not low
        else:
            credit.take(nbytes, records)
            held.append((nbytes, records))
            stopped = stopped or credit.nbytes >= 100 or credit.records >= 10
        assert credit.exhausted is stopped
        assert (credit.nbytes, credit.records) == (sum(f[0] for f in held), sum(f[1] for f in held))
