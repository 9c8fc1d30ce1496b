"""What is asked next, of whom, and when, on a clock that the test moves."""

import pytest
from penstock.producer.metadata.cluster import BrokerAddress
from penstock.producer.metadata.refresh import (
    BOOTSTRAP,
    Ask,
    AskBrokerSettings,
    AskProducerId,
    AskTopics,
    AskTopicSettings,
    MetadataPlan,
    PlanLimits,
    Target,
    TopicNews,
)
from penstock.producer.protocol.backoff import Backoff

MIDDLE = 0.5
LIMITS = PlanLimits(
    retry=Backoff(0.1, 1.0),
    reconnect=Backoff(0.05, 1.0),
    patient=Backoff(1.0, 30.0),
    max_age_s=300.0,
    max_idle_s=3_600.0,
    rebootstrap_after_s=300.0,
)
NODES = {node: BrokerAddress(node, f"broker-{node}", 9092, "") for node in (1, 2, 3)}


def fresh(now: float = 0.0) -> MetadataPlan:
    return MetadataPlan(LIMITS, [("seed-1", 9092), ("seed-2", 9092)], now=now)


def connected(now: float = 0.0) -> MetadataPlan:
    """Past the bootstrap, with a connection to node 2 and nothing left to ask."""
    plan = fresh(now)
    assert plan.target(now, 0.0) is not None
    (ask,) = plan.asks(now)
    assert isinstance(ask, AskTopics)
    plan.answered_topics(ask, {}, changed=True, now=now, chance=MIDDLE)
    assert plan.nodes_known(NODES)
    assert plan.target(now, MIDDLE) == Target(2, "broker-2", 9092)
    assert plan.asks(now) == [AskBrokerSettings(2)]
    plan.answered_broker_settings(told=True, now=now, chance=MIDDLE)
    return plan


def topics_asked(plan: MetadataPlan, now: float) -> AskTopics | None:
    found = [ask for ask in plan.asks(now) if isinstance(ask, AskTopics)]
    return found[0] if found else None


def answer(plan: MetadataPlan, ask: AskTopics, now: float, *, changed: bool = True, **news: TopicNews) -> None:
    told = {topic: news.get(topic, TopicNews.SETTLED) for topic in ask.topics}
    plan.answered_topics(ask, told, changed=changed, now=now, chance=MIDDLE)


def test_the_nodes_are_asked_for_even_when_no_topic_is_wanted() -> None:
    plan = fresh()
    assert plan.target(0.0, 0.0) == Target(BOOTSTRAP, "seed-1", 9092)
    assert plan.asks(0.0) == [AskTopics((), full=False)]
    assert plan.asks(0.0) == []


def test_a_bootstrap_address_is_asked_for_nothing_but_the_nodes_and_then_left() -> None:
    plan = fresh()
    plan.request_producer_id(0.0)
    _ = plan.target(0.0, 0.0)
    (ask,) = plan.asks(0.0)
    assert isinstance(ask, AskTopics)
    answer(plan, ask, 0.1)
    assert plan.nodes_known(NODES)
    assert plan.target(0.1, 0.0) == Target(1, "broker-1", 9092)
    assert plan.asks(0.1) == [AskProducerId(), AskBrokerSettings(1)]


def test_a_bootstrap_address_that_is_a_nodes_own_is_kept() -> None:
    plan = fresh()
    _ = plan.target(0.0, 0.0)
    assert not plan.nodes_known({7: BrokerAddress(7, "seed-1", 9092, "")})
    assert plan.current == Target(7, "seed-1", 9092)


def test_a_node_that_leaves_the_cluster_is_left() -> None:
    plan = connected()
    assert not plan.nodes_known(NODES)
    assert plan.nodes_known({node: at for node, at in NODES.items() if node != 2})
    assert plan.target(0.0, 0.99) == Target(3, "broker-3", 9092)


def test_bootstrap_addresses_are_tried_one_after_the_other_and_then_with_backoff() -> None:
    plan = fresh()
    first = plan.target(0.0, 0.0)
    plan.failed(0.0, MIDDLE)
    second = plan.target(0.0, 0.0)
    assert first != second
    plan.failed(0.0, MIDDLE)
    assert plan.target(0.0, 0.0) is None
    assert plan.next_deadline(connected=False) == pytest.approx(0.05)
    assert plan.target(0.05, 0.0) == first
    plan.failed(0.05, MIDDLE)
    assert plan.target(0.05, 0.0) == second
    plan.failed(0.05, MIDDLE)
    assert plan.next_deadline(connected=False) == pytest.approx(0.15)


def test_a_node_that_did_not_fail_is_preferred_and_the_bootstrap_comes_back_when_all_have() -> None:
    plan = connected()
    plan.failed(0.0, MIDDLE)
    tried: list[int] = []
    for _ in range(3):
        target = plan.target(0.0, 0.0)
        assert target is not None
        tried.append(target.node)
        plan.failed(0.0, MIDDLE)
    assert tried == [1, 3, BOOTSTRAP]


def test_it_is_known_who_was_tried_in_vain_from_some_time_on() -> None:
    plan = connected()
    for at in (1.0, 1.0, 2.0, 2.0):
        plan.failed(at, MIDDLE)
        _ = plan.target(at, 0.0)
    assert not plan.everybody_failed_since(0.0), "an address of the bootstrap was not tried"
    plan.failed(3.0, MIDDLE)
    assert plan.everybody_failed_since(0.0)
    assert not plan.everybody_failed_since(0.5), "the connection that was lost first had begun before"
    while plan.target(60.0, 0.0) is not None:
        assert not plan.everybody_failed_since(60.0)
        plan.failed(70.0, MIDDLE)
    assert plan.everybody_failed_since(60.0)
    assert not plan.everybody_failed_since(61.0), "what counts is when a try began"


def test_a_new_topic_is_asked_for_at_once_and_alone() -> None:
    plan = connected()
    assert plan.want("a", 1.0)
    first = topics_asked(plan, 1.0)
    assert first == AskTopics(("a",), full=False)
    answer(plan, first, 1.0)
    assert plan.want("b", 1.001)
    assert not plan.want("b", 1.001)
    assert topics_asked(plan, 1.001) == AskTopics(("b",), full=False)


def test_a_topic_wanted_while_a_question_is_on_its_way_is_asked_right_after_it() -> None:
    plan = connected()
    _ = plan.want("a", 1.0)
    first = topics_asked(plan, 1.0)
    assert first is not None
    _ = plan.want("b", 1.1)
    assert topics_asked(plan, 1.1) is None
    answer(plan, first, 1.2)
    assert topics_asked(plan, 1.2) == AskTopics(("b",), full=False)


def test_all_topics_are_asked_for_when_what_is_known_is_old() -> None:
    plan = connected()
    for topic in ("a", "b"):
        _ = plan.want(topic, 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 0.0)
    assert topics_asked(plan, 299.9) is None
    assert plan.next_deadline(connected=True) == pytest.approx(300.0)
    assert topics_asked(plan, 300.0) == AskTopics(("a", "b"), full=True)


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
            assert ask == AskTopics(("a",), full=True)
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
        answer(plan, ask, now, changed=False, a=TopicNews.UNSETTLED)
        deadline = plan.next_deadline(connected=True)
        assert deadline is not None
        pause, now = deadline - now, deadline
    assert pause == pytest.approx(1.0)
    ask = topics_asked(plan, now)
    assert ask is not None
    answer(plan, ask, now, changed=True, a=TopicNews.UNSETTLED)
    assert plan.next_deadline(connected=True) == pytest.approx(now + 0.1)


def test_a_topic_is_missing_from_the_second_answer_on_and_found_by_the_first_good_one() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    now = 0.0
    verdicts: list[bool] = []
    for told in (TopicNews.MISSING, TopicNews.MISSING, TopicNews.MISSING, TopicNews.SETTLED, TopicNews.MISSING):
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
    plan.lost([ask], 1.0, MIDDLE)
    assert topics_asked(plan, 1.05) is None
    assert topics_asked(plan, 1.1) == AskTopics(("a",), full=False)


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
    plan.lost([second], 0.0, MIDDLE)
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
    plan.failed(5.0, MIDDLE)
    assert plan.target(5.0, 0.0) is not None
    assert topics_asked(plan, 5.0) == AskTopics(("a",), full=True)


def test_a_producer_id_is_asked_until_it_is_granted_and_patiently_while_it_is_forbidden() -> None:
    plan = connected()
    plan.request_producer_id(0.0)
    assert plan.asks(0.0) == [AskProducerId()]
    plan.refused_producer_id(forbidden=False, now=0.0, chance=MIDDLE)
    assert plan.next_deadline(connected=True) == pytest.approx(0.1)
    assert plan.asks(0.1) == [AskProducerId()]
    plan.refused_producer_id(forbidden=True, now=0.1, chance=MIDDLE)
    assert plan.next_deadline(connected=True) == pytest.approx(2.1)
    assert plan.asks(2.1) == [AskProducerId()]
    plan.answered_producer_id()
    assert plan.asks(299.0) == []


def test_settings_of_a_topic_are_asked_once_and_again_when_they_are_old() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    answer(plan, ask, 0.0)
    plan.want_settings("a", 0.0)
    plan.want_settings("a", 0.0)
    assert plan.asks(0.0) == [AskTopicSettings(("a",))]
    plan.answered_topic_settings((), ["a"], 0.0, MIDDLE)
    assert plan.asks(0.9) == []
    assert plan.asks(1.0) == [AskTopicSettings(("a",))]
    plan.answered_topic_settings(["a"], (), 1.0, MIDDLE)
    later = [ask for ask in plan.asks(301.0) if isinstance(ask, AskTopicSettings)]
    assert later == [AskTopicSettings(("a",))]


def test_settings_are_asked_in_bounded_pieces() -> None:
    plan = connected()
    for number in range(150):
        plan.want_settings(f"t{number}", 0.0)
    sizes = [len(ask.topics) for _ in range(3) for ask in plan.asks(0.0) if isinstance(ask, AskTopicSettings)]
    assert sizes == [100, 50]


def test_a_forgotten_topic_is_not_asked_for_any_more() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    ask = topics_asked(plan, 0.0)
    assert ask is not None
    plan.want_settings("a", 0.0)
    plan.forget("a")
    answer(plan, ask, 0.0, a=TopicNews.UNSETTLED)
    assert not plan.is_wanted("a")
    assert plan.asks(10.0) == []
    assert plan.want("a", 10.0)


def test_everything_lost_at_once_is_asked_again() -> None:
    plan = connected()
    plan.request_producer_id(300.0)
    plan.want_settings("a", 300.0)
    asks = plan.asks(300.0)
    assert {type(ask) for ask in asks} == {AskTopics, AskProducerId, AskTopicSettings, AskBrokerSettings}
    plan.lost(asks, 300.0, MIDDLE)
    assert plan.asks(300.0) == []
    again: list[Ask] = [*plan.asks(300.1), *plan.asks(301.0)]
    assert {type(ask) for ask in again} == {type(ask) for ask in asks}


def test_a_broker_that_sends_us_back_makes_only_the_bootstrap_count() -> None:
    plan = connected()
    _ = plan.want("a", 0.0)
    plan.rebootstrap()
    target = plan.target(0.0, 0.0)
    assert target is not None
    assert target.node == BOOTSTRAP
