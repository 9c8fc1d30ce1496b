"""Rows of group G: sequences of the idempotent producer, after a gap and after records that expired."""

import pytest

from tests.conformance.joined_rig import UNKNOWN_PRODUCER_ID, JoinedRig, ok
from tests.conformance.test_sender_epochs import confirmed_gap, stamps


@pytest.mark.row("G12")
def test_batches_of_an_unknown_producer_go_on_from_0_in_the_next_epoch_in_their_order() -> None:
    rig = JoinedRig(delivery_ms=120_000)
    rig.append(0)
    rig.run()
    rig.answer(answers={0: ok(500)})
    ordinals = []
    for _ in range(4):
        ordinals.append(rig.append(0))
        rig.run()
    assert stamps(rig.on_wire(0)) == [(0, 2), (0, 3), (0, 4), (0, 5)]

    confirmed_gap(rig, code=UNKNOWN_PRODUCER_ID, log_start=501)

    seen: list[tuple[int, int, int]] = []
    offset = 501
    while rig.on_wire(0):
        sent = rig.on_wire(0)[0]
        seen.append((sent.epoch, sent.sequence, sent.count))
        rig.answer(answers={0: ok(offset, log_start=501)})
        offset += sent.count
        rig.run()
    assert {epoch for epoch, _, _ in seen} == {1}
    assert [sequence for _, sequence, count in seen for sequence in range(sequence, sequence + count)] == [0, 1, 2, 3]
    delivered = rig.delivered(0)
    assert [delivered[ordinal] for ordinal in ordinals] == [501, 502, 503, 504]


@pytest.mark.row("G14", "G17")
def test_a_record_behind_one_that_expired_in_flight_takes_the_next_sequence_and_follows_it() -> None:
    rig = JoinedRig(delivery_ms=1500)
    ghost = rig.append(0)
    rig.run()
    rig.pass_ms(2000)
    rig.run()
    assert list(rig.failed(0)) == [ghost]
    assert rig.ghosts(0) == [ghost]
    rig.lose(0)

    follower = rig.append(0)
    rig.run()
    assert [(one.first, one.epoch, one.sequence) for one in rig.on_wire(0)] == [(ghost, 0, 1)]
    rig.answer()
    rig.run()
    assert [(one.first, one.epoch, one.sequence) for one in rig.on_wire(0)] == [(follower, 0, 2)]
    rig.answer()
    assert rig.released(0) == [ghost]
    assert rig.delivered(0) == {follower: 2}
