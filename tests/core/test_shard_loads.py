"""What a shard tells of its partitions in LOAD."""

import pytest
from penstock.producer.sender.modes import SendMode
from penstock.wire.messages import PartitionLoad

from tests.fakes.shard_bench import ShardBench

RECORDS_OF_A_BATCH = 34


@pytest.fixture
def bench() -> ShardBench:
    made = ShardBench(linger_s=10.0)
    made.grant()
    made.put(0, RECORDS_OF_A_BATCH + 1, size=50)
    _ = made.send()
    made.answer()
    made.now += 10.0
    made.run()
    assert made.mode() is SendMode.RUNNING
    return made


def told(bench: ShardBench) -> PartitionLoad | None:
    return next(iter(bench.table.partition_loads()), None)


def test_a_partition_with_nothing_to_send_is_left_out(bench: ShardBench) -> None:
    assert told(bench) is None


def test_a_batch_that_is_being_filled_counts_and_has_room(bench: ShardBench) -> None:
    bench.put(0, 1)
    assert bench.send() == []
    load = told(bench)
    assert load is not None
    assert (load.queued_batches, load.open_batch_has_room) == (1, True)


def test_batches_without_an_answer_count_and_have_no_room(bench: ShardBench) -> None:
    bench.put(0, 1)
    bench.now += 10.0
    assert len(bench.send()) == 1
    load = told(bench)
    assert load is not None
    assert (load.queued_batches, load.open_batch_has_room) == (1, False)


def test_full_batches_and_the_one_behind_them_count_alike(bench: ShardBench) -> None:
    bench.put(0, 2 * RECORDS_OF_A_BATCH + 1, size=50)
    assert bench.send(in_flight_max=1)
    load = told(bench)
    assert load is not None
    assert (load.queued_batches, load.open_batch_has_room) == (3, True)
