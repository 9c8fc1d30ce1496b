"""Faults of other clients' senders that must not be ours: producers that fall silent, die of one record, or change the order."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind

from tests.conformance.joined_rig import (
    INVALID_RECORD,
    LEADER_NOT_AVAILABLE,
    LEADERS,
    MESSAGE_TOO_LARGE,
    NOT_LEADER,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_PRODUCER_ID,
    JoinedRig,
)
from tests.fakes.model_broker import Log


def values(rig: JoinedRig, partition: int) -> list[bytes]:
    """What is in the log behind the rig's own first record."""
    return rig.log(partition).records[1:]


@pytest.mark.fault("K1")
@pytest.mark.parametrize("arrived", [0, 1])
def test_after_a_retried_batch_has_expired_later_records_are_sent(arrived: int) -> None:
    rig = JoinedRig(delivery_ms=1500, backoff_ms=(100, 100))
    lost = rig.append(0, value=b"lost")
    rig.run()
    rig.refuse(LEADER_NOT_AVAILABLE, partition=0)
    rig.pass_ms(200)
    rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == [lost], "it is sent a second time"
    rig.down.add(0)
    rig.lose(0, arrived=arrived)
    rig.pass_ms(1300)
    rig.run()
    assert rig.failed(0)[lost].kind is DeliveryFailureKind.MAY_BE_WRITTEN

    later = [rig.append(0, value=b"%d" % number) for number in range(3)]
    beside = rig.append(1)
    rig.down.clear()
    rig.until_idle()
    assert list(rig.delivered(0)) == later
    assert list(rig.delivered(1)) == [beside]
    assert values(rig, 0) == [b"lost", b"0", b"1", b"2"]
    assert rig.joined.failure is None


@pytest.mark.fault("K1")
def test_a_producer_that_expired_everything_in_an_outage_sends_what_comes_after_it() -> None:
    rig = JoinedRig(delivery_ms=1500, backoff_ms=(100, 100))
    for turn in range(5):
        for partition in LEADERS:
            _ = rig.append(partition)
        rig.run()
        rig.down |= {0, 1}
        for node in (0, 1):
            rig.lose(node)
        rig.pass_ms(2000)
        rig.run()
        assert all(len(rig.failed(partition)) == turn + 1 for partition in LEADERS)
        rig.down.clear()
        good = {partition: rig.append(partition, value=b"good %d" % turn) for partition in LEADERS}
        rig.until_idle()
        assert all(good[partition] in rig.delivered(partition) for partition in LEADERS)
    assert all(
        [value for value in values(rig, partition) if value.startswith(b"good")] == [b"good %d" % n for n in range(5)]
        for partition in LEADERS
    )


@pytest.mark.fault("K2")
@pytest.mark.parametrize("code", [MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED, INVALID_RECORD])
def test_a_refused_record_fails_alone(code: int) -> None:
    rig = JoinedRig()
    before = rig.append(0, value=b"before")
    rig.until_idle()
    bad = rig.append(0, value=b"bad")
    rig.run()
    behind = rig.append(0, value=b"behind")
    beside = {partition: rig.append(partition) for partition in (1, 2)}
    rig.run()
    rig.refuse(code, partition=0)
    while rig.on_wire(0):
        rig.refuse(OUT_OF_ORDER, partition=0, log_start=0)
    rig.until_idle()

    assert list(rig.failed(0)) == [bad]
    assert rig.failed(0)[bad].code == code
    assert list(rig.delivered(0)) == [before, behind]
    assert [list(rig.delivered(partition)) for partition in (1, 2)] == [[beside[1]], [beside[2]]]
    later = [rig.append(partition, value=b"later") for partition in LEADERS]
    rig.until_idle()
    assert all(later[partition] in rig.delivered(partition) for partition in LEADERS)
    assert values(rig, 0) == [b"before", b"behind", b"later"]
    assert rig.joined.failure is None


@pytest.mark.fault("K4")
def test_five_batches_of_a_partition_are_in_flight_with_idempotence() -> None:
    rig = JoinedRig()
    ordinals: list[int] = []
    for number in range(8):
        ordinals.append(rig.append(0, value=b"%d" % number))
        rig.run()
    assert [sent.first for sent in rig.on_wire(0)] == ordinals[:5]
    assert [sent.sequence for sent in rig.on_wire(0)] == ordinals[:5]
    # Each answer makes room for the next: the connection is never idle.
    rig.answer()
    rig.run()
    assert rig.on_wire(0)[-1].first == ordinals[5]
    assert len(rig.on_wire(0)) == 5
    rig.until_idle()
    assert values(rig, 0) == [b"%d" % number for number in range(8)]


@pytest.mark.fault("K6")
@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN_PRODUCER_ID])
def test_a_new_epoch_takes_along_all_that_is_in_flight(code: int) -> None:
    rig = JoinedRig(backoff_ms=(10, 10), delivery_ms=10_000_000)
    ordinals: list[int] = []
    for number in range(5):
        ordinals.append(rig.append(0, value=b"%d" % number))
        rig.run()
    assert len(rig.on_wire(0)) == 5
    other = rig.append(2, value=b"other")
    rig.run()
    # The leader has lost what it knew of us: nothing of it is taken before another epoch begins.
    for _ in range(40):
        rig.run()
        for sent in rig.on_wire(0)[:1]:
            if sent.epoch == 0:
                rig.refuse(code, partition=0, log_start=1)
            else:
                rig.answer(rig.request_of(0))
        if len(rig.delivered(0)) == 5:
            break
        rig.pass_ms(20_000)
    rig.until_idle()
    assert list(rig.delivered(0)) == ordinals
    assert values(rig, 0) == [b"%d" % number for number in range(5)]
    assert list(rig.delivered(2)) == [other]
    assert not rig.failed(0)


@pytest.mark.fault("K8", "K24")
@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("code", [NOT_LEADER, REQUEST_TIMED_OUT, LEADER_NOT_AVAILABLE])
def test_what_fails_among_several_partitions_of_a_connection_changes_no_order(in_flight: int, code: int) -> None:
    rig = JoinedRig(in_flight=in_flight, backoff_ms=(50, 50), delivery_ms=600_000)
    number = 0
    for turn in range(30):
        for partition in (0, 1):
            rig.append(partition, value=b"%d" % number)
            number += 1
        rig.run()
        # Every third answer refuses one of the two partitions, in turns; every seventh is lost.
        if rig.wire and turn % 3 == 0:
            rig.refuse(code, partition=rig.wire[0].sent[turn // 3 % len(rig.wire[0].sent)].partition)
        elif turn % 7 == 0:
            rig.lose(0, arrived=turn % 2)
        elif rig.wire:
            rig.answer()
        rig.pass_ms(20)
    rig.until_idle()
    for partition in (0, 1):
        assert values(rig, partition) == [b"%d" % n for n in range(partition, number, 2)]
        assert len(rig.delivered(partition)) == number // 2
        assert not rig.failed(partition)


@pytest.mark.fault("K9")
def test_a_lost_connection_fails_nothing_and_sends_all_of_it_again_under_its_stamps() -> None:
    rig = JoinedRig()
    for number in range(3):
        for partition in (0, 1):
            rig.append(partition, value=b"%d" % number)
        rig.run()
    before = {part: [(one.epoch, one.sequence, one.count) for one in rig.on_wire(part)] for part in (0, 1)}
    assert all(len(stamps) == 3 for stamps in before.values())
    rig.lose(0, arrived=1)

    again: dict[int, list[tuple[int, int, int]]] = {0: [], 1: []}
    for _ in range(20):
        for request in rig.run():
            for one in request.sent:
                again[one.partition].append((one.epoch, one.sequence, one.count))
        rig.answer()
    assert again == before
    for partition in (0, 1):
        assert not rig.failed(partition)
        assert values(rig, partition) == [b"0", b"1", b"2"]
    assert rig.joined.idle


@pytest.mark.fault("K13")
@pytest.mark.parametrize("refused", [0, 1])
def test_a_new_leader_gets_the_batch_to_be_sent_again_before_the_next_one(refused: int) -> None:
    rig = JoinedRig(backoff_ms=(100, 100))
    ordinals: list[int] = []
    for number in range(3):
        ordinals.append(rig.append(0, value=b"%d" % number))
        rig.run()
    for _ in range(refused):
        rig.answer()
    rig.refuse(NOT_LEADER, partition=0, request=rig.wire[0])
    ordinals.append(rig.append(0, value=b"3"))
    rig.lead(0, node=1, epoch=1)
    went = [sent for request in rig.run() for sent in request.sent if request.node == 1]
    assert [sent.first for sent in went] == [ordinals[refused]], "the oldest, alone"
    # What the old leader still answers changes nothing.
    while any(request.node == 0 for request in rig.wire):
        rig.refuse(NOT_LEADER, partition=0, request=next(one for one in rig.wire if one.node == 0))
    rig.until_idle()
    assert list(rig.delivered(0)) == ordinals
    assert values(rig, 0) == [b"0", b"1", b"2", b"3"]


@pytest.mark.fault("K14")
@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_a_broker_that_knows_less_of_us_after_an_outage_is_recovered_from(kept: int) -> None:
    """Of five batches whose answers were lost some are in the log; it remembers the last one."""
    rig = JoinedRig(backoff_ms=(10, 10), delivery_ms=600_000)
    ordinals: list[int] = []
    for number in range(5):
        ordinals.append(rig.append(0, value=b"%d" % number))
        rig.run()
    rig.lose(0, arrived=kept)
    rig.log(0).restart()
    ordinals += [rig.append(0, value=b"%d" % number) for number in range(5, 8)]
    rig.until_idle()
    assert values(rig, 0) == [b"%d" % number for number in range(8)]
    assert list(rig.delivered(0)) == ordinals
    assert not rig.failed(0)


@pytest.mark.fault("K14", "K16")
def test_sequences_that_do_not_fit_are_the_matter_of_one_partition_and_end() -> None:
    rig = JoinedRig(backoff_ms=(10, 10), delivery_ms=600_000)
    first = rig.append(0, value=b"first")
    rig.run()
    rig.answer(rig.request_of(0), {0: rig.log(0).produce(rig.on_wire(0)[0].data)})
    # The log is made anew by an election that was not clean: what was acknowledged is gone.
    rig.logs[0] = Log(base=2)
    second = rig.append(0, value=b"second")
    beside = [rig.append(partition, value=b"beside") for partition in (1, 2)]
    rig.run()
    rig.refuse(OUT_OF_ORDER, partition=0, log_start=0)
    rig.until_idle()
    assert list(rig.delivered(0)) == [first, second]
    assert [list(rig.delivered(partition)) for partition in (1, 2)] == [[beside[0]], [beside[1]]]
    assert rig.joined.failure is None


@pytest.mark.fault("K17")
def test_a_broker_that_does_not_answer_holds_up_its_own_partitions_only() -> None:
    rig = JoinedRig(pool_bytes=256 * 1024, delivery_ms=600_000)
    stuck = [rig.append(2, value=bytes(10_000)) for _ in range(40)]
    for _ in range(20):
        rig.run()
    asked = [request for request in rig.wire if request.node == 1]
    assert asked
    # Memory for batches is short by now; the other broker's partitions get through it again and again.
    for number in range(40):
        ordinal = rig.append(0, value=bytes(10_000))
        rig.run()
        assert rig.on_wire(0), f"record {number} waits for the other broker"
        rig.answer(rig.request_of(0))
        assert ordinal in rig.delivered(0)
    assert not rig.delivered(2)
    while len(rig.delivered(2)) < 40:
        rig.run()
        rig.answer()
    assert list(rig.delivered(2)) == stuck
