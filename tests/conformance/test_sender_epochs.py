"""Rows of group F: partitions that get a new epoch or producer id. Only after a gap was confirmed, and for one partition alone."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind
from penstock.producer.records.sequence_ranges import EPOCH_MAX

from tests.conformance.joined_rig import (
    NOT_LEADER,
    OUT_OF_ORDER,
    PRODUCER_ID,
    UNKNOWN_PRODUCER_ID,
    JoinedRig,
    Sent,
    ok,
)

PAUSE_MS = 15_000
PAUSE_AFTER_LOSS_MS = 45_000


def rig_of(**given: object) -> JoinedRig:
    return JoinedRig(delivery_ms=120_000, **given)  # type: ignore[arg-type]


def refused_pass(rig: JoinedRig, partition: int = 0, *, code: int = OUT_OF_ORDER, log_start: int = 0) -> list[Sent]:
    """Every batch of the partition that is sent is refused, until nothing is sent any more; returns what was tried."""
    tried: list[Sent] = []
    while rig.on_wire(partition):
        tried.append(rig.on_wire(partition)[0])
        rig.refuse(code, partition=partition, log_start=log_start)
        rig.run()
    return tried


def confirmed_gap(rig: JoinedRig, partition: int = 0, *, code: int = OUT_OF_ORDER, log_start: int = 0) -> None:
    """A first pass, the pause, and a second pass."""
    assert refused_pass(rig, partition, code=code, log_start=log_start)
    rig.pass_ms(PAUSE_MS - 1)
    rig.run()
    assert rig.on_wire(partition) == []
    rig.pass_ms(1)
    rig.run()
    again = rig.on_wire(partition)[0]
    while rig.on_wire(partition) and rig.on_wire(partition)[0][3:5] == (again.producer_id, again.epoch):
        rig.refuse(code, partition=partition, log_start=log_start)
        rig.run()


def stamps(sent: list[Sent]) -> list[tuple[int, int]]:
    return [(one.epoch, one.sequence) for one in sent]


@pytest.mark.row("F16")
def test_the_next_batch_out_of_order_gets_a_new_epoch_after_two_refused_passes_and_an_alarm() -> None:
    rig = rig_of()
    rig.append(0, count=2)
    rig.run()
    rig.answer()
    third = rig.append(0)
    rig.run()
    assert stamps(rig.on_wire(0)) == [(0, 3)]

    confirmed_gap(rig)

    assert stamps(rig.on_wire(0)) == [(1, 0)]
    assert [notice.alarm for notice in rig.notices] == ["gap", "gap_confirmed"]
    rig.answer()
    assert rig.delivered(0)[third] == 3


@pytest.mark.row("F17")
def test_a_bump_of_one_partition_leaves_the_epoch_of_another_alone() -> None:
    rig = rig_of(leaders={0: 0, 1: 0})
    rig.append(0)
    rig.run()
    confirmed_gap(rig)
    assert stamps(rig.on_wire(0)) == [(1, 0)]

    rig.append(1)
    rig.run()
    assert stamps(rig.on_wire(1)) == [(0, 1)]
    rig.until_idle()
    assert rig.failed(0) == rig.failed(1) == {}


@pytest.mark.row("F18", "F28", "G15")
def test_a_batch_in_flight_of_another_partition_keeps_its_stamp_through_every_retry() -> None:
    rig = rig_of(leaders={0: 0, 1: 1})
    second = rig.append(1)
    rig.run()
    rig.append(0)
    rig.run()
    confirmed_gap(rig)

    for _ in range(2):
        rig.refuse(NOT_LEADER, partition=1)
        rig.run()
        assert stamps(rig.on_wire(1)) == [(0, 1)]
    third = rig.append(1)
    rig.answer(rig.request_of(1))
    rig.run()
    assert stamps(rig.on_wire(1)) == [(0, 2)]
    rig.until_idle()
    assert rig.delivered(1) == {second: 1, third: 2}


@pytest.mark.row("F26", "G13")
def test_with_its_epochs_used_up_a_partition_alone_gets_another_producer_id_and_begins_with_one_record() -> None:
    rig = rig_of(leaders={0: 0, 1: 1}, epoch=EPOCH_MAX)
    other = rig.append(1)
    rig.run()
    first = rig.append(0, count=3)
    rig.run()
    confirmed_gap(rig)
    assert rig.on_wire(0) == []
    assert rig.joined.wants_producer_id

    rig.refuse(NOT_LEADER, partition=1)
    rig.joined.producer_id_known(PRODUCER_ID + 1, 0, now=rig.now)
    rig.run()
    (sent,) = rig.on_wire(0)
    assert (sent.producer_id, sent.epoch, sent.sequence, sent.count) == (PRODUCER_ID + 1, 0, 0, 1)
    (kept,) = rig.on_wire(1)
    assert (kept.producer_id, kept.epoch, kept.sequence) == (PRODUCER_ID, EPOCH_MAX, 1)
    assert not rig.joined.wants_producer_id

    rig.answer(rig.request_of(1), {1: ok(10)})
    rig.until_idle()
    assert rig.delivered(1) == {other: 10}
    assert sorted(rig.delivered(0)) == [first, first + 1, first + 2]
    rig.append(1)
    rig.run()
    assert [(one.producer_id, one.sequence) for one in rig.on_wire(1)] == [(PRODUCER_ID, 2)]


@pytest.mark.row("F27")
@pytest.mark.parametrize("forced", [False, True])
def test_closing_while_a_producer_id_is_asked_for_drains_or_fails_everything_and_never_blocks(forced: bool) -> None:
    rig = rig_of(leaders={0: 0, 1: 1}, epoch=EPOCH_MAX)
    other = rig.append(1)
    rig.run()
    first = rig.append(0)
    rig.run()
    confirmed_gap(rig)
    assert rig.joined.wants_producer_id

    if forced:
        rig.joined.close(rig.now, now=rig.now)
        rig.run()
        assert rig.failed(0)[first].kind is DeliveryFailureKind.CLOSED
        assert rig.failed(1)[other].kind is DeliveryFailureKind.MAY_BE_WRITTEN
    else:
        rig.joined.close(rig.now + 60, now=rig.now)
        rig.joined.producer_id_known(PRODUCER_ID + 1, 0, now=rig.now)
        rig.until_idle()
        assert list(rig.delivered(0)) == [first]
        assert list(rig.delivered(1)) == [other]
    assert rig.joined.idle


@pytest.mark.row("F31")
def test_an_unknown_producer_whose_records_were_deleted_goes_on_in_a_new_epoch_from_0() -> None:
    rig = rig_of()
    rig.append(0)
    rig.run()
    rig.answer(answers={0: ok(1000)})
    first = rig.append(0, count=2)
    rig.run()

    confirmed_gap(rig, code=UNKNOWN_PRODUCER_ID, log_start=1010)

    assert stamps(rig.on_wire(0)) == [(1, 0)]
    assert rig.on_wire(0)[0].count == 2
    rig.answer(answers={0: ok(1011, log_start=1010)})
    assert rig.delivered(0) == {1: 1000, first: 1011, first + 1: 1012}


@pytest.mark.row("F33")
def test_two_batches_of_an_unknown_producer_both_go_on_in_the_new_epoch() -> None:
    rig = rig_of()
    rig.append(0)
    rig.run()
    rig.answer(answers={0: ok(1000)})
    first = rig.append(0)
    rig.run()
    second = rig.append(0)
    rig.run()
    assert len(rig.on_wire(0)) == 2

    confirmed_gap(rig, code=UNKNOWN_PRODUCER_ID, log_start=1010)

    offset = 1011
    seen: list[tuple[int, int]] = []
    while rig.on_wire(0):
        seen += stamps([rig.on_wire(0)[0]])
        count = rig.on_wire(0)[0].count
        rig.answer(answers={0: ok(offset, log_start=1010)})
        offset += count
        rig.run()
    assert seen[0] == (1, 0)
    assert {epoch for epoch, _ in seen} == {1}
    assert rig.delivered(0) == {1: 1000, first: 1011, second: 1012}


@pytest.mark.row("F34")
def test_an_unknown_producer_whose_records_are_still_there_goes_on_with_an_alarm_and_fails_nothing() -> None:
    rig = rig_of()
    rig.append(0)
    rig.run()
    rig.answer(answers={0: ok(1000)})
    first = rig.append(0)
    rig.run()

    confirmed_gap(rig, code=UNKNOWN_PRODUCER_ID, log_start=10)

    assert stamps(rig.on_wire(0)) == [(1, 0)]
    assert "gap_confirmed" in [notice.alarm for notice in rig.notices]
    rig.answer(answers={0: ok(1001)})
    assert rig.delivered(0)[first] == 1001
    assert rig.failed(0) == {}


@pytest.mark.row("F40")
def test_after_a_disconnect_the_pause_is_longer_and_then_only_that_partition_has_another_id() -> None:
    rig = rig_of(leaders={0: 0, 1: 1}, epoch=EPOCH_MAX)
    first = rig.append(0)
    rig.run()
    rig.lose(0)
    rig.run()
    assert refused_pass(rig)
    rig.pass_ms(PAUSE_AFTER_LOSS_MS - 1)
    rig.run()
    assert rig.on_wire(0) == []
    rig.pass_ms(1)
    rig.run()
    assert refused_pass(rig)
    rig.joined.producer_id_known(PRODUCER_ID + 1, 0, now=rig.now)
    rig.run()

    assert [(one.producer_id, one.epoch, one.sequence) for one in rig.on_wire(0)] == [(PRODUCER_ID + 1, 0, 0)]
    rig.answer()
    assert list(rig.delivered(0)) == [first]
    rig.append(1)
    rig.run()
    assert [(one.producer_id, one.epoch, one.sequence) for one in rig.on_wire(1)] == [(PRODUCER_ID, EPOCH_MAX, 1)]


@pytest.mark.row("F41")
def test_a_first_batch_out_of_order_goes_out_once_in_the_new_epoch_after_the_confirmation() -> None:
    rig = rig_of(fresh=True)
    first = rig.append(0)
    rig.run()
    assert stamps(rig.on_wire(0)) == [(0, 0)]

    confirmed_gap(rig)

    assert stamps(rig.on_wire(0)) == [(1, 0)]
    rig.answer()
    assert list(rig.delivered(0)) == [first]


def test_a_replica_that_knows_a_newer_leader_ends_the_check() -> None:
    rig = rig_of(leaders={0: 0}, replicas=(2,), leader_epoch=3)
    first = rig.append(0)
    rig.run()
    rig.replicas_know = 4
    assert refused_pass(rig)
    rig.run()
    assert (0, 0, 4) in [(hint.index, hint.leader, hint.leader_epoch) for hint in rig.hints]
    rig.pass_ms(PAUSE_MS)
    assert rig.run() == []

    rig.lead(0, node=1, epoch=4)
    rig.run()
    assert stamps(rig.on_wire(0)) == [(0, 1)]
    rig.answer()
    assert list(rig.delivered(0)) == [first]


def test_a_replica_that_does_not_answer_keeps_the_gap_unconfirmed_until_the_record_expires() -> None:
    rig = rig_of(leaders={0: 0}, replicas=(2,))
    rig.down.add(2)
    first = rig.append(0)
    rig.run()
    assert refused_pass(rig)
    rig.pass_ms(PAUSE_MS)
    assert rig.run() == []

    rig.pass_ms(120_000)
    rig.run()
    assert rig.failed(0)[first].kind is DeliveryFailureKind.MAY_BE_WRITTEN
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in rig.failed(0)[first].message
    assert "a gap that is not confirmed yet" in rig.failed(0)[first].message
    assert rig.released(0) == [first]
    assert rig.joined.wants_producer_id


def test_where_nothing_can_tell_the_partition_goes_on_under_another_id_without_what_has_failed() -> None:
    rig = rig_of(leaders={0: 0}, replicas=(2,))
    rig.down.add(2)
    rig.append(0)
    rig.run()
    assert refused_pass(rig)
    rig.pass_ms(119_000)
    later = rig.append(0)
    rig.run()
    rig.pass_ms(1_000)
    rig.run()
    rig.joined.producer_id_known(PRODUCER_ID + 1, 0, now=rig.now)
    rig.run()

    assert [(sent.first, sent.producer_id, sent.sequence) for sent in rig.on_wire(0)] == [(later, PRODUCER_ID + 1, 0)]
    rig.answer()
    assert list(rig.delivered(0)) == [later]
