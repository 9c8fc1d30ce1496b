"""The one backoff formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.producer.protocol.backoff import Backoff

_MIDDLE = 0.5


def test_without_luck_the_wait_doubles_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 0.4)
    waits = [backoff.wait_s(attempts, _MIDDLE) for attempts in range(5)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.4])


def test_chance_spreads_a_wait_by_a_fifth_to_either_side() -> None:
    backoff = Backoff(1.0, 100.0)
    assert backoff.wait_s(2, 0.0) == pytest.approx(3.2)
    assert backoff.wait_s(2, 0.999_999_9) == pytest.approx(4.8)


def test_the_cap_holds_after_the_jitter() -> None:
    assert Backoff(0.1, 1.0).wait_s(20, 0.999) == 1.0


def test_a_cap_at_or_below_the_first_wait_makes_all_waits_equal() -> None:
    backoff = Backoff(5.0, 2.0)
    assert {backoff.wait_s(attempts, _MIDDLE) for attempts in range(8)} == {2.0}


@given(
    st.floats(0.001, 100),
    st.floats(0.001, 1000),
    st.integers(0, 10_000),
    st.floats(0, 1, exclude_max=True),
)
def test_no_wait_is_ever_beyond_the_cap_or_below_the_first_less_its_jitter(
    initial: float, longest: float, attempts: int, chance: float
) -> None:
    wait = Backoff(initial, longest).wait_s(attempts, chance)
    assert min(initial, longest) * 0.8 - 1e-9 <= wait <= longest


@pytest.mark.parametrize(("attempts", "chance"), [(-1, 0.5), (0, 1.0), (0, -0.1)])
def test_arguments_out_of_range_are_a_bug_of_the_caller(attempts: int, chance: float) -> None:
    with pytest.raises(AssertionError):
        _ = Backoff(1.0, 2.0).wait_s(attempts, chance)
