"""Rows of the accumulator: flush, memory, what slices become, and batches that a broker finds too large."""

import random
from collections.abc import Iterator

import pytest
from penstock.producer.records.batch_builder import HEADER_BYTES
from penstock.producer.records.compression import Codec
from penstock.wire.messages import FIRST, OPEN, StampRow

from tests.conformance.rig import NOT_ENOUGH_REPLICAS, Rig, partitions
from tests.fakes.segments import Row
from tests.fakes.shard_bench import PRODUCER_ID

INT_MAX = (1 << 31) - 1
KV_BYTES = 15
KV = Row(b"value", key=b"key")
TOO_LARGE = 10


def in_batches(rig: Rig, partition: int) -> list[tuple[int, int]]:
    """First ordinal and count of each batch that was acknowledged."""
    return [(item.first, item.count) for item in rig.told if item.partition == partition]


@pytest.mark.row("E7")
def test_whoever_appends_and_however_little_memory_there_is_all_records_arrive() -> None:
    chance = random.Random(7)
    rig = Rig(batch_bytes=1024 - HEADER_BYTES, pool_bytes=10 << 10, leaders={0: 1, 1: 1})

    def caller(number: int) -> Iterator[None]:
        for turn in range(10_000):
            rig.append(turn % 2, value=b"%d:%d" % (number, turn))
            yield

    callers = [caller(number) for number in range(5)]
    steps = 0
    while callers:
        place = chance.randrange(len(callers))
        if next(callers[place], 0) == 0:
            del callers[place]
        steps += 1
        if steps % 100 == 0:
            _ = rig.drain(max_bytes=5 << 10)
            if len(rig.wire) > 3:
                rig.answer()
    rig.run(10_000)
    read = [value.split(b":") for partition in (0, 1) for value in rig.log(partition).records[1:]]
    assert len(read) == 50_000
    for number in range(5):
        turns = [int(turn) for told, turn in read if int(told) == number]
        assert turns == [*range(0, 10_000, 2), *range(1, 10_000, 2)], "each caller's records in its order"
    assert rig.pool.lent_bytes == 0


@pytest.mark.row("E13")
def test_a_flush_sends_what_lingers_and_leaves_nothing_incomplete() -> None:
    rig = Rig(batch_bytes=4096, linger_ms=INT_MAX)
    for number in range(100):
        rig.append(number % 3)
    assert rig.ready().nodes == set()
    rig.flush()
    assert rig.ready().nodes == {1, 2}
    assert partitions(rig.drain()) == {0, 1, 2}
    assert sum(item.count for item in rig.told) == 0
    while rig.wire:
        rig.answer()
    assert sum(item.count for item in rig.told) == 100
    for partition in range(3):
        assert rig.unresolved(partition) == []
        assert not rig.table.partitions[partition].queue.has_open
    assert rig.pool.lent_bytes == 0


# --- too large -------------------------------------------------------------------------------------------------------


@pytest.mark.row("E23")
@pytest.mark.parametrize(("batch_bytes", "codec", "value_bytes"), [(4096, "none", 1024), (1024, "gzip", 900)])
def test_a_batch_that_is_too_large_is_cut_in_two_and_both_parts_are_acknowledged(
    batch_bytes: int, codec: Codec, value_bytes: int
) -> None:
    values = [random.Random(n).randbytes(value_bytes) for n in range(2)]
    rig = Rig(batch_bytes=batch_bytes, codec=codec, leaders={0: 1})
    rig.ratio.value = 0.1
    rig.hand(rig.slice_of(0, [Row(value) for value in values]))
    rig.flush()
    ((_, big),) = rig.drain()[1]
    assert big.count == 2
    assert big.record_bytes > 2 * value_bytes
    rig.refuse(NOT_ENOUGH_REPLICAS)
    rig.pass_ms(121)
    assert [batch is big for _, batch in rig.drain()[1]] == [True]
    rig.refuse(TOO_LARGE)
    assert codec == "none" or rig.ratio.value >= 1.0
    rig.pass_ms(101)
    ((_, first),) = rig.drain()[1]
    assert (first.count, first.sequence) == (1, 0)
    assert [(slot.first, slot.count) for slot in rig.live_slots(0)] == [(1, 1), (2, 1)], (
        "both parts are in the journal before the first is sent, and the big one is not any more"
    )
    rig.answer()
    assert [item.base_offset for item in rig.told] == [2]
    ((_, second),) = rig.drain()[1]
    assert (second.count, second.sequence) == (1, 1)
    rig.answer()
    assert [item.base_offset for item in rig.told] == [2, 3]
    assert rig.log(0).records[1:] == values


@pytest.mark.row("E24")
def test_parts_of_a_batch_cost_the_pool_nothing() -> None:
    chance = random.Random(24)
    values = [chance.randbytes(100) for _ in range(20)]
    rig = Rig(batch_bytes=1024, pool_bytes=3072, codec="gzip", leaders={0: 1})
    rig.logs[0].largest_batch = 1024 + HEADER_BYTES
    rig.ratio.value = 0.1
    for value in values:
        rig.append(0, value=value, key=None)
    rig.flush()
    rig.run()
    assert rig.table.counters["answers_split"] >= 1
    assert rig.log(0).records[1:] == values
    assert all(count < 12 for count in rig.counts(0))
    assert rig.pool.available_bytes == 3072


@pytest.mark.row("E25")
@pytest.mark.parametrize("good_percent", [1, 10, 25, 50, 75, 90, 99])
def test_few_batches_are_too_large_however_well_records_compress(good_percent: int) -> None:
    chance = random.Random(good_percent)
    rig = Rig(batch_bytes=1024, linger_ms=10, codec="gzip", leaders={0: 1})
    rig.logs[0].largest_batch = 1024 + HEADER_BYTES
    for _ in range(1000):
        good = chance.randrange(100) < good_percent
        rig.append(0, value=b"\x00" * 100 if good else chance.randbytes(100), key=None)
        if rig.ready().nodes:
            _ = rig.drain()
            while rig.wire:
                rig.answer()
    rig.run(10_000)
    splits = rig.table.counters["answers_split"]
    batches = len(rig.told)
    assert sum(rig.counts(0)) == 1000
    assert batches > 10
    assert splits < batches / 10


# --- slices ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("E29")
def test_slices_are_cut_where_batches_are_full_and_linger_counts_from_the_first_slice_of_each() -> None:
    rig = Rig(batch_bytes=16 * KV_BYTES, linger_ms=10)
    for count in (5, 1, 40):
        rig.hand(rig.slice_of(0, [KV] * count))
        rig.pass_ms(3)
    ready = rig.ready()
    assert ready.nodes == {1}
    assert [batch.count for _ in range(2) for _, batch in rig.drain()[1]] == [16, 16]
    assert rig.ready().delay_ms == 7, "the third batch begins with a record of the third slice"
    rig.pass_ms(7)
    assert [batch.count for _, batch in rig.drain()[1]] == [14]
    while rig.wire:
        rig.answer()
    assert in_batches(rig, 0) == [(1, 16), (17, 16), (33, 14)]


@pytest.mark.row("E30")
@pytest.mark.parametrize("epoch", [0, 1], ids=["hole", "row"])
def test_no_batch_crosses_a_stamp_row_or_a_hole(epoch: int) -> None:
    rig = Rig(leaders={1: 1})
    base = 13 if epoch else 2
    rows = [StampRow(PRODUCER_ID, 0, 0, 0), StampRow(PRODUCER_ID, epoch, 13, base)]
    _ = rig.grant(0, rows=rows, next_ordinal=10)
    rig.next[0] = 10
    rig.hand(rig.slice_of(0, [KV] * 5))
    rig.run()
    if epoch:
        assert in_batches(rig, 0) == [(10, 3), (13, 2)]
    else:
        assert in_batches(rig, 0) == [(10, 1), (13, 2)], "11 and 12 are left out"


@pytest.mark.row("E31")
def test_at_pace_first_one_record_goes_and_nothing_more_until_the_pace_opens() -> None:
    rig = Rig(leaders={1: 1})
    _ = rig.grant(0, pace=FIRST)
    rig.append(0, count=20)
    ((_, batch),) = rig.drain()[1]
    assert (batch.first, batch.count) == (0, 1)
    assert rig.ready().nodes == set()
    rig.answer()
    rig.pass_ms(60_000)
    assert rig.ready().nodes == set(), "nothing before PACE"
    rig.pace(OPEN, 0)
    rig.run()
    assert in_batches(rig, 0)[0] == (0, 1)
    assert sum(count for _, count in in_batches(rig, 0)) == 20
