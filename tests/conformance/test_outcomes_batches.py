"""Rows about one batch on its way: cut smaller, expired, tried again where the leader is another."""

from typing import Final, get_args

import pytest
from penstock.broker.log.decompression import Codec as BrokerCodec
from penstock.broker.log.decompression import decompress
from penstock.producer.records.compression import Codec

from tests.conformance.joined_rig import MESSAGE_TOO_LARGE, NOT_LEADER, TOPIC, JoinedRig, Sent
from tests.conformance.rig import NOT_ENOUGH_REPLICAS, Rig
from tests.fakes.front_world import FrontWorld

CODECS: Final = get_args(Codec)
NUMBERS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def submit(world: FrontWorld, rig: JoinedRig) -> None:
    """What the front has open goes to the rig."""
    for one in world.take():
        data = world._front.arena.read(one.segment, 0, one.length)
        assert not isinstance(data, str)
        rig.source.chunks[one.segment] = bytes(data)
        number = rig.joined.number_of(TOPIC, one.index)
        rig.joined.submit(
            number, one.segment, one.length, one.first, one.count, round(rig.now * 1000), one.max_ts, now=rig.now
        )


def cut_smaller(codec: Codec) -> tuple[Sent, list[Sent]]:
    """A batch that was too large, and those made of it."""
    rig, world = JoinedRig(fresh=True, codec=codec), FrontWorld(0)
    world.tell(1, topic=TOPIC)
    _ = world.send(TOPIC, b"first")
    submit(world, rig)
    rig.until_idle()
    for number in range(8):
        _ = world.send(TOPIC, b"there", b"hi", headers=[("h", b"%d" % number), ("none", None)])
    submit(world, rig)
    _ = rig.run()
    (whole,) = rig.on_wire(0)
    assert whole.count == 8
    rig.refuse(MESSAGE_TOO_LARGE, partition=0)
    parts: dict[int, Sent] = {}
    for _ in range(20):
        _ = rig.run()
        for sent in rig.on_wire(0):
            parts[sent.first] = sent
        if rig.wire:
            rig.answer()
    return whole, [parts[first] for first in sorted(parts)]


@pytest.mark.row("D4")
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_is_cut_smaller_keeps_every_records_headers(codec: Codec) -> None:
    _, parts = cut_smaller(codec)
    assert len(parts) >= 2
    plain = b"".join(decompress(BrokerCodec(NUMBERS[codec]), part.data[61:], 1 << 20) for part in parts)
    # Behind length, attributes and deltas: key, value, two headers.
    rest = [b"\x04hi\x0athere\x04\x02h\x02%d\x08none\x01" % number for number in range(8)]
    places = [plain.find(one) for one in rest]
    assert min(places) > 0
    assert places == sorted(places)
    assert len(plain) == sum(len(one) + 4 for one in rest)


@pytest.mark.row("D5")
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_is_cut_smaller_keeps_format_codec_and_base_offset(codec: Codec) -> None:
    whole, parts = cut_smaller(codec)
    assert len(parts) >= 2
    for part in (whole, *parts):
        assert (part.data[:8], part.data[16], part.data[22] & 7) == (bytes(8), 2, NUMBERS[codec])
    # The same sequences, one after the other.
    assert [part.sequence for part in parts] == [whole.sequence + part.first - whole.first for part in parts]
    assert sum(part.count for part in parts) == whole.count


@pytest.mark.row("D6")
def test_a_record_expires_at_its_time_and_not_before() -> None:
    rig = JoinedRig(delivery_ms=10_240)
    rig.down.add(0)
    first = rig.append(0)
    for passed, failed in ((-2, False), (10_241, False), (1, True)):
        rig.pass_ms(passed)
        _ = rig.run()
        assert (first in rig.failed(0)) is failed


@pytest.mark.row("D7")
def test_a_record_that_was_tried_counts_from_its_creation_as_well() -> None:
    rig = JoinedRig(delivery_ms=10_240, backoff_ms=(60_000, 60_000))
    first = rig.append(0)
    _ = rig.run()
    rig.pass_ms(5000)
    rig.refuse(NOT_LEADER, partition=0)
    for passed, failed in ((-2, False), (5241, False), (1, True)):
        rig.pass_ms(passed)
        _ = rig.run()
        assert (first in rig.failed(0)) is failed


@pytest.mark.row("D11")
def test_only_a_newer_leader_epoch_is_a_change_and_only_for_the_attempt_after_it() -> None:
    rig = Rig(leader_epoch=-1)
    attempts: list[int] = []

    def looked(epoch: int) -> bool:
        """Whether the batch may be sent, with a leader of this epoch (-1: unknown)."""
        rig.move(1, epoch)
        return rig.ready().nodes == {1}

    def tried() -> None:
        """The batch is sent once more and refused, and has to wait."""
        ((_, batch),) = rig.drain()[1]
        rig.refuse(NOT_ENOUGH_REPLICAS)
        attempts.append(batch.attempts)

    rig.append(0)
    assert looked(-1)
    assert looked(100)
    tried()
    changes = [rig.ready().nodes == {1}, looked(100), looked(101), looked(101)]
    tried()
    changes += [looked(101), looked(-1)]
    assert changes == [False, False, True, True, False, False]
    rig.pass_ms(2000)
    tried()
    assert attempts == [1, 2, 3]


@pytest.mark.row("D11")
def test_a_batch_waits_before_it_is_tried_again_unless_the_leader_is_a_newer_one() -> None:
    rig = JoinedRig(delivery_ms=600_000, backoff_ms=(1000, 1000))
    _ = rig.append(0)
    _ = rig.run()
    assert len(rig.on_wire(0)) == 1
    rig.refuse(NOT_LEADER, partition=0)
    _ = rig.run()
    assert rig.on_wire(0) == []
    rig.lead(0, node=1, epoch=101)
    _ = rig.run()
    _ = rig.run()
    assert [request.node for request in rig.wire] == [1]
    rig.refuse(NOT_LEADER, partition=0)
    # The same leader epoch, or an older one: no news.
    for epoch in (101, 100):
        rig.lead(0, node=0 if epoch == 100 else 1, epoch=epoch)
        _ = rig.run()
        assert rig.on_wire(0) == []
    rig.pass_ms(1300)
    rig.until_idle()
    assert rig.delivered(0) == {1: 1}
