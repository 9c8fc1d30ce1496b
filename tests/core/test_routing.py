"""What routing knows of topics, from brokers and from the spool."""

import crc32c
from penstock.daemon.ledger.entries import PartitionEntry
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.sessions.routing import KEYLESS_LOOKS, PartitionQueueStats, Route, Routing
from penstock.producer.accumulator.partitioners import LedPartition, StickyPartitioner
from penstock.wire.slices import crc_prefix

from .intake_world import FakeStore, facts


class Setting:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.store = FakeStore()
        self.draws = 0
        self.routing = self.made()

    def made(self, rack: str = "") -> Routing:
        return Routing(
            self.ledger,
            self.store,
            checksum=crc32c.crc32c,
            keyless=lambda: StickyPartitioner(1_000, self.draw),
            record_bytes_max=5_000,
            ids_of=lambda _topic: False,
            rack=rack,
        )

    def draw(self) -> int:
        self.draws += 1
        return self.draws

    def learn(self, partitions: int = 3, **more: int | None) -> Route:
        return self.routing.update_topic(facts(partitions=partitions)._replace(**more))  # type: ignore[arg-type]


def test_nothing_is_found_of_a_topic_nobody_spoke_of() -> None:
    assert Setting().routing.find("t") is None


def test_partitions_are_numbered_once_and_more_come_when_the_topic_grows() -> None:
    world = Setting()
    world.learn(2)
    world.learn(2)
    route = world.learn(4)
    assert route.partition_count == 4
    assert [entry.index for entry in world.store.entries if isinstance(entry, PartitionEntry)] == [0, 1, 2, 3]
    assert route.checksums == [crc32c.crc32c(crc_prefix("t", index)) for index in range(4)]


def test_a_topic_never_shrinks() -> None:
    world = Setting()
    world.learn(4)
    assert world.learn(2).partition_count == 4


def test_a_restarted_router_knows_the_partitions_from_the_spool() -> None:
    world = Setting()
    world.learn(3)
    again = world.made()
    route = again.find("t")
    assert route is not None
    assert [state.index for state in route.states] == [0, 1, 2]
    assert route.single_replica
    assert 0 <= route.sticky.partition < 3


def test_the_topics_own_limit_counts_when_it_is_lower() -> None:
    world = Setting()
    assert world.learn().record_bytes_max == 5_000
    assert world.learn(message_bytes_max=800).record_bytes_max == 800
    assert world.learn(message_bytes_max=90_000).record_bytes_max == 5_000


def test_an_answer_is_weak_unless_two_replicas_must_have_it() -> None:
    world = Setting()
    assert not world.learn(in_sync_min=2, replicas_min=3).single_replica
    assert world.learn(in_sync_min=2, replicas_min=1).single_replica
    assert world.learn(in_sync_min=1, replicas_min=3).single_replica
    assert world.learn(in_sync_min=None, replicas_min=3).single_replica


def test_keyless_frames_stay_with_a_partition_for_a_batchs_worth() -> None:
    world = Setting()
    route = world.learn(3)
    first = route.sticky.partition
    route.count_keyless(1_000)
    assert route.sticky.partition == first
    route.count_keyless(1_000)
    assert route.sticky.partition != first


def waiting(*batches: int, late: int = -1, full: bool = False) -> list[PartitionQueueStats]:
    return [
        PartitionQueueStats(index, size, node_unavailable=index == late, full=full)
        for index, size in enumerate(batches)
    ]


def written(route: Route) -> None:
    """Every partition has had a record."""
    for state in route.states:
        state.next_ordinal = 1


def chosen(route: Route, frames: int) -> list[int]:
    """How many of so many frames, each a batch's worth and more, every partition got."""
    counts = [0] * route.partition_count
    for _ in range(frames):
        counts[route.sticky.partition] += 1
        route.count_keyless(5_000)
    return counts


def test_they_leave_earlier_when_the_shard_says_that_no_open_batch_has_room() -> None:
    world = Setting()
    route = world.learn(3)
    first = route.sticky.partition
    route.set_load(waiting(0, 0, 0, full=True), adaptive=True)
    route.count_keyless(1_000)
    assert route.sticky.partition != first


def test_frames_leave_partitions_where_much_waits() -> None:
    world = Setting()
    route = world.learn(3)
    written(route)
    route.set_load(waiting(9, 9, 0), adaptive=True)
    route.count_keyless(5_000)
    assert chosen(route, 120) == [10, 10, 100]


def test_loads_count_for_nothing_where_they_are_not_wanted() -> None:
    world = Setting()
    route = world.learn(3)
    written(route)
    route.set_load(waiting(9, 9, 0), adaptive=False)
    route.count_keyless(5_000)
    assert chosen(route, 120) == [40, 40, 40]


def test_loads_count_only_once_every_partition_has_been_written_to() -> None:
    world = Setting()
    route = world.learn(3)
    written(route)
    route.states[1].next_ordinal = 0
    route.set_load(waiting(9, 9, 0), adaptive=True)
    route.count_keyless(5_000)
    assert chosen(route, 120) == [40, 40, 40]


def test_a_partition_whose_node_is_too_late_gets_nothing() -> None:
    world = Setting()
    route = world.learn(3)
    written(route)
    route.set_load(waiting(0, 0, 0, late=1), adaptive=True)
    route.count_keyless(5_000)
    assert chosen(route, 120) == [60, 0, 60]


def test_frames_leave_a_node_that_is_too_late_at_once_and_before_every_partition_was_written_to() -> None:
    world = Setting()
    route = world.learn(3)
    now = route.sticky.partition
    route.set_load(waiting(0, 0, 0, late=now), adaptive=True)
    assert route.sticky.partition != now
    assert chosen(route, 200)[now] == 0


def test_leaders_in_the_own_rack_are_preferred_while_one_of_them_takes_records() -> None:
    world = Setting()
    leaders = tuple(LedPartition(index, index, rack) for index, rack in enumerate(("a", "b", "b", "c")))
    route = world.made(rack="b").update_topic(facts(partitions=4)._replace(leaders=leaders))
    written(route)
    assert chosen(route, 60) == [0, 30, 30, 0]
    route.set_load(waiting(0, 5, 1, 0), adaptive=True)
    route.count_keyless(5_000)
    assert chosen(route, 60) == [0, 10, 50, 0]
    late = [PartitionQueueStats(index, 0, node_unavailable=index in (1, 2), full=False) for index in range(4)]
    route.set_load(late, adaptive=True)
    route.count_keyless(5_000)
    assert chosen(route, 60) == [30, 0, 0, 30]


def test_a_rack_without_leaders_leaves_the_choice_among_all() -> None:
    world = Setting()
    route = world.made(rack="z").update_topic(facts(partitions=3))
    assert chosen(route, 60) == [20, 20, 20]


def test_loads_are_looked_at_for_a_while_after_a_keyless_frame_and_then_forgotten() -> None:
    world = Setting()
    route = world.learn(3)
    written(route)
    looks: list[int] = []

    def look() -> list[PartitionQueueStats]:
        looks.append(1)
        return waiting(0, 0, 0, full=True)

    route.update_load(look, adaptive=True)
    assert (len(looks), route.full) == (0, frozenset())
    route.count_keyless(10)
    for _ in range(KEYLESS_LOOKS - 1):
        route.update_load(look, adaptive=True)
        assert route.full == {0, 1, 2}
    for _ in range(2):
        route.update_load(look, adaptive=True)
    assert (len(looks), route.full) == (KEYLESS_LOOKS - 1, frozenset())
    route.count_keyless(10)
    route.update_load(look, adaptive=True)
    assert route.full == {0, 1, 2}


def test_a_topic_that_is_back_is_gone_no_more() -> None:
    world = Setting()
    route = world.learn()
    route.missing_error = "it was deleted"
    assert world.learn().missing_error is None
