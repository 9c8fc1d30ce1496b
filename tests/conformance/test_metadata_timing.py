"""Rows of metadata: when it is asked for, what of it, and what is not asked for any more."""

import pytest
from penstock.producer.metadata.cache import MetadataMerged

from tests.conformance.metadata_world import World, missing, told


@pytest.mark.row("J1")
@pytest.mark.parametrize(("backoff_ms", "age_ms"), [(100, 1000), (1000, 100), (0, 0), (0, 100), (100, 0)])
def test_metadata_is_asked_for_at_its_age_or_when_wanted_but_never_before_the_backoff(
    backoff_ms: int, age_ms: int
) -> None:
    world = World(backoff_ms=backoff_ms, backoff_max_ms=max(backoff_ms, 1), age_ms=age_ms, joined=False)
    assert world.wait_ms() == 0
    _ = world.answer()
    assert world.ask_and_answer() == max(backoff_ms, age_ms)
    world.plan.refresh(world.now)
    assert world.ask_and_answer() == backoff_ms
    world.pass_ms(max(backoff_ms, age_ms))
    world.plan.refresh(world.now)
    assert world.wait_ms() == 0


@pytest.mark.row("J2")
@pytest.mark.parametrize(("chance", "waits"), [(0.0, [80, 160, 320]), (0.5, [100, 200, 400]), (0.999, [120, 240, 480])])
def test_after_a_failure_even_what_somebody_requests_waits_for_the_backoff(chance: float, waits: list[int]) -> None:
    world = World()
    world.chance = chance
    world.cache.want("t", world.now)
    assert world.wait_ms() == 0
    for expected in waits:
        world.lose()
        world.plan.refresh(world.now)
        world.plan.request("t", world.now)
        assert world.wait_ms() == expected


@pytest.mark.row("J2")
def test_an_answer_without_brokers_is_a_failure() -> None:
    world = World()
    world.plan.refresh(world.now)
    before = world.wait_ms()
    assert not isinstance(world.answer(brokers=[]), MetadataMerged)
    assert (before, world.wait_ms()) == (100, 100)


@pytest.mark.row("J2")
def test_a_failure_that_is_over_leaves_the_first_backoff_for_the_next_one() -> None:
    world = World()
    for _ in range(2):
        world.plan.refresh(world.now)
        _ = world.wait_ms()
        world.lose()
        assert world.wait_ms() == 100
        _ = world.answer()
        world.pass_ms(60_000)


@pytest.mark.row("J2")
def test_nothing_stands_in_the_way_of_the_first_question() -> None:
    assert World(joined=False).wait_ms() == 0


@pytest.mark.row("J4")
def test_who_asks_again_and_again_and_learns_nothing_asks_less_and_less_often() -> None:
    world = World()
    world.cache.want("t", world.now)
    assert world.ask_and_answer(told("t", (1, 1))) == 0
    waits: list[int] = []
    for _ in range(7):
        world.plan.refresh(world.now)
        waits.append(world.ask_and_answer(told("t", (1, 1))))
    assert waits == [100, 100, 200, 400, 800, 1000, 1000]
    world.plan.refresh(world.now)
    assert world.ask_and_answer(told("t", (2, 2))) == 1000
    world.plan.refresh(world.now)
    assert world.wait_ms() == 100, "something was learnt"


@pytest.mark.row("J4")
def test_a_failure_begins_that_count_anew() -> None:
    world = World()
    for _ in range(5):
        world.plan.refresh(world.now)
        _ = world.ask_and_answer()
    _ = world.wait_ms()
    world.lose()
    assert world.ask_and_answer() == 100
    world.plan.refresh(world.now)
    assert world.ask_and_answer() == 100


@pytest.mark.row("J4")
def test_answers_that_were_due_by_age_slow_nothing_down() -> None:
    world = World(age_ms=5_000)
    for _ in range(5):
        assert world.ask_and_answer() == 5_000
    world.plan.refresh(world.now)
    assert world.wait_ms() == 100


@pytest.mark.row("J5")
def test_a_new_topic_is_asked_for_at_once_and_a_known_one_is_not() -> None:
    world = World(age_ms=1_000)
    world.cache.want("t", world.now)
    assert world.ask_and_answer(told("t", (1, 1))) == 0
    world.cache.want("t", world.now)
    assert world.ask_and_answer(told("t", (1, 1))) == 1_000
    world.cache.want("u", world.now)
    assert world.wait_ms() == 0


@pytest.mark.row("J5")
def test_a_new_topic_does_not_wait_for_the_failures_of_others() -> None:
    world = World()
    world.cache.want("t", world.now)
    for _ in range(5):
        _ = world.wait_ms()
        world.lose()
    world.cache.want("u", world.now)
    assert world.wait_ms() == 0


@pytest.mark.row("J6")
def test_a_topic_that_nobody_uses_is_dropped_by_the_next_answer() -> None:
    world = World(idle_ms=60_000, age_ms=30_000)
    world.cache.want("t", world.now)
    assert world.ask_and_answer(told("t", (1, 1))) == 0
    assert world.ask_and_answer(told("t", (1, 1))) == 30_000
    assert world.wait_ms() == 30_000
    taken = world.answer(told("t", (1, 1)))
    assert isinstance(taken, MetadataMerged)
    assert taken.change.topics_dropped == ("t",)
    assert world.cache.topic("t") is None
    assert world.ask_and_answer() == 30_000
    assert not world.plan.is_wanted("t")


@pytest.mark.row("J6")
def test_a_topic_that_is_used_every_half_minute_stays() -> None:
    world = World(idle_ms=60_000, age_ms=30_000)
    for _ in range(10):
        world.cache.want("t", world.now)
        _ = world.ask_and_answer(told("t", (1, 1)))
    assert world.cache.topic("t") is not None


@pytest.mark.row("J6")
def test_a_topic_that_is_used_elsewhere_stays_and_its_idle_time_begins_when_that_ends() -> None:
    world = World(idle_ms=60_000, age_ms=50_000)
    world.cache.want("t", world.now)
    world.used = {"t"}
    for _ in range(5):
        _ = world.ask_and_answer(told("t", (1, 1)))
    world.used = set()
    _ = world.ask_and_answer(told("t", (1, 1)))
    assert world.cache.topic("t") is not None
    _ = world.ask_and_answer(told("t", (1, 1)))
    assert world.cache.topic("t") is None


@pytest.mark.row("J6")
def test_a_topic_whose_first_metadata_has_not_come_is_not_idle_however_old() -> None:
    world = World(idle_ms=60_000)
    world.cache.want("t", world.now)
    _ = world.wait_ms()
    world.cache.want("u", world.now)
    world.pass_ms(120_000)
    _ = world.answer(told("t", (1, 1)))
    assert world.cache.topic("t") is None
    assert world.plan.is_wanted("u")
    world.cache.want("u", world.now)
    assert world.ask_and_answer(told("u", (1, 1))) == 0
    assert world.cache.topic("u") is not None


@pytest.mark.row("F8")
def test_a_topic_sent_to_again_after_it_was_dropped_is_learnt_again() -> None:
    world = World(idle_ms=60_000)
    world.brokers["t"] = told("t", (1, 1))
    first = world.begin("t")
    assert world.update() == [first]
    assert first.outcome == 1
    world.pass_ms(60_000)
    world.plan.refresh(world.now)
    _ = world.update()
    assert world.cache.topic("t") is None
    second = world.begin("t")
    assert second.outcome is None
    assert world.update() == [second]
    assert second.outcome == 1


@pytest.mark.row("J7")
def test_only_new_topics_are_asked_for_until_everything_is_wanted() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 1)))
    world.cache.want("u", world.now)
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("u",)
    assert not world.ask.full
    _ = world.answer(told("u", (2, 1)))
    assert world.leader("t") == (1, 1)
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("t", "u")


@pytest.mark.row("J7")
def test_a_request_for_a_topic_is_for_it_alone_while_it_is_new_and_for_all_later() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 1)))
    world.plan.request("u", world.now)
    world.plan.request("u", world.now)
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("u",)
    _ = world.answer(told("u", (1, 1)))
    world.plan.request("u", world.now)
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("t", "u")


@pytest.mark.row("J7")
def test_an_answer_to_an_older_question_keeps_what_was_wanted_since() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.wait_ms()
    world.cache.want("u", world.now)
    _ = world.answer(told("t", (1, 1)))
    assert world.wait_ms() == 0
    assert world.ask is not None
    assert world.ask.topics == ("u",)
    world.plan.refresh(world.now)
    _ = world.answer(told("u", (1, 1)))
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("t", "u"), "a partial answer is none to the wish for everything"


@pytest.mark.row("J7")
def test_a_lost_question_for_everything_is_asked_for_everything_again() -> None:
    world = World()
    for topic in ("t", "u"):
        world.cache.want(topic, world.now)
    _ = world.ask_and_answer(told("t", (1, 1)), told("u", (1, 1)))
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    world.lose()
    world.cache.want("v", world.now)
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("t", "u", "v")


def test_a_round_over_many_topics_that_loses_its_last_question_begins_again() -> None:
    world = World()
    names = [f"t{number:04}" for number in range(1_500)]
    for name in names:
        world.cache.want(name, world.now)
    for _ in range(2):
        _ = world.wait_ms()
        assert world.ask is not None
        _ = world.answer(*(told(name, (1, 1)) for name in world.ask.topics))
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    sizes: list[int] = []
    for lost in (False, True, False, False):
        assert world.ask is not None
        sizes.append(len(world.ask.topics))
        if lost:
            world.lose()
        else:
            _ = world.answer(*(told(name, (1, 2)) for name in world.ask.topics))
        _ = world.wait_ms()
    assert sizes == [1_000, 500, 1_000, 500]


def test_a_topic_without_leader_is_asked_for_again_without_the_others() -> None:
    world = World()
    for topic in ("t", "u"):
        world.cache.want(topic, world.now)
    _ = world.ask_and_answer(told("t", (1, 1)), missing("u"))
    assert world.wait_ms() == 100
    assert world.ask is not None
    assert world.ask.topics == ("u",)
