"""The clock by which records are counted into minutes."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.daemon.ledger.entries import FrameEntry
from penstock.daemon.sessions.staging import STEP_MS_MAX, AcceptClock

from .intake_world import World, facts, send

HOUR = STEP_MS_MAX
T = 1_763_781_600_000


def test_it_follows_a_clock_that_goes_on() -> None:
    clock = AcceptClock()
    assert [clock.read(wall) for wall in (T, T, T + 1, T + 10 * HOUR)] == [T, T, T + 1, T + 10 * HOUR]
    assert clock.steps_back == 0


def test_it_stands_still_while_the_wall_clock_is_behind_by_an_hour_at_most() -> None:
    clock = AcceptClock()
    assert clock.read(T) == T
    assert [clock.read(T - behind) for behind in (1, HOUR, 0)] == [T, T, T]
    assert clock.read(T + 1) == T + 1
    assert clock.steps_back == 0


def test_it_follows_a_larger_step_and_counts_it() -> None:
    clock = AcceptClock()
    clock.read(T)
    assert clock.read(T - HOUR - 1) == T - HOUR - 1
    assert clock.steps_back == 1
    assert clock.read(T - HOUR) == T - HOUR
    assert clock.read(T - 3 * HOUR) == T - 3 * HOUR
    assert clock.steps_back == 2


def test_small_steps_add_up_to_a_large_one() -> None:
    clock = AcceptClock()
    clock.read(T)
    half = HOUR // 2
    assert [clock.read(T - half), clock.read(T - 2 * half), clock.read(T - 3 * half)] == [T, T, T - 3 * half]
    assert clock.steps_back == 1


def test_it_goes_on_where_it_stood_in_an_earlier_life() -> None:
    clock = AcceptClock(T, 3)
    assert clock.read(T - 5) == T
    assert clock.read(T - 2 * HOUR) == T - 2 * HOUR
    assert clock.steps_back == 4


@given(st.lists(st.integers(0, 10 * HOUR), min_size=1))
def test_it_never_goes_back_but_with_a_step_and_is_never_ahead_by_more_than_an_hour(walls: list[int]) -> None:
    clock = AcceptClock()
    last = -1
    for wall in walls:
        steps = clock.steps_back
        told = clock.read(wall)
        assert wall <= told <= wall + HOUR
        assert told >= last if clock.steps_back == steps else told == wall < last - HOUR
        last = told


def test_frames_are_taken_at_its_time_and_records_without_one_are_stamped_by_the_wall_clock() -> None:
    w = World()
    w.topics.known["t"] = facts()
    session = w.connect("app")
    taken: list[int] = []
    stamps: list[int] = []
    for seq, wall_ms in enumerate((T, T - 60_000, T - 30_000, T - 2 * HOUR, T - HOUR)):
        w.intake.set_clock(100.0 + seq, wall_ms)
        assert w.offer(session, send(seq))
        (frame,) = [entry for entry in w.store.entries if isinstance(entry, FrameEntry)][seq:]
        taken.append(frame.wall_ms)
        stamps.append(frame.slices[0].max_ts)
        assert frame.era == (seq > 2)
    assert taken == [T, T, T, T - 2 * HOUR, T - HOUR]
    assert stamps == [T, T - 60_000, T - 30_000, T - 2 * HOUR, T - HOUR]
    assert (w.ledger.accept_ms, w.ledger.era) == (T - HOUR, 1)
