"""When a record wakes the sender thread: never where the thread is going to look in time anyway, and else always."""

import pytest

from tests.fakes.front_world import TOPIC, FrontWorld

LINGER_S = 0.005


class Rounds(FrontWorld):
    """The thread's rounds; `due` is when it wants the next one."""

    due: float | None = None

    def go_round(self) -> int:
        """Returns how many chunks were sealed."""
        sealed = self.front.drain(self.now, all_chunks=False)
        self.due = self.front.next_deadline(self.now)
        return len(sealed)

    def sends(self) -> bool:
        """Whether a record woke the thread."""
        before = self.sender.wakes
        _ = self.send(TOPIC, b"v")
        return self.sender.wakes > before


def after_two_chunks() -> Rounds:
    """The second began soon after the first was sealed: records keep coming."""
    world = Rounds(linger_ms=5)
    for _ in range(2):
        world.now += 0.001
        assert world.sends()
        assert world.go_round() == 0
        assert world.due == pytest.approx(world.now + LINGER_S)
        world.now = world.due or 0.0
        assert world.go_round() == 1
    return world


def test_the_first_record_of_all_and_one_after_a_pause_wake_the_thread() -> None:
    world = Rounds(linger_ms=5)
    _ = world.go_round()
    assert world.due is None
    assert world.sends()
    world.now += LINGER_S
    assert world.go_round() == 1
    assert world.due is None
    world.now += 1.0
    assert world.sends()


def test_while_records_keep_coming_none_wakes_the_thread_and_each_is_sealed_in_time() -> None:
    world = after_two_chunks()
    for _ in range(20):
        assert world.due == pytest.approx(world.now + LINGER_S)
        began = world.now = world.now + 0.001
        assert not world.sends()
        # An answer comes, or the promised look: the chunk's own time is known from then on.
        world.now = began + 0.002
        assert world.go_round() == 0
        assert world.due == pytest.approx(began + LINGER_S)
        world.now = world.due or 0.0
        assert world.go_round() == 1


def test_a_chunk_that_begins_just_before_the_promised_look_does_not_linger_longer() -> None:
    world = after_two_chunks()
    promised = world.due
    assert promised is not None
    began = world.now = promised - 0.0001
    assert not world.sends()
    world.now = promised
    assert world.go_round() == 0
    assert world.due == pytest.approx(began + LINGER_S)


def test_when_records_stop_coming_the_thread_looks_once_more_and_then_sleeps_until_it_is_woken() -> None:
    world = after_two_chunks()
    world.now = world.due or 0.0
    assert world.go_round() == 0
    assert world.due is None
    assert world.sends()


def test_a_full_chunk_wakes_the_thread_even_while_it_is_going_to_look() -> None:
    world = after_two_chunks()
    world.now += 0.001
    assert not world.sends()
    before = world.sender.wakes
    _ = world.send(TOPIC, bytes(20_000))
    assert world.sender.wakes > before


def test_without_linger_every_first_record_wakes_the_thread() -> None:
    world = Rounds(linger_ms=0)
    for _ in range(5):
        world.now += 0.001
        assert world.sends()
        assert world.go_round() == 1
        assert world.due is None
