"""Rows of group F: batches in flight, answers in any order, retries, leaders that move."""

import pytest
from penstock.producer.metadata.cluster import BrokerAddress
from penstock.producer.protocol.produce_request import LeaderHint

from tests.conformance.joined_rig import (
    DUPLICATE,
    LEADER_NOT_AVAILABLE,
    NOT_LEADER,
    OUT_OF_ORDER,
    PRODUCER_ID,
    REQUEST_TIMED_OUT,
    UNKNOWN_PRODUCER_ID,
    JoinedRig,
    ok,
    outcome,
)


@pytest.mark.row("F1")
def test_a_record_is_sent_once_connected_and_its_future_has_the_offset_of_the_answer() -> None:
    rig = JoinedRig(fresh=True)
    rig.down.add(0)
    first = rig.append(0)
    assert rig.run() == []

    rig.down.clear()
    assert [request.node for request in rig.run()] == [0]
    rig.answer(answers={0: ok(0)})

    assert not rig.wire
    assert rig.joined.idle
    assert rig.delivered(0) == {first: 0}


@pytest.mark.row("F13")
def test_two_batches_in_flight_have_one_sequence_after_the_other_and_are_acknowledged_in_turn() -> None:
    rig = JoinedRig()
    first = rig.append(0)
    rig.run()
    second = rig.append(0)
    rig.run()
    assert [sent.sequence for sent in rig.on_wire(0)] == [1, 2]

    rig.answer()
    assert rig.delivered(0) == {first: 1}
    rig.answer()
    assert rig.delivered(0) == {first: 1, second: 2}


@pytest.mark.row("F14")
def test_after_an_error_batches_are_sent_again_one_at_a_time_in_order_and_nothing_new_is_stamped() -> None:
    rig = JoinedRig()
    for _ in range(3):
        rig.append(0)
        rig.run()
    assert [sent.sequence for sent in rig.on_wire(0)] == [1, 2, 3]

    rig.refuse(LEADER_NOT_AVAILABLE, partition=0)
    rig.append(0)
    assert rig.run() == [], "two are still on the wire"
    rig.refuse(OUT_OF_ORDER, partition=0, log_start=0)
    rig.refuse(OUT_OF_ORDER, partition=0, log_start=0)
    rig.run()
    seen = [[sent.sequence for sent in rig.on_wire(0)]]
    for _ in range(4):
        rig.answer()
        rig.run()
        seen.append([sent.sequence for sent in rig.on_wire(0)])

    assert seen == [[1], [2], [3], [4], []]
    assert rig.delivered(0) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert rig.log(0).batches == [1] * 5


@pytest.mark.row("F19")
def test_answers_out_of_order_leave_the_batches_in_order() -> None:
    rig = JoinedRig()
    for _ in range(2):
        rig.append(0)
        rig.run()
    older, newer = rig.wire

    rig.refuse(OUT_OF_ORDER, partition=0, request=newer, log_start=0)
    rig.append(0)
    assert rig.run() == []
    rig.refuse(NOT_LEADER, partition=0, request=older)
    seen: list[int] = []
    for _ in range(3):
        rig.run()
        seen += [sent.sequence for sent in rig.on_wire(0)]
        rig.answer()

    assert seen == [1, 2, 3]
    assert rig.delivered(0) == {1: 1, 2: 2, 3: 3}


@pytest.mark.row("F20", "G17")
def test_the_success_of_a_later_batch_resolves_the_earlier_one_which_is_not_sent_again() -> None:
    rig = JoinedRig()
    for _ in range(2):
        rig.append(0)
        rig.run()
    older, newer = rig.wire
    for sent in (*older.sent, *newer.sent):
        _ = rig.log(0).produce(sent.data)

    rig.answer(newer)
    rig.refuse(REQUEST_TIMED_OUT, partition=0, request=older)
    rig.run()

    assert not rig.wire
    assert rig.delivered(0) == {1: -1, 2: 2}
    assert rig.joined.idle


@pytest.mark.row("F29")
def test_a_duplicate_answer_for_a_batch_that_a_later_one_resolved_is_dropped() -> None:
    rig = JoinedRig()
    for _ in range(2):
        rig.append(0)
        rig.run()
    older, newer = rig.wire

    rig.answer(newer, {0: ok(1000)})
    rig.refuse(DUPLICATE, partition=0, request=older)
    rig.append(0)
    rig.run()

    assert rig.delivered(0) == {1: -1, 2: 1000}
    assert [sent.sequence for sent in rig.on_wire(0)] == [3]
    part = rig.joined.partitions[0]
    assert part.anchor is not None
    assert part.anchor.base_offset == 1000


@pytest.mark.row("F32")
def test_an_unknown_producer_without_a_log_start_is_tried_again_unchanged() -> None:
    rig = JoinedRig()
    rig.append(0)
    rig.run()

    rig.refuse(UNKNOWN_PRODUCER_ID, partition=0, log_start=-1)
    rig.run()

    assert [(sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(0, 1)]
    rig.answer()
    assert rig.delivered(0) == {1: 1}


@pytest.mark.row("F39", "G10")
def test_the_first_batch_has_one_record_and_sequence_0_and_the_next_goes_after_its_acknowledgement() -> None:
    rig = JoinedRig(fresh=True)
    rig.append(0, count=3)
    rig.run()
    (sent,) = rig.on_wire(0)
    assert (sent.producer_id, sent.epoch, sent.sequence, sent.count) == (PRODUCER_ID, 0, 0, 1)
    assert rig.run() == []

    rig.answer()
    rig.until_idle()
    assert rig.delivered(0) == {0: 0, 1: 1, 2: 2}
    assert rig.log(0).batches[0] == 1


@pytest.mark.row("F62")
def test_a_newer_leader_epoch_ends_the_backoff_and_the_same_one_does_not() -> None:
    rig = JoinedRig(backoff_ms=(10, 100), leader_epoch=100, delivery_ms=10_000)
    rig.append(0)
    rig.run()
    rig.refuse(NOT_LEADER, partition=0)
    assert rig.run() == []

    rig.lead(0, node=1, epoch=101)
    (request,) = rig.run()
    assert request.node == 1
    rig.refuse(NOT_LEADER, partition=0)
    assert rig.run() == []
    rig.metadata()
    assert rig.run() == []

    rig.pass_ms(200)
    rig.run()
    rig.answer(answers={0: ok(999)})
    assert rig.delivered(0) == {1: 999}


@pytest.mark.row("F64")
def test_hints_of_answers_are_told_and_followed_without_backoff() -> None:
    rig = JoinedRig(leaders={0: 0, 1: 0, 2: 0}, backoff_ms=(100, 1000), leader_epoch=100)
    for partition, epoch in enumerate((100, 200, 300)):
        rig.lead(partition, node=0, epoch=epoch)
        rig.append(partition)
    rig.run()
    (request,) = rig.wire
    outcomes = [
        outcome(0, ok(0))._replace(code=NOT_LEADER, base_offset=-1, leader_hint=LeaderHint(4, 101)),
        outcome(1, ok(0))._replace(code=NOT_LEADER, base_offset=-1, leader_hint=LeaderHint(5, 201)),
        outcome(2, ok(1)),
    ]
    rig.answer_with(request, outcomes)
    assert {(hint.index, hint.leader, hint.leader_epoch) for hint in rig.hints} == {(0, 4, 101), (1, 5, 201)}
    assert rig.delivered(2) == {1: 1}
    assert rig.run() == []

    rig.follow(BrokerAddress(4, "h4", 1, ""), BrokerAddress(5, "h5", 1, ""))
    again = rig.run()
    assert {(request.node, sent.partition) for request in again for sent in request.sent} == {(4, 0), (5, 1)}
    for request in again:
        rig.answer(request)
    assert (rig.delivered(0), rig.delivered(1)) == ({1: 1}, {1: 1})


@pytest.mark.row("F65")
def test_without_a_hint_metadata_is_asked_for_and_the_backoff_is_kept() -> None:
    rig = JoinedRig(backoff_ms=(100, 1000), leader_epoch=100)
    rig.append(0)
    rig.run()
    rig.refuse(NOT_LEADER, partition=0)

    assert [(hint.index, hint.leader) for hint in rig.hints] == [(0, -1)]
    rig.pass_ms(99)
    assert rig.run() == []
    rig.pass_ms(1)
    (request,) = rig.run()
    assert request.node == 0


@pytest.mark.row("F70")
def test_a_batch_whose_partition_the_answer_leaves_out_is_sent_again() -> None:
    rig = JoinedRig()
    rig.append(0)
    rig.append(1)
    rig.run()
    (request,) = rig.wire

    rig.answer_with(request, [outcome(1, ok(1))])
    rig.run()

    assert rig.delivered(1) == {1: 1}
    assert [sent.sequence for sent in rig.on_wire(0)] == [1]
    rig.answer()
    assert rig.delivered(0) == {1: 1}
