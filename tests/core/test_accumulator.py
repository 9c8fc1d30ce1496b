"""How slices become batches: order of reading, linger, memory, room, and what is given back."""

import pytest
from penstock.producer.accumulator.buffer_pool import BufferOwner
from penstock.producer.accumulator.partition_queue import CLOSED_MAX
from penstock.producer.accumulator.slice_accumulator import RUN_BYTES_MAX
from penstock.wire.messages import FlushPartitions, StampRow

from tests.fakes.shard_bench import BATCH_BYTES, PRODUCER_ID, TOPIC, ShardBench, value_of

FULL = 34


@pytest.fixture
def bench() -> ShardBench:
    return ShardBench()


def fill(bench: ShardBench) -> None:
    while bench.table.accumulator.has_unread:
        before = bench.source.reads
        bench.table.fill(now=bench.now)
        if bench.source.reads == before:
            return


def settled(bench: ShardBench, partition: int = 0) -> None:
    """A partition that may send."""
    bench.grant(partition)
    bench.tell()


# --- linger ----------------------------------------------------------------------------------------------------------


def test_a_part_full_batch_waits_for_linger_from_when_the_router_took_its_first_record() -> None:
    bench = ShardBench(linger_s=0.050)
    settled(bench)
    first = bench.ref(0, [value_of(0)])
    bench.now += 0.030
    second = bench.ref(0, [value_of(1)])
    bench.hand(first, second)
    assert bench.send() == []
    assert bench.table.ready_partitions.next_deadline() == pytest.approx(1000.050)
    bench.now = 1000.050
    (wire,) = bench.send()
    assert wire.copies[0][1:3] == (0, 2)


def test_a_full_batch_waits_for_nothing() -> None:
    bench = ShardBench(linger_s=60)
    settled(bench)
    bench.put(0, FULL + 1, size=50)
    (wire,) = bench.send()
    assert wire.copies[0][2] == FULL


def test_a_flush_ends_linger_for_what_was_handed_out_up_to_there() -> None:
    bench = ShardBench(linger_s=60)
    settled(bench)
    bench.put(0, 3)
    assert bench.send() == []
    bench.table.apply(FlushPartitions([(0, 2)]), now=bench.now)
    (wire,) = bench.send()
    assert wire.copies[0][2] == 3
    bench.answer()
    bench.put(0, 1)
    assert bench.send() == [], "the next one lingers again"


def test_want_of_memory_ends_linger_at_that_node_only() -> None:
    bench = ShardBench(linger_s=60, pool_bytes=4 * BATCH_BYTES)
    bench.budget = BATCH_BYTES
    for partition, node in ((0, 1), (1, 1), (2, 1), (3, 1), (4, 2)):
        bench.grant(partition, node=node)
    bench.tell()
    bench.put(4, 1)
    for partition in range(4):
        bench.put(partition, 1)
    fill(bench)
    sent = bench.send()
    assert {wire.flight.node for wire in sent} == {1}


# --- batches ---------------------------------------------------------------------------------------------------------


def test_one_slice_fills_several_batches_and_several_slices_fill_one(bench: ShardBench) -> None:
    settled(bench)
    bench.put(0, 2 * FULL + 5, size=50)
    bench.put(0, 5, size=50)
    bench.run()
    assert bench.log().batches == [FULL, FULL, 10]


def test_a_record_larger_than_a_batch_gets_a_batch_of_its_own(bench: ShardBench) -> None:
    settled(bench)
    bench.put(0, 2)
    bench.put(0, 1, size=5 * BATCH_BYTES)
    bench.put(0, 2)
    bench.run()
    assert bench.log().batches == [2, 1, 2]
    assert bench.ordinals() == list(range(5))
    assert bench.pool.lent_bytes == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_estimate_follows_what_batches_compress_to(codec: str) -> None:
    bench = ShardBench(codec=codec)  # type: ignore[arg-type]
    settled(bench)
    bench.put(0, 400, size=50)
    fill(bench)
    lease = bench.table.partitions[0]
    before = lease.queue.estimated_bytes()
    closed = lease.queue.close_next()
    assert closed is not None
    from penstock.producer.accumulator.batch import ProducerBatch

    batch = ProducerBatch(0, closed.builder.count, PRODUCER_ID, 0, 0)
    lease.queue.seal(closed, batch)
    assert batch.data is not None
    assert batch.size == len(batch.data)
    if codec == "none":
        assert before == batch.size
    else:
        assert batch.size < before


def test_a_hole_inside_a_slice_is_left_out(bench: ShardBench) -> None:
    bench.grant(rows=[StampRow(PRODUCER_ID, 0, 0, 0), StampRow(PRODUCER_ID, 1, 6, 6)])
    bench.put(0, 10)
    bench.run()
    assert bench.log().batches == [6, 4]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_neighbours_in_the_spool_are_read_at_once_whatever_their_partition(bench: ShardBench) -> None:
    for partition in range(4):
        settled(bench, partition)
    refs = [bench.ref(partition, [value_of(n) for n in range(5)]) for partition in range(4)]
    bench.hand(*reversed(refs))
    bench.table.fill(now=bench.now)
    assert bench.source.reads == 1


def test_slices_far_apart_are_read_one_by_one(bench: ShardBench) -> None:
    settled(bench, 0)
    settled(bench, 1)
    first = bench.ref(0, [value_of(0)])
    bench.source.data += bytes(20_000)
    second = bench.ref(1, [value_of(0)])
    bench.hand(first, second)
    bench.table.fill(now=bench.now)
    assert bench.source.reads == 2


def test_no_read_is_longer_than_its_limit() -> None:
    bench = ShardBench(batch_bytes=1 << 20, pool_bytes=64 << 20)
    bench.budget = 8 << 20
    for partition in range(6):
        settled(bench, partition)
    bench.hand(*(bench.ref(partition, [bytes(RUN_BYTES_MAX // 2)]) for partition in range(6)))
    fill(bench)
    assert bench.source.reads == 6


def test_a_partition_that_cannot_send_holds_no_more_than_its_share_and_goes_on_later(bench: ShardBench) -> None:
    settled(bench, 0)
    settled(bench, 1)
    for _ in range(30):
        bench.put(0, FULL, size=50)
    fill(bench)
    assert bench.table.partitions[0].queue.closed_count == CLOSED_MAX
    assert bench.pool.lent_bytes == CLOSED_MAX * BATCH_BYTES
    bench.put(1, 5)
    fill(bench)
    bench.run()
    assert bench.ordinals(1) == list(range(5))
    assert bench.ordinals(0) == list(range(30 * FULL))


def test_who_found_no_memory_goes_on_when_a_buffer_comes_back() -> None:
    bench = ShardBench(pool_bytes=3 * BATCH_BYTES)
    bench.budget = BATCH_BYTES
    for partition in range(8):
        settled(bench, partition)
    for _ in range(5):
        for partition in range(8):
            bench.put(partition, 20, size=50)
    assert bench.pool.lent_bytes <= 3 * BATCH_BYTES
    bench.run(1000)
    for partition in range(8):
        assert bench.ordinals(partition) == list(range(100))
    assert bench.pool.lent_bytes == 0
    assert bench.pool.exhausted_count > 0


# --- credit ----------------------------------------------------------------------------------------------------------


def test_credit_counts_what_is_encoded_dropped_or_in_cuts_already(bench: ShardBench) -> None:
    consumed = bench.table.accumulator.consumed_bytes
    settled(bench)
    refs = [bench.ref(0, [value_of(10 * n + i) for i in range(10)]) for n in range(3)]
    bench.hand(refs[0])
    fill(bench)
    assert consumed[1] == refs[0].length
    bench.hand(*refs[1:])
    bench.revoke()
    assert consumed[1] == sum(ref.length for ref in refs)


def test_credit_is_told_in_steps_and_never_falls(bench: ShardBench) -> None:
    settled(bench)
    (first,) = bench.table.credits()
    assert first.total_bytes == 2 << 20
    assert bench.table.credits() == []
    bench.put(0, 1)
    fill(bench)
    assert bench.table.credits() == [], "too little to be worth a message"
    bench.put(0, 3000, size=100)
    bench.run(1000)
    (second,) = bench.table.credits()
    assert second.total_bytes > first.total_bytes


def test_a_move_pays_back_what_was_charged_to_the_old_node(bench: ShardBench) -> None:
    settled(bench)
    ref = bench.ref(0, [value_of(0)])
    bench.hand(ref)
    bench.move(2, 1)
    bench.tell()
    bench.run()
    assert bench.table.accumulator.consumed_bytes == {1: ref.length, 2: 0}


def test_a_batch_that_compresses_well_takes_more_records_and_gives_the_memory_back_when_it_is_packed() -> None:
    bench = ShardBench(codec="zstd", linger_s=60)
    settled(bench)
    bench.table.accumulator.ratios.of(TOPIC, "zstd").value = 0.1
    bench.put(0, 150, size=50)
    fill(bench)
    assert bench.pool.lent_bytes > 4 * BATCH_BYTES, "one batch, still as long as its records"
    bench.table.apply(FlushPartitions([(0, 149)]), now=bench.now)
    (wire,) = bench.send()
    assert wire.copies[0][2] == 150
    assert bench.pool.lent_bytes == BATCH_BYTES
    assert len(wire.copies[0][3]) < BATCH_BYTES
    bench.run()
    assert bench.ordinals() == list(range(150))
    assert bench.pool.lent_bytes == 0


def test_a_batch_grows_only_while_there_is_room_for_others() -> None:
    bench = ShardBench(codec="zstd", linger_s=60, pool_bytes=3 * BATCH_BYTES)
    bench.budget = 3 * BATCH_BYTES
    settled(bench)
    bench.table.accumulator.ratios.of(TOPIC, "zstd").value = 0.1
    bench.put(0, 400, size=50)
    fill(bench)
    assert bench.pool.lent_bytes <= 3 * BATCH_BYTES
    bench.grant(1)
    bench.tell()
    bench.put(1, 1)
    bench.table.apply(FlushPartitions([(0, 399), (1, 0)]), now=bench.now)
    bench.run()
    assert bench.ordinals() == list(range(400))
    assert bench.ordinals(1) == [0]


def test_a_batch_that_was_begun_before_a_move_grows_by_the_room_of_the_node_it_was_begun_for() -> None:
    bench = ShardBench(codec="zstd", linger_s=60, pool_bytes=22 * BATCH_BYTES)
    settled(bench)
    bench.table.accumulator.ratios.of(TOPIC, "zstd").value = 0.1
    bench.put(0, 3, size=50)
    fill(bench)
    bench.move(2, 1)
    bench.tell()
    for node in (1, 2):
        bench.pool.set_budget(node, 11 * BATCH_BYTES)
    others = [bench.pool.allocate(1, BATCH_BYTES, BufferOwner(9, 1, 0)) for _ in range(10)]
    assert None not in others
    assert bench.pool.available_for(1) == 0 < bench.pool.available_for(2)
    bench.put(0, 150, size=50)
    fill(bench)
    bench.table.apply(FlushPartitions([(0, 152)]), now=bench.now)
    bench.run()
    assert bench.ordinals() == list(range(153))
