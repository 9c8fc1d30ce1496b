"""A refusal of a batch that may be in the log already: what lies behind it tells (ERR-2)."""

from penstock.producer.delivery.outcomes import DeliveryFailureKind

from tests.conformance.joined_rig import INVALID_RECORD, MESSAGE_TOO_LARGE, OUT_OF_ORDER, JoinedRig

PAUSE_AFTER_LOSS_MS = 45_000


def doubtful_rig(*, arrived: int) -> JoinedRig:
    """Record 1 was sent over a connection that ended; it reached the broker if `arrived`, and is sent again."""
    rig = JoinedRig(delivery_ms=120_000)
    rig.append(0)
    rig.run()
    rig.lose(0, arrived=arrived)
    rig.run()
    return rig


def test_a_refused_record_that_is_in_the_log_is_delivered_when_the_next_is_taken() -> None:
    rig = doubtful_rig(arrived=1)
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    assert rig.failed(0) == {}
    assert rig.run() == []

    rig.append(0)
    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(2, 0, 2)]
    rig.answer()
    assert rig.delivered(0) == {1: -1, 2: 2}
    assert rig.joined.idle


def test_a_refused_record_that_is_not_in_the_log_fails_after_two_passes_and_the_next_goes_on_in_a_new_epoch() -> None:
    rig = doubtful_rig(arrived=0)
    rig.refuse(INVALID_RECORD, partition=0)
    rig.append(0)
    rig.run()
    rig.answer()
    assert rig.failed(0) == rig.delivered(0) == {}

    rig.pass_ms(PAUSE_AFTER_LOSS_MS)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [1]
    rig.refuse(INVALID_RECORD, partition=0)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [2]
    rig.answer()

    assert rig.failed(0)[1].kind is DeliveryFailureKind.REFUSED
    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(2, 1, 0)]
    rig.answer()
    assert list(rig.delivered(0)) == [2]
    assert len(rig.log(0).records) == 2


def test_with_several_behind_it_the_newest_is_tried_first() -> None:
    rig = JoinedRig(delivery_ms=120_000)
    for _ in range(3):
        rig.append(0)
        rig.run()
    rig.lose(0, arrived=3)
    rig.run()
    rig.refuse(INVALID_RECORD, partition=0)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [3]
    rig.answer()

    assert rig.delivered(0) == {1: -1, 2: -1, 3: 3}
    assert rig.joined.idle


def test_a_lost_answer_begins_with_the_refused_one_again() -> None:
    rig = doubtful_rig(arrived=1)
    rig.append(0)
    rig.refuse(INVALID_RECORD, partition=0)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [2]
    rig.lose(0)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [1]
    rig.refuse(INVALID_RECORD, partition=0)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [2]
    rig.answer()
    assert rig.delivered(0) == {1: -1, 2: 2}


def test_where_neighbours_are_refused_for_their_content_nothing_is_claimed() -> None:
    rig = doubtful_rig(arrived=0)
    rig.append(0)
    rig.refuse(INVALID_RECORD, partition=0)
    rig.run()
    rig.refuse(INVALID_RECORD, partition=0)
    assert rig.failed(0) == {}

    rig.pass_ms(120_000)
    rig.run()
    assert {failure.kind for failure in rig.failed(0).values()} == {DeliveryFailureKind.MAY_BE_WRITTEN}


def test_before_the_first_acknowledgement_nothing_can_tell_and_it_is_said_so() -> None:
    rig = JoinedRig(fresh=True, delivery_ms=120_000)
    rig.append(0)
    rig.run()
    rig.lose(0)
    rig.run()
    rig.refuse(INVALID_RECORD, partition=0)
    assert rig.failed(0)[0].kind is DeliveryFailureKind.MAY_BE_WRITTEN

    rig.append(0)
    rig.run()
    assert [(sent.first, sent.epoch, sent.sequence) for sent in rig.on_wire(0)] == [(1, 1, 0)]


def test_a_refused_record_that_is_out_of_order_when_tried_again_is_an_ordinary_gap() -> None:
    rig = doubtful_rig(arrived=0)
    rig.append(0)
    rig.refuse(INVALID_RECORD, partition=0)
    rig.run()
    rig.lose(0)
    rig.run()
    for _ in range(4):
        rig.refuse(OUT_OF_ORDER, partition=0, log_start=0)
        rig.run()
        if not rig.on_wire(0):
            break
    assert [notice.alarm for notice in rig.notices] == ["gap"]
