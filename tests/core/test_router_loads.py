"""Where keyless records go, by what the shards' LOAD says and by what was not handed out to them."""

from dataclasses import dataclass, field

import crc32c
from penstock.daemon.metadata.partition_load import LOAD_MAX_AGE_S, PartitionLoads
from penstock.daemon.sessions.routing import PartitionQueueStats, Route, Routing, TopicFacts
from penstock.producer.accumulator.partitioners import LedPartition, StickyPartitioner
from penstock.wire.messages import NodeLoad, PartitionLoad, ShardLoad

from tests.fakes.lease_desk import TOPIC, TOPIC_ID, Desk

BATCH_BYTES = 200
"""Two slices of the desk."""
TIMEOUT_MS = 500


def node_load(node: int, *, send_blocked_ms: int = 0) -> NodeLoad:
    return NodeLoad(node, "ready", 0, 0, 0, 0, "", send_blocked_ms)


def part_load(number: int, batches: int, *, has_room: bool = False) -> PartitionLoad:
    return PartitionLoad(number, batches, has_room, "running", 0, "")


@dataclass
class Setting:
    """Topic `orders`: partition 0 on node 1 (seat 0), 1 on node 2 (seat 1), both written to and delivered."""

    desk: Desk = field(default_factory=Desk)
    draws: int = -1

    def __post_init__(self) -> None:
        desk = self.desk
        self.states = [desk.partition(0), desk.partition(1)]
        desk.up()
        self.loads = PartitionLoads(desk.leases, batch_bytes=BATCH_BYTES, availability_timeout_ms=TIMEOUT_MS)
        routing = Routing(
            desk.ledger,
            desk.log,  # type: ignore[arg-type]
            checksum=crc32c.crc32c,
            keyless=lambda: StickyPartitioner(BATCH_BYTES, self.draw),
            record_bytes_max=1_000,
            ids_of=lambda _topic: False,
        )
        leaders = (LedPartition(0, 1), LedPartition(1, 2))
        self.route: Route = routing.update_topic(TopicFacts(TOPIC, TOPIC_ID, 2, leaders, 1, None, None))
        for state in self.states:
            desk.push(state.number, 1)
        desk.settle()

    def draw(self) -> int:
        self.draws += 1
        return self.draws

    def tell(self, seat: int, node: NodeLoad, *parts: PartitionLoad) -> None:
        self.desk.say(seat, ShardLoad([node], list(parts), {}))

    def waiting(self) -> list[PartitionQueueStats]:
        self.loads.refresh(self.desk.now)
        return self.loads.queued_batches(self.route.leaders, self.route.states)

    def frames(self, count: int) -> list[int]:
        """How many of so many keyless frames, each worth two batches, go to either partition, by the loads of now."""
        self.route.set_load(self.waiting(), adaptive=True)
        self.route.count_keyless(10 * BATCH_BYTES)
        counts = [0, 0]
        for _ in range(count):
            counts[self.route.sticky.partition] += 1
            self.route.count_keyless(10 * BATCH_BYTES)
        return counts


def test_keyless_frames_leave_the_partitions_of_a_slow_node() -> None:
    world = Setting()
    world.tell(0, node_load(1))
    world.tell(1, node_load(2), part_load(world.states[1].number, 9))
    # 10 - 1 for what was handed out of partition 0, 10 - 9 for partition 1.
    assert world.frames(100) == [90, 10]


def test_they_leave_it_altogether_when_it_could_not_be_sent_to_for_too_long() -> None:
    world = Setting()
    world.tell(0, node_load(1))
    world.tell(1, node_load(2, send_blocked_ms=TIMEOUT_MS), part_load(world.states[1].number, 9))
    assert world.frames(100)[1] == 10
    world.tell(1, node_load(2, send_blocked_ms=TIMEOUT_MS + 1), part_load(world.states[1].number, 9))
    assert world.frames(100) == [100, 0]


def test_a_node_is_never_too_late_without_a_timeout() -> None:
    world = Setting()
    world.loads = PartitionLoads(world.desk.leases, batch_bytes=BATCH_BYTES, availability_timeout_ms=0)
    world.tell(1, node_load(2, send_blocked_ms=60_000))
    assert [each.node_unavailable for each in world.waiting()] == [False, False]


def test_what_was_not_handed_out_counts_in_batches_on_top_of_what_the_shard_told() -> None:
    world = Setting()
    world.tell(1, node_load(2), part_load(world.states[1].number, 3))
    assert [each.batches for each in world.waiting()] == [1, 3]
    for _ in range(5):
        world.desk.push(world.states[1].number, 1)
    assert [each.batches for each in world.waiting()] == [1, 6]
    # Handed out: it counts by its bytes until the shard says how many batches it makes of it.
    world.desk.settle()
    assert [each.batches for each in world.waiting()] == [1, 3]
    world.tell(1, node_load(2), part_load(world.states[1].number, 5))
    assert [each.batches for each in world.waiting()] == [1, 5]


def test_a_partition_is_full_when_its_shard_told_of_no_open_batch_with_room() -> None:
    world = Setting()
    assert [each.full for each in world.waiting()] == [False, False], "nothing was told yet"
    world.tell(0, node_load(1), part_load(world.states[0].number, 1, has_room=True))
    world.tell(1, node_load(2))
    assert [each.full for each in world.waiting()] == [False, True]
    world.tell(0, node_load(1), part_load(world.states[0].number, 2))
    assert [each.full for each in world.waiting()] == [True, True]


def test_what_a_shard_told_says_nothing_any_more_when_it_is_old() -> None:
    world = Setting()
    world.tell(1, node_load(2, send_blocked_ms=9_000), part_load(world.states[1].number, 7))
    assert world.waiting()[1] == PartitionQueueStats(1, 7, node_unavailable=True, full=True)
    world.desk.now += LOAD_MAX_AGE_S
    assert world.waiting()[1] == PartitionQueueStats(1, 7, node_unavailable=True, full=True)
    world.desk.now += 0.1
    for _ in range(2):
        assert world.waiting()[1] == PartitionQueueStats(1, 1, node_unavailable=False, full=False)
    # The same words again are news.
    world.tell(1, node_load(2, send_blocked_ms=9_000), part_load(world.states[1].number, 7))
    assert world.waiting()[1] == PartitionQueueStats(1, 7, node_unavailable=True, full=True)


def test_a_dead_shards_word_is_forgotten_and_its_backlog_is_not() -> None:
    world = Setting()
    for _ in range(3):
        world.desk.push(world.states[1].number, 1)
    world.desk.settle()
    world.tell(1, node_load(2, send_blocked_ms=9_000), part_load(world.states[1].number, 1))
    _ = world.waiting()
    world.desk.leases.shard_dead(1, [], world.desk.now, facts=True)
    assert world.waiting()[1] == PartitionQueueStats(1, 2, node_unavailable=False, full=False)


def test_a_sticky_partition_is_left_at_once_when_its_node_is_too_late() -> None:
    world = Setting()
    assert world.route.sticky.partition == 0
    world.tell(0, node_load(1, send_blocked_ms=TIMEOUT_MS + 1))
    world.tell(1, node_load(2))
    world.route.set_load(world.waiting(), adaptive=True)
    assert world.route.sticky.partition == 1
