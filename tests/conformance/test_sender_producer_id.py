"""Rows of group F: how a producer id is had, and what becomes of records meanwhile."""

import itertools

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind
from penstock.producer.metadata.cluster import BrokerAddress
from penstock.producer.metadata.refresh import (
    BrokerConfigQuery,
    MetadataUpdater,
    MetadataUpdaterLimits,
    ProducerIdQuery,
    TopicMetadataQuery,
)
from penstock.producer.protocol.backoff import Backoff

from tests.conformance.joined_rig import CLUSTER_AUTHORIZATION_FAILED, PRODUCER_ID, JoinedRig

LIMITS = MetadataUpdaterLimits(Backoff(0.05, 0.05), Backoff(0.05, 1.0), Backoff(1.0, 30.0), 300.0, 300.0, None)


@pytest.mark.row("F10")
def test_records_wait_for_the_producer_id_and_then_go_under_it() -> None:
    rig = JoinedRig(fresh=True, has_id=False, delivery_ms=30_000)
    first = rig.append(0)
    assert rig.joined.wants_producer_id
    assert rig.run() == []
    rig.pass_ms(5_020)
    assert rig.run() == []

    rig.joined.producer_id_known(PRODUCER_ID, 0, now=rig.now)
    rig.run()
    assert [(sent.producer_id, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(PRODUCER_ID, 0, 0)]
    rig.answer()
    assert rig.delivered(0) == {first: 0}
    assert not rig.joined.wants_producer_id


@pytest.mark.row("F10")
def test_a_record_that_expires_without_a_producer_id_says_so() -> None:
    rig = JoinedRig(fresh=True, has_id=False)
    first = rig.append(0)
    rig.pass_ms(1500)
    rig.run()
    assert rig.failed(0)[first].kind is DeliveryFailureKind.EXPIRED
    assert "waiting for a producer id" in rig.failed(0)[first].message

    later = rig.append(0)
    rig.joined.producer_id_known(PRODUCER_ID, 0, now=rig.now)
    rig.run()
    assert [(sent.first, sent.sequence) for sent in rig.on_wire(0)] == [(later, 0)]


@pytest.mark.row("F10")
def test_a_question_for_metadata_without_answer_holds_up_none_for_a_producer_id() -> None:
    plan = MetadataUpdater(LIMITS, [("h", 1)], now=100.0)
    _ = plan.update_nodes({0: BrokerAddress(0, "h", 1, "")})
    assert plan.target(100.0, 0.5) is not None
    assert [type(ask) for ask in plan.due_queries(100.0)] == [TopicMetadataQuery, BrokerConfigQuery]
    plan.request_producer_id(100.0)
    assert plan.due_queries(100.0) == [ProducerIdQuery()]


@pytest.mark.row("F11", "H20")
def test_without_permission_for_an_id_what_waits_fails_and_later_records_are_sent_once_there_is_one() -> None:
    rig = JoinedRig(fresh=True, has_id=False)
    first = rig.append(0)
    rig.run()
    rig.joined.producer_id_refused(CLUSTER_AUTHORIZATION_FAILED)
    assert rig.failed(0)[first].name == "CLUSTER_AUTHORIZATION_FAILED"
    assert rig.joined.failure is None
    assert rig.joined.wants_producer_id

    later = rig.append(0)
    rig.joined.producer_id_known(PRODUCER_ID, 0, now=rig.now)
    rig.run()
    rig.answer()
    assert rig.delivered(0) == {later: 0}


@pytest.mark.row("F11")
def test_without_permission_for_an_id_it_is_asked_for_again_less_and_less_often() -> None:
    plan = MetadataUpdater(LIMITS, [("h", 1)], now=100.0)
    plan.request_producer_id(100.0)
    _ = plan.update_nodes({0: BrokerAddress(0, "h", 1, "")})
    assert plan.target(100.0, 0.5) is not None
    now, waits = 100.0, list[float]()
    assert ProducerIdQuery() in plan.due_queries(now)
    for _ in range(7):
        plan.refused_producer_id(forbidden=True, now=now, chance=0.5)
        due = plan.next_deadline(connected=True)
        assert due is not None
        waits.append(due - now)
        assert plan.due_queries(due - 0.001) == []
        now = due
        assert plan.due_queries(now) == [ProducerIdQuery()]
    assert waits == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0])


@pytest.mark.row("F59")
def test_a_retriable_answer_to_init_producer_id_is_asked_for_again_after_the_backoff() -> None:
    plan = MetadataUpdater(LIMITS, [("h", 1)], now=100.0)
    plan.request_producer_id(100.0)
    _ = plan.update_nodes({0: BrokerAddress(0, "h", 1, "")})
    assert plan.target(100.0, 0.5) is not None
    asked: list[float] = []
    for now in (100.0 + ms / 1000 for ms in range(200)):
        asks = plan.due_queries(now)
        if ProducerIdQuery() in asks:
            asked.append(now)
            plan.refused_producer_id(forbidden=False, now=now, chance=0.5)
    assert asked[0] == 100.0
    assert len(asked) >= 3
    assert [round(after - before, 3) for before, after in itertools.pairwise(asked)] == [0.05] * (len(asked) - 1)
