"""Faults of other clients' metadata, which must not be ours: stale or torn maps, hot loops, and no way back to the cluster."""

import pytest
from penstock.producer.metadata.cache import MetadataMerged, MetadataRejected, RebootstrapRequested
from penstock.producer.metadata.cluster import BrokerAddress
from penstock.producer.metadata.refresh import BOOTSTRAP, BrokerTarget

from tests.conformance.metadata_world import ONE, SEED, TWO, World, missing, told

SENT_BACK = 129


def test_an_older_epoch_never_overwrites_a_newer_one() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (2, 8)))
    for epoch in (7, 0, 7):
        world.plan.refresh(world.now)
        _ = world.ask_and_answer(told("t", (1, epoch)))
        assert world.leader() == (2, 8)


def test_a_partial_answer_does_not_replace_the_whole_map() -> None:
    world = World()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        world.cache.want(name, world.now)
    _ = world.ask_and_answer(*(told(name, (1, 4)) for name in names))
    world.cache.want("new", world.now)
    _ = world.wait_ms()
    assert world.ask is not None
    assert world.ask.topics == ("new",)
    _ = world.answer(told("new", (2, 1)))
    assert [world.leader(name) for name in names] == [(1, 4)] * 20
    assert world.leader("new") == (2, 1)


@pytest.mark.fault("K3")
def test_a_leader_that_is_in_no_list_of_brokers_makes_no_loop_and_is_found_when_it_is_back() -> None:
    world = World()
    world.cache.want("t", world.now)
    nine = BrokerAddress(9, "broker-9", 9092, "")
    began, asked = world.now, 0
    while world.now < began + 60:
        # Fails if the loop would not rest.
        _ = world.ask_and_answer(told("t", (9, 5)))
        asked += 1
        assert world.leader() == (-1, 5)
    assert asked < 75
    _ = world.wait_ms()
    _ = world.answer(told("t", (9, 5)), brokers=[ONE, nine])
    assert world.leader() == (9, 5)
    assert world.now < began + 63


def test_the_end_of_a_broker_is_looked_into_for_topics_the_answer_did_not_speak_of() -> None:
    world = World()
    for topic in ("t", "u"):
        world.cache.want(topic, world.now)
    _ = world.ask_and_answer(told("t", (2, 5)), told("u", (1, 5)))
    world.cache.want("v", world.now)
    _ = world.wait_ms()
    _ = world.answer(told("v", (1, 1)), brokers=[ONE])
    assert world.leader("t") == (-1, 5)
    assert world.wait_ms() == 100
    assert world.ask is not None
    assert "t" in world.ask.topics


def test_brokers_that_point_at_each_other_with_an_old_epoch_make_no_hot_loop() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 5)))
    asked = 0
    for turn in range(10_000):
        assert not world.cache.apply_leader_hint("t", 0, 1 + turn % 2, 5, None, world.now)
        world.pass_ms(1)
        if world.asks() is not None:
            _ = world.answer(told("t", (1, 5)))
            asked += 1
    assert world.leader() == (1, 5)
    assert asked <= 14, "10 s: 100, 100, 200, 400, 800 ms, then every second"


def test_metadata_that_is_stale_is_asked_for_until_it_is_not_and_does_not_wait_for_its_age() -> None:
    world = World()
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 5)))
    world.plan.refresh(world.now)
    moved_at = world.now + 20
    while world.leader() == (1, 5):
        _ = world.wait_ms()
        _ = world.answer(told("t", (2, 6) if world.now >= moved_at else (1, 5)))
    assert world.now <= moved_at + 1.0
    assert world.leader() == (2, 6)


def test_a_broker_that_drops_us_at_every_question_is_not_asked_in_a_loop() -> None:
    world = World()
    world.cache.want("t", world.now)
    began, asked = world.now, 0
    while world.now < began + 30:
        _ = world.wait_ms()
        world.lose()
        world.plan.connection_failed(world.now, world.chance)
        asked += 1
    assert asked < 45


# --- back to the bootstrap addresses ---------------------------------------------------------------------------------


def fail_until(world: World, end: float) -> list[BrokerTarget]:
    """No connection comes to be. Who was tried."""
    tried: list[BrokerTarget] = []
    while world.now < end:
        target = world.connect()
        if target is not None:
            tried.append(target)
            world.plan.connection_failed(world.now, world.chance)
        else:
            at = world.plan.next_deadline(connected=False)
            assert at is not None
            assert at > world.now, "the loop would not rest"
            world.now = at
    return tried


@pytest.mark.row("I27")
def test_when_every_known_node_is_dead_the_bootstrap_addresses_are_tried_again() -> None:
    world = World()
    tried = fail_until(world, world.now + 10)
    assert {target.node for target in tried[:3]} == {1, 2, 3}
    assert BrokerTarget(BOOTSTRAP, *SEED) in tried
    assert len(tried) < 4 * 20


@pytest.mark.row("I27")
def test_without_the_recovery_the_known_nodes_are_tried_for_ever() -> None:
    world = World(rebootstrap_ms=None)
    tried = fail_until(world, world.now + 400)
    assert {target.node for target in tried} == {1, 2, 3}


@pytest.mark.row("I27")
def test_after_five_minutes_without_an_answer_only_the_bootstrap_addresses_count() -> None:
    world = World()
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    began = world.now
    # Nodes can be connected with, but answer nothing: their requests time out.
    while world.plan.current is None or world.plan.current.node != BOOTSTRAP or world.now < began + 300:
        if world.ask is not None:
            world.pass_ms(10_000)
            world.lose()
            world.plan.connection_failed(world.now, world.chance)
        _ = world.wait_ms()
    assert 300 < world.now - began < 312
    tried_after = [world.plan.current]
    world.lose()
    world.plan.connection_failed(world.now, world.chance)
    tried_after += fail_until(world, world.now + 20)
    assert {target.node for target in tried_after} == {BOOTSTRAP}, "the nodes known before are none any more"
    _ = world.wait_ms()
    taken = world.answer(brokers=[TWO])
    assert isinstance(taken, MetadataMerged)
    assert taken.reconnect
    assert world.connect() == BrokerTarget(2, TWO.host, TWO.port)


@pytest.mark.row("I27")
@pytest.mark.parametrize(("rebootstrap_ms", "expected"), [(300_000, RebootstrapRequested), (None, MetadataRejected)])
def test_a_broker_may_send_us_back_to_the_bootstrap_addresses_unless_the_settings_forbid_it(
    rebootstrap_ms: int | None, expected: type
) -> None:
    world = World(rebootstrap_ms=rebootstrap_ms)
    world.cache.want("t", world.now)
    _ = world.ask_and_answer(told("t", (1, 5)))
    world.plan.refresh(world.now)
    _ = world.wait_ms()
    assert isinstance(world.answer(code=SENT_BACK), expected)
    assert (world.plan.current is None) is (expected is RebootstrapRequested)
    if expected is RebootstrapRequested:
        assert world.wait_ms() == 100, "not in a loop, though the broker would say it again"
        assert world.plan.current == BrokerTarget(BOOTSTRAP, *SEED)
        assert world.ask is not None
        assert world.ask.topics == ("t",), "what was wanted stays wanted"
        assert world.leader() == (1, 5), "and what was known stays known"


def test_the_node_left_alone_longest_is_tried_first_among_those_that_failed_as_often() -> None:
    world = World(rebootstrap_ms=None)
    tried: list[int] = []
    for chance in [0.0, 0.9, 0.4, 0.7, 0.2] * 6:
        world.chance = chance
        target = world.connect()
        assert target is not None
        tried.append(target.node)
        world.plan.connection_failed(world.now, world.chance)
        world.pass_ms(2_000)
    assert set(tried[:3]) == {1, 2, 3}
    assert tried == tried[:3] * 10


def test_a_topic_that_is_asked_for_all_the_time_does_not_keep_the_others_from_growing_old() -> None:
    world = World(age_ms=5_000)
    for topic in ("t", "gone"):
        world.cache.want(topic, world.now)
    _ = world.ask_and_answer(told("t", (1, 5)), missing("gone"))
    began, full = world.now, 0
    while world.now < began + 60:
        _ = world.wait_ms()
        assert world.ask is not None
        full += "t" in world.ask.topics
        _ = world.answer(*(told("t", (1, 5)) if topic == "t" else missing(topic) for topic in world.ask.topics))
    assert 10 <= full <= 12
