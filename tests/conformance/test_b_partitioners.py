"""Rows of the choice of partitions: by key, sticky, by load, in turn."""

from collections.abc import Callable
from itertools import count

import crc32c
import pytest
from penstock.config.model import KafkaSettings, Settings
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.metadata.partition_load import PartitionLoads
from penstock.daemon.router.limits import intake_limits, keyless_choice
from penstock.daemon.sessions.routing import PartitionQueueStats, Route, Routing, TopicFacts
from penstock.producer.accumulator.partitioners import (
    LedPartition,
    PartitionChoices,
    QueueSize,
    RoundRobinPartitioner,
    StickyPartitioner,
    choices_of,
    choose,
    partition_load_stats,
)
from penstock.producer.kernel import frames as kernel
from penstock.wire.messages import Grant, NodeLoad, PartitionLoad, ShardLoad

from tests.core.intake_world import FakeStore, World, facts, send
from tests.fakes.lease_desk import Desk

MASK = 0x7FFFFFFF
VECTORS = {
    b"21": (-973932308, 0, 40),
    b"foobar": (-790332482, 6, 66),
    b"a-little-bit-long-string": (-985981536, 8, 12),
    b"a-little-bit-longer-string": (-1486304829, 11, 19),
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": (-58897971, 5, 77),
    b"abc": (479470107, 3, 7),
    b"": (275646681, 9, 81),
    b"key": (-1079937367, 1, 81),
    b"\x00": (375494588, 8, 88),
    b"\xff\xff\xff\xff": (644171429, 5, 29),
    b"kafka": (-798503068, 4, 80),
}
"""Hash as a signed number, and its partition among 12 and among 100."""


def in_order() -> Callable[[], int]:
    """Chance that counts 0, 1, 2, …"""
    numbers = count()
    return lambda: next(numbers)


def sticky(nbytes: int, partition_count: int, available: tuple[int, ...]) -> StickyPartitioner:
    made = StickyPartitioner(nbytes, in_order())
    made.update(PartitionChoices(partition_count, available))
    return made


@pytest.mark.row("B1")
@pytest.mark.parametrize("key", VECTORS)
@pytest.mark.fault("K25")
def test_murmur2_has_kafkas_values_and_picks_by_them_without_their_sign(key: bytes) -> None:
    signed, of_12, of_100 = VECTORS[key]
    assert kernel.murmur2(key) == signed & MASK
    assert ((signed & MASK) % 12, (signed & MASK) % 100) == (of_12, of_100)


@pytest.mark.row("B2")
@pytest.mark.parametrize("leaders", [(0, 1, 2), (0, 2), ()])
def test_a_key_goes_to_the_same_partition_every_time_whoever_leads_it(leaders: tuple[int, ...]) -> None:
    world = World()
    world.topics.known["t"] = facts()._replace(leaders=tuple(LedPartition(index, 1) for index in leaders))
    session = world.connect()
    for seq in range(5):
        assert world.offer(session, send(seq, values=[b"a", b"b"], keys=[b"key", b"key"]))
    chosen = [(world.ledger.by_number[piece.partition].index, piece.count) for piece in world.delivery.pushed]
    assert chosen == [(1067546281 % 3, 2)] * 5


@pytest.mark.row("B3")
def test_it_stays_with_a_partition_for_a_batchs_bytes_and_then_takes_another() -> None:
    topic_a = sticky(3, 3, (0, 1, 2))
    first = topic_a.partition
    for _ in range(2):
        topic_a.appended(1, all_batches_full=True)
        assert topic_a.partition == first
    topic_a.appended(1, all_batches_full=True)
    second = topic_a.partition
    assert second != first
    topic_b = sticky(1, 1, (0,))
    chosen = [topic_b.partition]
    for _ in range(10):
        topic_b.appended(1, all_batches_full=True)
        chosen.append(topic_b.partition)
        assert topic_b.just_switched
    assert chosen == [0] * 11


@pytest.mark.row("B4")
def test_a_partition_without_a_leader_is_chosen_only_where_none_has_one() -> None:
    topic_a, topic_b, topic_c = sticky(1, 3, (0, 2)), sticky(1, 2, (1,)), sticky(1, 1, ())
    chosen: list[set[int]] = [set(), set(), set()]
    first = topic_a.partition
    for _ in range(100):
        for topic, seen in zip((topic_a, topic_b, topic_c), chosen, strict=True):
            topic.appended(1, all_batches_full=True)
            seen.add(topic.partition)
    assert first in (0, 2)
    assert chosen == [{0, 2}, {1}, {0}]


@pytest.mark.row("B5")
def test_a_partition_is_chosen_the_more_the_shorter_its_queue() -> None:
    sizes = (5, 0, 3, 0, 1)
    table = partition_load_stats([QueueSize(index, size) for index, size in enumerate(sizes)])
    assert table is not None
    chance = in_order()
    choices = PartitionChoices(5, range(5), table)
    chosen = [choose(choices, chance()) for _ in range(2 * table.sums[-1])]
    assert [chosen.count(index) for index in range(5)] == [2, 12, 6, 12, 10]
    assert [2 * (6 - size) for size in sizes] == [2, 12, 6, 12, 10]


@pytest.mark.row("B6")
def test_a_batch_of_no_bytes_is_none_to_stay_for() -> None:
    with pytest.raises(ValueError, match="batch of 0 bytes"):
        _ = StickyPartitioner(0, in_order())
    assert sticky(1, 1, (0,)).partition == 0


@pytest.mark.row("B10")
def test_round_robin_passes_over_partitions_without_a_leader() -> None:
    turns = RoundRobinPartitioner()
    turns.update(choices_of(3, (LedPartition(2, 0), LedPartition(0, 0))))
    chosen: list[int] = []
    for _ in range(100):
        chosen.append(turns.partition)
        turns.appended(1)
    assert [chosen.count(index) for index in range(3)] == [50, 0, 50]
    turns.update(choices_of(3, ()))
    everywhere: set[int] = set()
    for _ in range(3):
        everywhere.add(turns.partition)
        turns.appended(1)
    assert everywhere == {0, 1, 2}


@pytest.mark.row("B11")
@pytest.mark.parametrize("keys", [None, [b"key"]])
def test_round_robin_counts_for_each_topic_and_looks_at_no_keys(keys: list[bytes] | None) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="broker:1", partitioner_class="round_robin"))
    world = World(keyless=keyless_choice(settings.kafka, in_order()), ignore_keys=intake_limits(settings).ignore_keys)
    world.topics.known |= {"a": facts("a"), "b": facts("b", 1)}
    session = world.connect()
    for turn in range(30):
        assert world.offer(session, send(2 * turn, topic="a", values=[b"v"], keys=keys))
        if turn % 5 == 0:
            assert world.offer(session, send(2 * turn + 1, topic="b", values=[b"v"], keys=keys))
    states = [world.ledger.by_number[piece.partition] for piece in world.delivery.pushed]
    chosen = [state.index for state in states if state.topic == "a"]
    assert chosen == [0, 1, 2] * 10
    assert [state.index for state in states if state.topic == "b"] == [0] * 6


@pytest.mark.row("B13")
@pytest.mark.parametrize(("full", "frames"), [(False, 3), (True, 2)])
def test_keyless_frames_stay_for_two_batches_or_for_one_when_no_open_batch_has_room(full: bool, frames: int) -> None:
    ledger = Ledger()
    keyless = StickyPartitioner(1024, in_order())
    routing = Routing(
        ledger, FakeStore(), checksum=crc32c.crc32c, keyless=lambda: keyless, record_bytes_max=10_000,
        ids_of=lambda _topic: False,
    )  # fmt: skip
    route: Route = routing.update_topic(
        TopicFacts("t", b"", 3, tuple(LedPartition(index, index) for index in range(3)), 1, None, None)
    )
    route.set_load(
        [PartitionQueueStats(index, 0, node_unavailable=False, full=full) for index in range(3)] if full else [],
        adaptive=True,
    )
    first = keyless.partition
    left: list[int] = []
    for _ in range(frames):
        assert keyless.partition == first
        left.append(keyless.allowance())
        route.count_keyless(700)
    assert keyless.partition != first
    # 761 after the first frame, 1461 after the second; the third makes 2161.
    assert left == [2048, 2048 - 761, 2048 - 1461][:frames]


@pytest.mark.row("B14")
def test_a_slow_nodes_queue_leaves_no_trace_in_the_next_partitions_frequency() -> None:
    desk = Desk()
    states = [desk.partition(index) for index in range(3)]
    desk.leases.set_producer_id(7)
    desk.cluster((0, 1, 5), (1, 2, 5), (2, 2, 5))
    for seat in range(2):
        desk.shard(seat)
    leaders = (LedPartition(0, 1), LedPartition(1, 2), LedPartition(2, 2))
    for state in states:
        _ = desk.push(state.number, 1)
    for _, message in desk.settle():
        if isinstance(message, Grant):
            desk.done(message, 0, 1)
    assert all(lease.backlog.handed_out_bytes == 0 for lease in desk.leases.all()), "all is delivered"
    slow = NodeLoad(1, "ready", 5, 5, 0, 0, "", 101)
    well = NodeLoad(2, "ready", 0, 0, 0, 0, "", 100)
    desk.say(0, ShardLoad([slow], [PartitionLoad(states[0].number, 5, False, "running", 0, "")], {}))
    desk.say(1, ShardLoad([well], [PartitionLoad(states[2].number, 2, False, "running", 0, "")], {}))
    loads = PartitionLoads(desk.leases, batch_bytes=1000, availability_timeout_ms=100)
    loads.refresh(desk.now)
    waiting = loads.queued_batches(leaders, states)
    assert waiting == [
        PartitionQueueStats(0, 5, node_unavailable=True, full=True),
        PartitionQueueStats(1, 0, node_unavailable=False, full=True),
        PartitionQueueStats(2, 2, node_unavailable=False, full=True),
    ]
    choices = choices_of(
        3, leaders, [QueueSize(each.partition, each.batches, each.node_unavailable) for each in waiting]
    )
    assert choices.loads == ([1, 2], [3, 4])
