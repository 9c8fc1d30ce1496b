"""What is asked next, of whom, and when, on a clock that the test moves."""

import pytest
from penstock.producer.metadata.cluster import BrokerAddress
from penstock.producer.metadata.refresh import (
    BOOTSTRAP,
    BrokerConfigQuery,
    BrokerTarget,
    ControlQuery,
    MetadataUpdater,
    MetadataUpdaterLimits,
    ProducerIdQuery,
    TopicConfigQuery,
    TopicMetadataQuery,
    TopicStatus,
)
from penstock.producer.protocol.backoff import Backoff

MIDDLE = 0.5
LIMITS = MetadataUpdaterLimits(
    retry=Backoff(0.1, 1.0),
    reconnect=Backoff(0.05, 1.0),
    permission_backoff=Backoff(1.0, 30.0),
    max_age_s=300.0,
    max_idle_s=3_600.0,
    rebootstrap_after_s=300.0,
)
NODES = {node: BrokerAddress(node, f"broker-{node}", 9092, "") for node in (1, 2, 3)}


def fresh(now: float = 0.0) -> MetadataUpdater:
    return MetadataUpdater(LIMITS, [("seed-1", 9092), ("seed-2", 9092)], now=now)


def connected(now: float = 0.0) -> MetadataUpdater:
    """Past the bootstrap, with a connection to node 2 and nothing left to ask."""
    plan = fresh(now)
    assert plan.target(now, 0.0) is not None
    (ask,) = plan.due_queries(now)
    assert isinstance(ask, TopicMetadataQuery)
    plan.answered_topics(ask, {}, changed=True, now=now, chance=MIDDLE)
    assert plan.update_nodes(NODES)
    assert plan.target(now, MIDDLE) == BrokerTarget(2, "broker-2", 9092)
    assert plan.due_queries(now) == [BrokerConfigQuery(2)]
    plan.answered_broker_settings(told=True, now=now, chance=MIDDLE)
    return plan


def topics_asked(plan: MetadataUpdater, now: float) -> TopicMetadataQuery | None:
    found = [ask for ask in plan.due_queries(now) if isinstance(ask, TopicMetadataQuery)]
    return found[0] if found else None


def answer(
    plan: MetadataUpdater, ask: TopicMetadataQuery, now: float, *, changed: bool = True, **news: TopicStatus
) -> None:
    told = {topic: news.get(topic, TopicStatus.SETTLED) for topic in ask.topics}
    plan.answered_topics(ask, told, changed=changed, now=now, chance=MIDDLE)


def test_the_nodes_are_asked_for_even_when_no_topic_is_wanted() -> None:
    plan = fresh()
    assert plan.target(0.0, 0.0) == BrokerTarget(BOOTSTRAP, "seed-1", 9092)
    assert plan.due_queries(0.0) == [TopicMetadataQuery((), full=False)]
    assert plan.due_queries(0.0) == []


def test_a_bootstrap_address_is_asked_for_nothing_but_the_nodes_and_then_left() -> None:
    plan = fresh()
    plan.request_producer_id(0.0)
    _ = plan.target(0.0, 0.0)
    (ask,) = plan.due_queries(0.0)
    assert isinstance(ask, TopicMetadataQuery)
    answer(plan, ask, 0.1)
    assert plan.update_nodes(NODES)
    assert plan.target(0.1, 0.0) == BrokerTarget(1, "broker-1", 9092)
    assert plan.due_queries(0.1) == [ProducerIdQuery(), BrokerConfigQuery(1)]


def test_a_bootstrap_address_that_is_a_nodes_own_is_kept() -> None:
    plan = fresh()
    _ = plan.target(0.0, 0.0)
    assert not plan.update_nodes({7: BrokerAddress(7, "seed-1", 9092, "")})
    assert plan.current == BrokerTarget(7, "seed-1", 9092)


def test_a_node_that_leaves_the_cluster_is_left() -> None:
    plan = connected()
    assert not plan.update_nodes(NODES)
    assert plan.update_nodes({node: at for node, at in NODES.items() if node != 2})
    assert plan.target(0.0, 0.99) == BrokerTarget(3, "broker-3", 9092)


def test_bootstrap_addresses_are_tried_one_after_the_other_and_then_with_backoff() -> None:
    plan = fresh()
    first = plan.target(0.0, 0.0)
    plan.connection_failed(0.0, MIDDLE)
    second = plan.target(0.0, 0.0)
    assert first != second
    plan.connection_failed(0.0, MIDDLE)
    assert plan.target(0.0, 0.0) is None
    assert plan.next_deadline(connected=False) == pytest.approx(0.05)
    assert plan.target(0.05, 0.0) == first
    plan.connection_failed(0.05, MIDDLE)
    assert plan.target(0.05, 0.0) == second
    plan.connection_failed(0.05, MIDDLE)
    assert plan.next_deadline(connected=False) == pytest.approx(0.15)


def test_a_node_that_did_not_fail_is_preferred_and_the_bootstrap_comes_back_when_all_have() -> None:
    plan = connected()
    plan.connection_failed(0.0, MIDDLE)
    tried: list[int] = []
    for _ in range(3):
        target = plan.target(0.0, 0.0)
        assert target is not None
        tried.append(target.node)
        plan.connection_failed(0.0, MIDDLE)
    assert tried == [1, 3, BOOTSTRAP]


def test_it_is_known_who_was_tried_in_vain_from_some_time_on() -> None:
    plan = connected()
    for at in (1.0, 1.0, 2.0, 2.0):
        plan.connection_failed(at, MIDDLE)
        _ = plan.target(at, 0.0)
    assert not plan.all_failed_since(0.0), "an address of the bootstrap was not tried"
    plan.connection_failed(3.0, MIDDLE)
    assert plan.all_failed_since(0.0)
    assert not plan.all_failed_since(0.5), "the connection that was lost first had begun before"
    while plan.target(60.0, 0.0) is not None:
        assert not plan.all_failed_since(60.0)
        plan.connection_failed(70.0, MIDDLE)
    assert plan.all_failed_since(60.0)
    assert not plan.all_failed_since(61.0), "what counts is when a try began"


def test_a_new_topic_is_asked_for_at_once_and_alone() -> None:
    plan = connected()
    assert plan.want("a", 1.0)
    first = topics_asked(plan, 1.0)
    assert first == TopicMetadataQuery(("a",), full=False)
    answer(plan, first, 1.0)
    assert plan.want("b", 1.001)
    assert not plan.want("b", 1.001)
    assert topics_asked(plan, 1.001) == TopicMetadataQuery(("b",), full=False)


def test_a_topic_wanted_while_a_question_is_on_its_way_is_asked_right_after_it() -> None:
    plan = connected()
    _ = plan.want("a", 1.0)
    first = topics_asked(plan, 1.0)
    assert first is not None
    _ = plan.want("b", 1.1)
    assert topics_asked(plan, 1.1) is None
    answer(plan, first, 1.2)
    assert topics_asked(plan, 1.2) == TopicMetadataQuery(("b",), full=False)


def test_all_topics_are_asked_for_when_what_is_known_is_old() -> None:
    plan = connected()
    for topic in ("a", "b"):
        _ = plan.want(topic, 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 0.0)
    assert topics_asked(plan, 299.9) is None
    assert plan.next_deadline(connected=True) == pytest.approx(300.0)
    assert topics_asked(plan, 300.0) == TopicMetadataQuery(("a", "b"), full=True)


def test_a_refresh_asks_for_everything_but_not_faster_than_the_backoff() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 10.0)
    asked_at: list[float] = []
    now = 10.0
    while now < 13.0:
        plan.refresh(now)
        ask = topics_asked(plan, now)
        if ask is not None:
            assert ask == TopicMetadataQuery(("a",), full=True)
            asked_at.append(now)
            answer(plan, ask, now, changed=False)
        now = round(now + 0.01, 2)
    pauses = [later - earlier for earlier, later in zip([10.0, *asked_at], asked_at, strict=False)]
    assert pauses[:5] == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.8], abs=0.021)


def test_one_who_knows_no_more_than_we_is_asked_again_for_a_while_after_a_refresh() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 0.0)
    plan.refresh(100.0)
    now, asked = 100.0, 0
    while now < 200.0:
        ask = topics_asked(plan, now)
        if ask is not None:
            asked += 1
            answer(plan, ask, now, changed=False)
        deadline = plan.next_deadline(connected=True)
        assert deadline is not None
        last, now = now, deadline
    assert 28 <= asked <= 40
    assert last == pytest.approx(130.0, abs=1.1)


def test_something_new_in_an_answer_makes_asking_quick_again() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    now = 0.0
    for _ in range(6):
        ask = topics_asked(plan, now)
        assert ask is not None
        answer(plan, ask, now, changed=False, a=TopicStatus.UNSETTLED)
        deadline = plan.next_deadline(connected=True)
        assert deadline is not None
        pause, now = deadline - now, deadline
    assert pause == pytest.approx(1.0)
    ask = topics_asked(plan, now)
    assert ask is not None
    answer(plan, ask, now, changed=True, a=TopicStatus.UNSETTLED)
    assert plan.next_deadline(connected=True) == pytest.approx(now + 0.1)


def test_a_topic_is_missing_from_the_second_answer_on_and_found_by_the_first_good_one() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    now = 0.0
    verdicts: list[bool] = []
    for told in (
        TopicStatus.MISSING,
        TopicStatus.MISSING,
        TopicStatus.MISSING,
        TopicStatus.SETTLED,
        TopicStatus.MISSING,
    ):
        plan.refresh(now)
        now = plan.next_deadline(connected=True) or now
        ask = topics_asked(plan, now)
        assert ask is not None
        answer(plan, ask, now, a=told)
        verdicts.append(plan.is_missing("a"))
    assert verdicts == [False, True, True, False, False]


def test_a_lost_question_is_asked_again_after_the_backoff_and_loses_no_topic() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    plan.queries_failed([ask], 1.0, MIDDLE)
    assert topics_asked(plan, 1.05) is None
    assert topics_asked(plan, 1.1) == TopicMetadataQuery(("a",), full=False)


def test_a_lost_round_over_all_topics_is_begun_again() -> None:
    plan = connected()
    for number in range(2_500):
        _ = plan.want(f"t{number}", 0.0)
    first = topics_asked(plan, 0.0)
    assert first is not None
    assert len(first.topics) == 1_000
    answer(plan, first, 0.0)
    second = topics_asked(plan, 0.0)
    assert second is not None
    plan.queries_failed([second], 0.0, MIDDLE)
    seen: set[str] = set()
    now = 0.1
    while (ask := topics_asked(plan, now)) is not None:
        assert len(ask.topics) <= 1_000
        seen.update(ask.topics)
        answer(plan, ask, now)
    assert len(seen) == 2_500


def test_a_lost_connection_makes_everything_stale() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 0.0)
    plan.connection_failed(5.0, MIDDLE)
    assert plan.target(5.0, 0.0) is not None
    assert topics_asked(plan, 5.0) == TopicMetadataQuery(("a",), full=True)


def test_a_producer_id_is_asked_until_it_is_granted_and_patiently_while_it_is_forbidden() -> None:
    plan = connected()
    plan.request_producer_id(0.0)
    assert plan.due_queries(0.0) == [ProducerIdQuery()]
    plan.refused_producer_id(forbidden=False, now=0.0, chance=MIDDLE)
    assert plan.next_deadline(connected=True) == pytest.approx(0.1)
    assert plan.due_queries(0.1) == [ProducerIdQuery()]
    plan.refused_producer_id(forbidden=True, now=0.1, chance=MIDDLE)
    assert plan.next_deadline(connected=True) == pytest.approx(2.1)
    assert plan.due_queries(2.1) == [ProducerIdQuery()]
    plan.answered_producer_id()
    assert plan.due_queries(299.0) == []


def test_settings_of_a_topic_are_asked_once_and_again_when_they_are_old() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 0.0)
    plan.want_settings("a", 0.0)
    plan.want_settings("a", 0.0)
    assert plan.due_queries(0.0) == [TopicConfigQuery(("a",))]
    plan.answered_topic_settings((), ["a"], 0.0, MIDDLE)
    assert plan.due_queries(0.9) == []
    assert plan.due_queries(1.0) == [TopicConfigQuery(("a",))]
    plan.answered_topic_settings(["a"], (), 1.0, MIDDLE)
    later = [ask for ask in plan.due_queries(301.0) if isinstance(ask, TopicConfigQuery)]
    assert later == [TopicConfigQuery(("a",))]


def test_settings_are_asked_in_bounded_pieces() -> None:
    plan = connected()
    for number in range(150):
        plan.want_settings(f"t{number}", 0.0)
    sizes = [len(ask.topics) for _ in range(3) for ask in plan.due_queries(0.0) if isinstance(ask, TopicConfigQuery)]
    assert sizes == [100, 50]


def test_a_forgotten_topic_is_not_asked_for_any_more() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    plan.want_settings("a", 0.0)
    plan.forget("a")
    answer(plan, ask, 0.0, a=TopicStatus.UNSETTLED)
    assert not plan.is_wanted("a")
    assert plan.due_queries(10.0) == []
    assert plan.want("a", 10.0)


def test_everything_lost_at_once_is_asked_again() -> None:
    plan = connected()
    plan.request_producer_id(300.0)
    plan.want_settings("a", 300.0)
    asks = plan.due_queries(300.0)
    assert {type(ask) for ask in asks} == {TopicMetadataQuery, ProducerIdQuery, TopicConfigQuery, BrokerConfigQuery}
    plan.queries_failed(asks, 300.0, MIDDLE)
    assert plan.due_queries(300.0) == []
    again: list[ControlQuery] = [*plan.due_queries(300.1), *plan.due_queries(301.0)]
    assert {type(ask) for ask in again} == {type(ask) for ask in asks}


def test_a_broker_that_sends_us_back_makes_only_the_bootstrap_count() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    plan.rebootstrap()
    target = plan.target(0.0, 0.0)
    assert target is not None
    assert target.node == BOOTSTRAP
