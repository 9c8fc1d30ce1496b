"""Rows of group F that hold without idempotence: retry limits, muting, the documented change of places."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind

from tests.conformance.joined_rig import (
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NOT_LEADER,
    TOPIC_AUTHORIZATION_FAILED,
    JoinedRig,
    Request,
    ok,
)


def plain_rig(*, retries: int = (1 << 31) - 1, in_flight: int = 1, **given: object) -> JoinedRig:
    return JoinedRig(fresh=True, idempotent=False, retries=retries, in_flight=in_flight, **given)  # type: ignore[arg-type]


def taken(rig: JoinedRig, request: Request) -> None:
    """The broker takes everything in it, as one without memory of producers does."""
    offsets = {sent.partition: ok(len(rig.delivered(sent.partition))) for sent in request.sent}
    rig.answer(request, offsets)


@pytest.mark.row("F5")
def test_a_batch_is_sent_again_as_often_as_retries_allow_and_then_fails_with_a_network_exception() -> None:
    rig = plain_rig(retries=1)
    first = rig.append(0)
    rig.run()
    rig.lose(0)
    assert len(rig.run()) == 1
    taken(rig, rig.wire[0])
    assert rig.delivered(0) == {first: 0}

    second = rig.append(0)
    rig.run()
    rig.lose(0)
    rig.run()
    rig.lose(0)
    assert rig.failed(0)[second].name == "NETWORK_EXCEPTION"
    assert rig.failed(0)[second].kind is DeliveryFailureKind.MAY_BE_WRITTEN
    assert not rig.wire
    assert rig.run() == []
    assert rig.joined.idle


@pytest.mark.row("F6")
@pytest.mark.fault("K13", "K24")
def test_with_one_in_flight_a_second_record_is_not_sent_to_the_new_leader_while_the_first_is_open() -> None:
    rig = plain_rig(leader_epoch=1)
    rig.append(1)
    (first,) = rig.run()
    rig.pass_ms(900)
    rig.append(1)
    rig.lead(1, node=1, epoch=2)
    assert rig.run() == []

    taken(rig, first)
    (second,) = rig.run()
    assert (first.node, second.node) == (0, 1)


@pytest.mark.row("F6")
def test_with_idempotence_the_first_goes_to_the_new_leader_again_and_the_second_after_its_answer() -> None:
    rig = JoinedRig(leader_epoch=1)
    rig.append(1)
    rig.run()
    rig.append(1)
    rig.lead(1, node=1, epoch=2)
    (again,) = rig.run()
    assert (again.node, again.of(1).sequence) == (1, 1)
    assert rig.run() == []

    rig.answer(again)
    (second,) = rig.run()
    assert (second.node, second.of(1).sequence) == (1, 2)


@pytest.mark.row("F12")
def test_a_refusal_of_permission_fails_at_once() -> None:
    rig = plain_rig()
    first = rig.append(0)
    rig.run()
    rig.refuse(TOPIC_AUTHORIZATION_FAILED, partition=0)

    assert rig.failed(0)[first].name == "TOPIC_AUTHORIZATION_FAILED"
    assert rig.failed(0)[first].kind is DeliveryFailureKind.REFUSED
    assert rig.run() == []


@pytest.mark.row("F46")
def test_with_one_in_flight_a_second_record_waits_for_the_answer_to_one_that_expired() -> None:
    rig = plain_rig(delivery_ms=1000)
    first = rig.append(0)
    (request,) = rig.run()
    rig.pass_ms(750)
    second = rig.append(0)
    assert rig.run() == []
    rig.pass_ms(750)
    assert rig.run() == []
    assert list(rig.failed(0)) == [first]

    taken(rig, request)
    assert rig.delivered(0) == {}
    (later,) = rig.run()
    assert later.of(0).first == second
    taken(rig, later)
    assert rig.delivered(0) == {second: 0}
    assert rig.joined.idle


@pytest.mark.row("F47", "F48")
@pytest.mark.parametrize("code", [NOT_LEADER, MESSAGE_TOO_LARGE])
def test_an_expired_batch_is_neither_sent_again_nor_split(code: int) -> None:
    rig = plain_rig()
    first = rig.append(0, count=2)
    rig.run()
    rig.pass_ms(1500)
    rig.run()
    rig.refuse(code, partition=0)

    assert sorted(rig.failed(0)) == [first, first + 1]
    assert rig.run() == []
    assert rig.joined.idle
    assert rig.pool.lent_bytes == 0


@pytest.mark.row("F43", "F44")
def test_the_buffer_of_what_expired_in_flight_comes_back_with_the_answer() -> None:
    rig = plain_rig()
    rig.append(0)
    (request,) = rig.run()
    rig.pass_ms(5000)
    rig.run()
    rig.run()
    assert len(rig.failed(0)) == 1
    assert rig.joined.idle
    assert rig.pool.lent_bytes > 0

    taken(rig, request)
    assert rig.pool.lent_bytes == 0
    assert rig.delivered(0) == {}


@pytest.mark.row("F66")
def test_what_is_on_the_wire_stays_as_it_is_though_it_has_expired_and_another_wants_the_only_buffer() -> None:
    rig = plain_rig(batch_bytes=1024, pool_bytes=1024 + 61, in_flight=2)
    rig.append(0)
    (request,) = rig.run()
    ((_, batch),) = request.flight.entries
    data = batch.data
    assert data is not None
    on_wire = bytes(data)
    rig.pass_ms(1500)
    other = rig.append(1, value=b"other")
    assert rig.run() == [], "there is one buffer, and it is on the wire"
    assert len(rig.failed(0)) == 1
    assert bytes(data) == on_wire

    taken(rig, request)
    (later,) = rig.run()
    assert later.of(1).first == other
    taken(rig, later)
    assert rig.pool.lent_bytes == 0


@pytest.mark.row("F45")
def test_the_neighbours_of_refused_records_fail_too_where_nothing_is_sent_again() -> None:
    rig = plain_rig()
    first = rig.append(0, count=5)
    rig.run()
    rig.refuse(INVALID_RECORD, partition=0, errors=[(0, "0"), (2, "2"), (3, "")])

    failed = rig.failed(0)
    assert sorted(failed) == [first + n for n in range(5)]
    assert failed[first].message.endswith(": 0")
    assert "a record that the topic does not take" in failed[first + 3].message
    assert "other records of its batch" in failed[first + 1].message
    assert "other records of its batch" in failed[first + 4].message


@pytest.mark.row("F68")
def test_two_batches_that_fail_one_after_the_other_change_places() -> None:
    rig = plain_rig(in_flight=2)
    first = rig.append(0)
    rig.run()
    second = rig.append(0)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [first, second]
    rig.refuse(NOT_LEADER, partition=0)
    rig.refuse(NOT_LEADER, partition=0)

    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [second, first]
    taken(rig, rig.wire[0])
    taken(rig, rig.wire[0])
    assert rig.delivered(0) == {second: 0, first: 1}
    assert rig.joined.idle


def test_batches_have_no_stamps_and_several_are_in_flight_from_the_start() -> None:
    rig = plain_rig(in_flight=5)
    for _ in range(6):
        rig.append(0)
        rig.run()

    sent = rig.on_wire(0)
    assert len(sent) == 5
    assert {(one.producer_id, one.epoch, one.sequence) for one in sent} == {(-1, -1, -1)}


def test_a_batch_that_is_too_large_is_sent_in_parts() -> None:
    rig = plain_rig()
    first = rig.append(0, count=2)
    rig.run()
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    while rig.run() or rig.wire:
        taken(rig, rig.wire[0])

    assert rig.delivered(0) == {first: 0, first + 1: 1}
    assert rig.joined.idle


def test_what_was_never_sent_expires_as_such_and_what_comes_later_goes_on() -> None:
    rig = plain_rig()
    rig.append(0)
    (request,) = rig.run()
    waiting = rig.append(0, count=3)
    rig.pass_ms(1500)
    later = rig.append(0)
    rig.run()

    assert {ordinal: failure.kind for ordinal, failure in rig.failed(0).items()} == {
        0: DeliveryFailureKind.MAY_BE_WRITTEN, waiting: DeliveryFailureKind.EXPIRED, waiting + 1: DeliveryFailureKind.EXPIRED, waiting + 2: DeliveryFailureKind.EXPIRED,
    }  # fmt: skip
    taken(rig, request)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [later]


def test_a_node_that_leaves_the_cluster_gives_its_batches_to_the_next_leader() -> None:
    rig = plain_rig(leaders={0: 5, 1: 0}, delivery_ms=60_000)
    first = rig.append(0)
    rig.run()
    rig.lose(5)
    rig.lead(0, node=1, epoch=1)
    (request,) = rig.run()

    assert (request.node, request.of(0).first) == (1, first)
    taken(rig, request)
    assert rig.delivered(0) == {first: 0}
