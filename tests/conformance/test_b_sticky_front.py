"""Rows of the sticky choice where records are appended: the direct producer's front, and the accumulator behind it."""

import pytest
from penstock.producer.sender.node_latency import NodeLatencyStats
from penstock.wire.messages import SliceRef

from tests.conformance.rig import Rig
from tests.fakes.front_bench import FrontBench
from tests.fakes.segments import NOW_MS

NODES = {0: 1, 1: 1, 2: 2}


@pytest.mark.row("B7")
def test_the_partition_changes_when_its_batch_is_full_and_not_before() -> None:
    bench = FrontBench(NODES, **{"batch.size": 1024, "linger.ms": 0, "buffer.memory": 1 << 20})
    chosen: list[int] = []
    draws: list[int] = []
    for value in (b"value", *[bytes(1024)] * 4):
        chosen.append(bench.put(value))
        draws.append(bench.draws)
    assert chosen == [0, 0, 1, 2, 0]
    assert draws == [1, 1, 2, 3, 4]


@pytest.mark.row("B8")
def test_records_follow_the_queues_and_leave_a_node_that_takes_nothing() -> None:
    bench = FrontBench(NODES, **{"batch.size": 128, "partitioner.availability.timeout.ms": 100})
    value = bytes(128)
    queues = (1, 7, 2)
    for partition, size in enumerate(queues):
        for _ in range(size):
            _ = bench.put(value, partition=partition)
    times = {1: NodeLatencyStats(), 2: NodeLatencyStats()}

    def waited_s(node: int) -> float:
        return times[node].waited_s

    bench.front.update_partition_load(waited_s)
    _ = bench.put(value)
    chosen = [bench.put(value) for _ in range(2 * sum(8 - size for size in queues))]
    assert [chosen.count(partition) for partition in NODES] == [14, 2, 12]
    times[1].update(could_send=True, now=bench.now - 0.2)
    times[1].update(could_send=False, now=bench.now)
    bench.front.update_partition_load(waited_s)
    _ = bench.put(value)
    assert [bench.put(value) for _ in range(10)] == [2] * 10


@pytest.mark.row("B9")
@pytest.mark.parametrize("records", [512 * 2 // 3 // 32, 7], ids=["two thirds of values", "two thirds of rows"])
def test_lingering_batches_are_not_cut_into_fractions_by_a_change_of_partition(records: int) -> None:
    bench = FrontBench(NODES, **{"batch.size": 512, "linger.ms": 10})
    rig = Rig(batch_bytes=512, linger_ms=10)
    for partition in NODES:
        # What the rig sent in the beginning had the first ordinal.
        bench.front.topics.by_name["t"].parts[partition].next_ordinal = rig.next[partition]
    for _ in range(10):
        bench.now = rig.now
        for _ in range(records):
            _ = bench.put(bytes(32))
        bench.now += 0.010
        rig.pass_ms(10)
        for sealed in bench.front.drain(bench.now, all_chunks=False):
            data = bench.front.arena.read(sealed.segment, 0, sealed.length)
            assert isinstance(data, memoryview)
            at = len(rig.source.data)
            rig.source.data += data
            generation = rig.generation[sealed.index]
            rig.hand(
                SliceRef(
                    sealed.index,
                    generation,
                    1,
                    at,
                    sealed.length,
                    sealed.first,
                    sealed.count,
                    sealed.created_ms,
                    NOW_MS,
                )
            )
        ready = rig.ready()
        assert len(ready.nodes) == 1
        ((_, batch),) = rig.drain()[next(iter(ready.nodes))]
        assert 256 < batch.size < 512
        rig.answer()
