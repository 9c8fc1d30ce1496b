"""Rows of group F: records whose delivery takes too long. With idempotence what may be written stays a ghost (XPY-3)."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind

from tests.conformance.joined_rig import (
    MESSAGE_TOO_LARGE,
    NOT_LEADER,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    JoinedRig,
)


@pytest.mark.row("F7")
def test_records_that_are_appended_when_others_expire_share_one_batch() -> None:
    rig = JoinedRig(delivery_ms=10_000)
    for _ in range(10):
        rig.append(0)
    rig.run()
    assert sum(sent.count for sent in rig.on_wire(0)) == 10
    rig.pass_ms(10_000)
    rig.down.add(0)
    rig.lose(0)
    assert len(rig.failed(0)) == 10
    for _ in rig.failed(0):
        rig.append(0)

    rig.down.clear()
    rig.until_idle()
    assert rig.log(0).batches[-1] == 10
    assert list(rig.delivered(0)) == list(range(11, 21))


@pytest.mark.row("F21")
def test_unsent_records_that_expire_leave_a_hole_without_a_bump() -> None:
    rig = JoinedRig(delivery_ms=10_000)
    rig.down.add(0)
    first = rig.append(0, count=3)
    rig.run()
    rig.pass_ms(10_000)
    rig.run()

    failure = rig.failed(0)[first]
    assert failure.kind is DeliveryFailureKind.EXPIRED
    assert "never sent; no connection to node 0 (unplugged)" in failure.message
    assert rig.ghosts(0) == []
    assert rig.joined.idle

    rig.down.clear()
    rig.append(0)
    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(4, 0, 1)]
    rig.answer()
    assert rig.delivered(0) == {4: 1}


@pytest.mark.row("F22")
def test_a_sent_record_that_expires_stays_first_and_the_success_behind_it_resolves_both() -> None:
    rig = JoinedRig(delivery_ms=1500)
    ghost = rig.append(0)
    rig.run()
    rig.pass_ms(1000)
    second = rig.append(0)
    rig.run()
    older, newer = rig.wire
    for sent in (*older.sent, *newer.sent):
        _ = rig.log(0).produce(sent.data)
    rig.down.add(0)
    rig.refuse(REQUEST_TIMED_OUT, partition=0, request=older)
    rig.pass_ms(600)
    third = rig.append(0)
    rig.run()

    failure = rig.failed(0)[ghost]
    assert failure.kind is DeliveryFailureKind.MAY_BE_WRITTEN
    assert "REQUEST_TIMED_OUT" in failure.message
    assert "1 attempt" in failure.message
    assert rig.ghosts(0) == [ghost]
    assert not rig.joined.idle

    rig.answer(newer)
    assert rig.released(0) == [ghost]
    assert rig.delivered(0) == {second: 2}
    rig.down.clear()
    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(third, 0, 3)]
    rig.answer()
    assert rig.delivered(0) == {second: 2, third: 3}


@pytest.mark.row("F23")
def test_a_ghost_is_sent_again_before_what_was_refused_behind_it_and_nothing_is_bumped() -> None:
    rig = JoinedRig(delivery_ms=1500)
    ghost = rig.append(0)
    rig.run()
    rig.pass_ms(1000)
    second = rig.append(0)
    rig.run()
    older, newer = rig.wire
    rig.down.add(0)
    rig.refuse(NOT_LEADER, partition=0, request=older)
    rig.pass_ms(600)
    rig.run()
    assert list(rig.failed(0)) == [ghost]
    rig.refuse(OUT_OF_ORDER, partition=0, request=newer, log_start=0)

    rig.down.clear()
    rig.run()
    assert [(sent.first, sent.epoch) for sent in rig.on_wire(0)] == [(ghost, 0)]
    rig.answer()
    rig.run()
    assert [(sent.first, sent.epoch) for sent in rig.on_wire(0)] == [(second, 0)]
    rig.answer()
    assert rig.released(0) == [ghost]
    assert rig.delivered(0) == {second: 2}
    assert rig.log(0).batches == [1, 1, 1]


@pytest.mark.row("F25", "G16")
def test_a_sent_record_without_successors_is_tried_on_as_a_ghost_without_a_bump() -> None:
    rig = JoinedRig(delivery_ms=1500)
    ghost = rig.append(0)
    rig.run()
    rig.down.add(0)
    rig.refuse(NOT_LEADER, partition=0)
    rig.pass_ms(15_000)
    rig.run()
    assert list(rig.failed(0)) == [ghost]
    assert rig.failed(0)[ghost].kind is DeliveryFailureKind.MAY_BE_WRITTEN

    rig.down.clear()
    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(ghost, 0, 1)]
    rig.answer()
    assert rig.released(0) == [ghost]
    assert rig.delivered(0) == {}
    assert rig.joined.idle


@pytest.mark.row("F43", "F66")
def test_the_buffer_of_an_expired_batch_comes_back_with_the_answer_and_once() -> None:
    rig = JoinedRig(delivery_ms=1500)
    free = rig.pool.lent_bytes
    rig.append(0)
    rig.run()
    (request,) = rig.wire
    (_, batch), *_ = request.flight.entries
    assert batch.data is not None
    on_wire = bytes(batch.data)
    lent = rig.pool.lent_bytes
    assert lent > free

    rig.pass_ms(5000)
    rig.run()
    rig.run()
    assert len(rig.failed(0)) == 1
    assert rig.pool.lent_bytes == lent
    rig.append(1)
    rig.run()
    assert bytes(batch.data) == on_wire

    rig.answer(request)
    assert rig.pool.lent_bytes == lent
    rig.until_idle()
    assert rig.pool.lent_bytes == free


@pytest.mark.row("F44")
def test_a_record_that_expires_before_its_answer_is_read_has_failed() -> None:
    rig = JoinedRig(delivery_ms=1500, in_flight=1)
    first = rig.append(0)
    rig.run()
    rig.pass_ms(1500)
    rig.run()
    assert rig.failed(0)[first].kind is DeliveryFailureKind.MAY_BE_WRITTEN

    rig.answer()
    assert rig.delivered(0) == {}
    assert rig.released(0) == [first]
    assert rig.joined.idle


@pytest.mark.row("F46")
def test_with_one_request_in_flight_the_next_waits_for_the_answer_to_the_one_that_expired() -> None:
    rig = JoinedRig(delivery_ms=1000, in_flight=1)
    first = rig.append(0)
    rig.run()
    rig.pass_ms(750)
    second = rig.append(0)
    assert rig.run() == []
    rig.pass_ms(750)
    assert rig.run() == []
    assert list(rig.failed(0)) == [first]

    rig.answer()
    (request,) = rig.run()
    assert request.of(0).first == second
    rig.answer()
    assert rig.delivered(0) == {second: 2}


@pytest.mark.row("F47")
def test_an_expired_record_is_told_once_whatever_comes_back_for_it() -> None:
    rig = JoinedRig(delivery_ms=1500)
    first = rig.append(0)
    rig.run()
    rig.pass_ms(1500)
    rig.run()
    rig.refuse(NOT_LEADER, partition=0)
    told = list(rig.outcomes)

    assert [(one.first, one.count) for one in told] == [(first, 1)]
    rig.until_idle()
    assert rig.delivered(0) == {}
    assert rig.released(0) == [first]


@pytest.mark.row("F48")
def test_an_expired_batch_that_was_too_large_has_failed_whole() -> None:
    rig = JoinedRig(delivery_ms=1500)
    first = rig.append(0, count=2)
    rig.run()
    rig.pass_ms(1500)
    rig.run()
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    assert sorted(rig.failed(0)) == [first, first + 1]

    rig.until_idle()
    assert rig.delivered(0) == {}
    assert sorted(rig.failed(0)) == [first, first + 1]


@pytest.mark.row("F49")
def test_the_next_look_is_when_the_oldest_record_expires() -> None:
    rig = JoinedRig(delivery_ms=1500)
    rig.until_idle()
    rig.pass_ms(2000)
    rig.run()
    assert rig.joined.next_deadline(rig.now) is None

    rig.append(0)
    rig.run()
    wanted = rig.joined.next_deadline(rig.now)
    assert wanted is not None
    assert round((wanted - rig.now) * 1000) == 1500
    rig.answer()
    rig.pass_ms(1500)
    rig.append(0)
    rig.run()
    again = rig.joined.next_deadline(rig.now)
    assert again is not None
    assert again > rig.now


@pytest.mark.row("F50")
def test_records_of_several_partitions_expire_together() -> None:
    rig = JoinedRig(delivery_ms=1500, in_flight=1)
    rig.append(0)
    rig.run()
    rig.append(1)
    rig.run()
    rig.pass_ms(1500)
    rig.run()

    assert rig.failed(0)[1].kind is DeliveryFailureKind.MAY_BE_WRITTEN
    assert rig.failed(1)[1].kind is DeliveryFailureKind.EXPIRED


@pytest.mark.row("F67")
def test_what_expires_in_an_iteration_is_not_sent_in_it() -> None:
    rig = JoinedRig(delivery_ms=1500, linger_ms=1500)
    requests = rig.requests
    first = rig.append(0)
    assert rig.run() == []
    rig.pass_ms(1500)

    assert rig.run() == []
    assert rig.failed(0)[first].kind is DeliveryFailureKind.EXPIRED
    assert rig.requests == requests
