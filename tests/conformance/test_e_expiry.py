"""Rows of the accumulator: records whose time is over, and what a forced close leaves."""

import pytest
from penstock.producer.delivery.outcomes import DeliveryFailureKind
from penstock.producer.sender.modes import SendMode
from penstock.wire.messages import PartitionHalted

from tests.conformance.joined_rig import REQUEST_TIMED_OUT, UNSUPPORTED_VERSION, JoinedRig
from tests.fakes.link_world import link_world

INT_MAX = (1 << 31) - 1
DELIVERY_MS = 3200
RETRY_MS = (100, 1000)
PARTITIONS = range(3)


def begun(rig: JoinedRig) -> JoinedRig:
    """Partitions that send at once, however long records linger."""
    for partition in PARTITIONS:
        rig.append(partition)
    rig.joined.flush(now=rig.now)
    while not rig.joined.idle:
        rig.run()
        rig.answer()
    rig.outcomes.clear()
    return rig


def mute(rig: JoinedRig, partition: int) -> None:
    """A batch of the partition is on the wire and no other may go to its node."""
    rig.in_flight = 1
    rig.append(partition)
    rig.joined.flush(now=rig.now)
    rig.run()
    assert len(rig.on_wire(partition)) == 1


def kinds(rig: JoinedRig, partition: int) -> dict[int, DeliveryFailureKind]:
    return {ordinal: failure.kind for ordinal, failure in rig.failed(partition).items()}


@pytest.mark.row("E15")
def test_a_forced_close_fails_every_record_those_on_the_wire_too() -> None:
    rig = begun(JoinedRig(batch_bytes=128, linger_ms=INT_MAX, delivery_ms=INT_MAX, fresh=True))
    rig.in_flight = 1
    for number in range(100):
        rig.append(number % 3)
    rig.run()
    sent = {partition: [one.count for one in rig.on_wire(partition)] for partition in PARTITIONS}
    assert sent == {0: [8], 1: [8], 2: [8]}
    rig.joined.close(rig.now, now=rig.now)
    rig.run()
    told = {partition: kinds(rig, partition) for partition in PARTITIONS}
    assert sum(len(every) for every in told.values()) == 100
    for every in told.values():
        assert list(every.values()).count(DeliveryFailureKind.MAY_BE_WRITTEN) == 8, (
            "what is on the wire may be written all the same"
        )
        assert set(every.values()) == {DeliveryFailureKind.MAY_BE_WRITTEN, DeliveryFailureKind.CLOSED}
    assert rig.joined.idle
    assert rig.run() == []
    rig.lose(0)
    rig.lose(1)
    assert rig.pool.lent_bytes == 0


@pytest.mark.row("E17")
@pytest.mark.parametrize("delivery_ms", [DELIVERY_MS, INT_MAX])
@pytest.mark.parametrize("muted", [False, True])
def test_a_record_expires_when_its_time_is_over_and_not_before(muted: bool, delivery_ms: int) -> None:
    rig = begun(JoinedRig(batch_bytes=1025, linger_ms=300, delivery_ms=delivery_ms, fresh=True))
    if muted:
        mute(rig, 0)
    else:
        rig.down.add(0)
    ordinal = rig.append(0)
    rig.pass_ms(300)
    rig.run()
    assert kinds(rig, 0) == {}
    rig.pass_ms(delivery_ms - 300 - 1)
    rig.run()
    assert kinds(rig, 0) == {}
    rig.pass_ms(1)
    rig.run()
    assert kinds(rig, 0)[ordinal] is DeliveryFailureKind.EXPIRED
    assert rig.failed(0)[ordinal].message.startswith(f"not delivered to test-0 within {delivery_ms} ms")


@pytest.mark.row("E18")
def test_full_and_open_batches_expire_alike_though_they_could_not_be_sent() -> None:
    rig = begun(JoinedRig(batch_bytes=1024, linger_ms=30, delivery_ms=DELIVERY_MS, fresh=True, backoff_ms=RETRY_MS))
    mute(rig, 0)
    ordinals = [rig.append(0) for _ in range(1024 // 15 + 1)]
    rig.run()
    queue = rig.joined.table.partitions[rig.joined.number_of("test", 0)].queue
    assert (queue.closed_count, queue.has_open) == (1, True)
    rig.pass_ms(DELIVERY_MS + 1)
    rig.run()
    found = kinds(rig, 0)
    assert {found[ordinal] for ordinal in ordinals} == {DeliveryFailureKind.EXPIRED}


@pytest.mark.row("E18")
@pytest.mark.parametrize("throttled", [False, True])
def test_a_batch_that_waits_to_be_sent_again_does_not_expire_before_its_time(throttled: bool) -> None:
    rig = begun(JoinedRig(batch_bytes=1024, linger_ms=30, delivery_ms=DELIVERY_MS, fresh=True, backoff_ms=RETRY_MS))
    ordinal = rig.append(0)
    rig.pass_ms(31)
    rig.run()
    assert len(rig.on_wire(0)) == 1
    rig.refuse(REQUEST_TIMED_OUT, partition=0)
    if throttled:
        rig.down.add(0)
    rig.pass_ms(60 + 100 + 1)
    rig.run()
    assert kinds(rig, 0) == {}
    rig.down.clear()
    rig.run()
    rig.answer()
    assert list(rig.delivered(0)) == [ordinal]


@pytest.mark.row("E20")
@pytest.mark.parametrize("muted", [False, True])
def test_what_was_drained_does_not_expire_from_the_queue(muted: bool) -> None:
    rig = begun(JoinedRig(linger_ms=3000, delivery_ms=DELIVERY_MS, fresh=True))
    if muted:
        mute(rig, 0)
    ordinal = rig.append(0)
    rig.pass_ms(3000)
    rig.run()
    assert ordinal not in kinds(rig, 0)
    rig.pass_ms(1000)
    rig.run()
    expired = list(kinds(rig, 0).values()).count(DeliveryFailureKind.EXPIRED)
    assert expired == (1 if muted else 0)
    if not muted:
        assert kinds(rig, 0) == {ordinal: DeliveryFailureKind.MAY_BE_WRITTEN}, (
            "it is on the wire, and stays the first of its partition"
        )
        assert rig.ghosts(0) == [ordinal]


@pytest.mark.row("E21")
def test_a_broker_that_cannot_take_format_2_fails_what_is_appended() -> None:
    rig = JoinedRig()
    first = rig.append(0)
    rig.joined.table.halt_node(0, UNSUPPORTED_VERSION, "the broker takes no Produce request that we can send")
    rig.run()
    assert {ordinal: failure.name for ordinal, failure in rig.failed(0).items()} == {first: "UNSUPPORTED_VERSION"}
    second = rig.append(0)
    assert kinds(rig, 0) == {first: DeliveryFailureKind.FATAL, second: DeliveryFailureKind.FATAL}


@pytest.mark.row("E26")
def test_a_batch_is_drained_after_its_linger_however_long_ago_that_was() -> None:
    rig = begun(JoinedRig(linger_ms=500, delivery_ms=DELIVERY_MS, fresh=True))
    rig.append(0)
    rig.run()
    assert not rig.wire
    rig.pass_ms(501)
    rig.run()
    assert len(rig.on_wire(0)) == 1
    rig.answer()
    rig.append(2)
    rig.pass_ms(4 * 500)
    rig.run()
    assert len(rig.on_wire(2)) == 1
    assert kinds(rig, 2) == {}


@pytest.mark.row("E21")
def test_no_batch_goes_to_a_broker_that_takes_old_formats_only() -> None:
    with link_world() as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        world.send()
        world.connect(ranges={0: (0, 2)})
        (halt,) = [said for said in world.bench.said if isinstance(said, PartitionHalted)]
        assert halt.code == UNSUPPORTED_VERSION
        assert world.bench.mode() is SendMode.HELD
        assert world.bench.journal == {}, "nothing was cut"
