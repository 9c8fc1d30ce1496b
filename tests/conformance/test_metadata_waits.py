"""Rows of waiting for metadata: what a wait costs in questions, how it ends, and in which words."""

import pytest
from penstock.producer.metadata.topic_waits import WaitFailure, WaitReason

from tests.conformance.metadata_world import FORBIDDEN, INVALID, LEADER_NOT_AVAILABLE, World, missing, told


def late(topic: str, waited_ms: int, cause: str | None = None) -> WaitFailure:
    return WaitFailure(WaitReason.TIMEOUT, f"Topic {topic} not present in metadata after {waited_ms} ms.", cause)


UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.row("H7")
def test_a_wait_costs_one_question_for_each_empty_answer_and_one_look_more() -> None:
    world = World()
    wait = world.begin("t")
    for _ in range(3):
        assert world.update() == []
    world.brokers["t"] = told("t", (1, 1))
    assert world.update() == [wait]
    assert wait.outcome == 1
    assert (world.requests, world.awaits, world.fetches) == (4, 4, 5)
    assert world.begin("t").outcome == 1, "the next record finds it known"
    assert (world.requests, world.awaits, world.fetches) == (4, 4, 6)
    assert world.begin("t", None).outcome == 1, "as does who asks for its partitions"
    assert (world.requests, world.awaits, world.fetches) == (4, 4, 7)


@pytest.mark.row("H8")
def test_a_topic_that_was_dropped_costs_its_next_record_one_question() -> None:
    world = World(idle_ms=60_000)
    world.brokers["t"] = told("t", (1, 1))
    world.cache.want("t", world.now)
    _ = world.update()
    assert world.begin("t").outcome == 1
    world.pass_ms(60_000)
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    _ = world.answer()
    # Nobody told the plan of the first record, so the topic is idle; its second one waits.
    world.wanted.clear()
    wait = world.begin("t")
    assert wait.outcome is None
    assert world.update() == [wait]
    assert wait.outcome == 1
    assert (world.requests, world.fetches) == (1, 3)


@pytest.mark.row("H9")
def test_a_wait_for_a_topic_that_does_not_exist_ends_with_the_answer_that_comes_too_late() -> None:
    world = World()
    wait = world.begin("t", max_block_ms=60_000)
    for _ in range(3):
        assert world.update() == []
    assert world.update(late_ms=70_000) == [wait]
    assert wait.outcome == late("t", 60_000, UNKNOWN)
    assert (world.requests, world.awaits, world.fetches) == (4, 4, 5)


@pytest.mark.row("H9")
def test_a_wait_for_a_partition_out_of_range_says_how_many_there_are() -> None:
    world = World()
    world.brokers["t"] = told("t", (1, 1))
    wait = world.begin("t", 2, max_block_ms=60_000)
    for _ in range(3):
        assert world.update() == []
    assert world.update(late_ms=70_000) == [wait]
    text = "Partition 2 of topic t with partition count 1 is not present in metadata after 60000 ms."
    assert wait.outcome == WaitFailure(WaitReason.TIMEOUT, text, None)
    assert (world.requests, world.awaits, world.fetches) == (4, 4, 5)


@pytest.mark.row("H10")
def test_a_partition_that_is_added_while_one_waits_for_it_ends_the_wait() -> None:
    world = World()
    world.brokers["t"] = told("t", (1, 1))
    world.cache.want("t", world.now)
    _ = world.update()
    wait = world.begin("t", 2)
    assert world.update() == []
    world.brokers["t"] = told("t", (1, 1), (1, 1), (1, 1))
    assert world.update() == [wait]
    assert wait.outcome == 3
    assert (world.requests, world.fetches) == (2, 3)


@pytest.mark.row("H11")
def test_a_topic_somebody_waits_for_is_not_idle_however_long_it_takes() -> None:
    world = World(idle_ms=60_000)
    wait = world.begin("t", max_block_ms=600_000)
    for _ in range(5):
        assert world.update() == []
        world.pass_ms(60_000)
        assert world.plan.is_wanted("t")
    world.brokers["t"] = told("t", (1, 1))
    assert world.update() == [wait]
    assert wait.outcome == 1


@pytest.mark.row("H11")
def test_a_time_out_names_the_last_error_of_the_topic() -> None:
    world = World()
    wait = world.begin("t", max_block_ms=30_000)
    while not world.update():
        world.pass_ms(1_000)
    assert wait.outcome == late("t", 30_000, UNKNOWN)
    world.brokers["u"] = missing("u", LEADER_NOT_AVAILABLE)
    wait = world.begin("u", max_block_ms=30_000)
    assert world.update() == []
    world.pass_ms(30_000)
    assert world.waits.expire(world.now) == [wait]
    assert wait.outcome == late("u", 30_000, "LEADER_NOT_AVAILABLE")


@pytest.mark.row("H11")
def test_a_topic_that_was_given_up_and_dropped_is_asked_for_again_when_somebody_wants_it() -> None:
    world = World(idle_ms=60_000)
    wait = world.begin("t", max_block_ms=30_000)
    assert world.update() == []
    world.pass_ms(60_000)
    assert world.waits.expire(world.now) == [wait]
    world.hand_over()
    world.pass_ms(60_000)
    _ = world.update()
    assert not world.plan.is_wanted("t")
    world.brokers["t"] = told("t", (1, 1))
    wait = world.begin("t")
    assert world.update() == [wait]
    assert wait.outcome == 1


@pytest.mark.row("H17")
def test_a_name_that_no_topic_may_have_fails_with_the_first_answer_and_then_without_any() -> None:
    world = World()
    world.brokers["topic abc"] = missing("topic abc", INVALID)
    wait = world.begin("topic abc")
    assert world.update() == [wait]
    expected = WaitFailure(WaitReason.INVALID_TOPIC, "Invalid topics: [topic abc]", "INVALID_TOPIC_EXCEPTION")
    assert wait.outcome == expected
    asked = world.requests
    assert world.begin("topic abc").outcome == expected
    world.hand_over()
    assert world.requests == asked
    assert world.wait_ms() == 300_000, "nobody asks again before its age"


@pytest.mark.row("J14")
def test_a_topic_we_may_not_write_to_is_said_once_for_each_answer_that_says_so() -> None:
    world = World()
    world.brokers["t"] = missing("t", FORBIDDEN)
    first, both = world.begin("t"), world.begin("t")
    assert world.update() == [first, both]
    expected = WaitFailure(WaitReason.FORBIDDEN, "Not authorized to access topics: [t]", "TOPIC_AUTHORIZATION_FAILED")
    assert (first.outcome, both.outcome) == (expected, expected)
    second = world.begin("t")
    assert second.outcome is None, "that was said; the permission may have been given since"
    assert world.waits.metadata_updated(world.now) == [], "it was no answer to this wait"
    world.brokers["t"] = told("t", (1, 1))
    assert world.update() == [second]
    assert second.outcome == 1


@pytest.mark.row("J14")
def test_an_answer_about_other_topics_says_nothing_of_an_earlier_refusal() -> None:
    world = World()
    world.brokers["t"] = missing("t", FORBIDDEN)
    first = world.begin("t")
    assert world.update() == [first]
    second = world.begin("t")
    other = world.begin("u")
    world.hand_over()
    assert world.wait_ms() == 0
    assert world.ask is not None
    _ = world.answer(told("u", (1, 1)))
    assert world.waits.metadata_updated(world.now) == [other]
    assert second.outcome is None


@pytest.mark.row("J14")
def test_an_error_that_passes_ends_no_wait() -> None:
    world = World()
    world.brokers["t"] = missing("t", LEADER_NOT_AVAILABLE)
    wait = world.begin("t")
    assert world.update() == []
    world.brokers["t"] = told("t", (1, 1))
    assert world.update() == [wait]
    assert wait.outcome == 1


@pytest.mark.row("J3")
@pytest.mark.parametrize("wait_ms", [0, 2_000])
def test_a_wait_ends_at_its_deadline_and_not_before(wait_ms: int) -> None:
    world = World()
    wait = world.begin("t", max_block_ms=wait_ms)
    if wait_ms:
        assert wait.outcome is None
        assert world.waits.next_deadline() == wait.deadline
        world.pass_ms(wait_ms - 1)
        assert world.waits.expire(world.now) == []
        world.pass_ms(1)
        assert world.waits.expire(world.now) == [wait]
    assert wait.outcome == late("t", wait_ms)
    assert world.waits.next_deadline() is None


@pytest.mark.row("J3")
def test_without_time_to_wait_what_is_known_works_and_what_is_not_is_asked_for_all_the_same() -> None:
    world = World()
    world.brokers["t"] = told("t", (1, 1))
    assert world.begin("t", max_block_ms=0).outcome == late("t", 0)
    _ = world.update()
    assert world.begin("t", max_block_ms=0).outcome == 1


@pytest.mark.row("J3")
def test_the_end_of_the_producer_releases_who_waits_and_lets_nobody_wait() -> None:
    world = World()
    wait = world.begin("t", max_block_ms=2**63 - 1)
    assert world.waits.close() == [wait]
    closed = WaitFailure(
        WaitReason.CLOSED, "Producer closed while send in progress", "Requested metadata update after close"
    )
    assert wait.outcome == closed
    assert world.begin("t").outcome == closed
    assert world.waits.next_deadline() is None


def test_a_cancelled_wait_is_told_of_nothing() -> None:
    world = World()
    world.brokers["t"] = told("t", (1, 1))
    wait = world.begin("t")
    world.waits.cancel(wait)
    assert world.update() == []
    assert wait.outcome is None
