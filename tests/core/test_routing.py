"""What routing knows of topics, from brokers and from the spool."""

import crc32c
from penstock.daemon.core.entries import PartitionEntry
from penstock.daemon.core.ledger import Ledger
from penstock.daemon.core.routing import Route, Routing
from penstock.producer.core.partitioners import Queue
from penstock.wire.slices import crc_prefix

from .intake_world import FakeStore, facts


class Setting:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.store = FakeStore()
        self.draws = 0
        self.routing = self.made()

    def made(self) -> Routing:
        return Routing(
            self.ledger,
            self.store,
            checksum=crc32c.crc32c,
            draw=self.draw,
            sticky_bytes=1_000,
            record_bytes_max=5_000,
        )

    def draw(self) -> int:
        self.draws += 1
        return self.draws

    def learn(self, partitions: int = 3, **more: int | None) -> Route:
        return self.routing.learn(facts(partitions=partitions)._replace(**more))  # type: ignore[arg-type]


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
    assert route.weak
    assert 0 <= route.sticky.partition < 3


def test_the_topics_own_limit_counts_when_it_is_lower() -> None:
    world = Setting()
    assert world.learn().record_bytes_max == 5_000
    assert world.learn(message_bytes_max=800).record_bytes_max == 800
    assert world.learn(message_bytes_max=90_000).record_bytes_max == 5_000


def test_an_answer_is_weak_unless_two_replicas_must_have_it() -> None:
    world = Setting()
    assert not world.learn(in_sync_min=2, replicas_min=3).weak
    assert world.learn(in_sync_min=2, replicas_min=1).weak
    assert world.learn(in_sync_min=1, replicas_min=3).weak
    assert world.learn(in_sync_min=None, replicas_min=3).weak


def test_keyless_frames_stay_with_a_partition_for_a_batchs_worth() -> None:
    world = Setting()
    route = world.learn(3)
    first = route.sticky.partition
    route.keyless(1_000)
    assert route.sticky.partition == first
    route.keyless(1_000)
    assert route.sticky.partition != first


def test_they_leave_earlier_when_the_shard_says_that_no_open_batch_has_room() -> None:
    world = Setting()
    route = world.learn(3)
    first = route.sticky.partition
    route.loads([], frozenset({first}))
    route.keyless(1_000)
    assert route.sticky.partition != first


def test_loads_count_only_when_they_cover_every_partition_with_a_leader() -> None:
    world = Setting()
    route = world.learn(3)
    route.loads([Queue(0, 9), Queue(1, 9), Queue(2, 0)], frozenset())
    chosen = set()
    for _ in range(40):
        route.keyless(5_000)
        chosen.add(route.sticky.partition)
    assert 2 in chosen
    counts = [0, 0, 0]
    for _ in range(120):
        route.keyless(5_000)
        counts[route.sticky.partition] += 1
    assert counts[2] > counts[0] + counts[1]
    route.loads([Queue(0, 9)], frozenset())
    counts = [0, 0, 0]
    for _ in range(120):
        route.keyless(5_000)
        counts[route.sticky.partition] += 1
    assert max(counts) - min(counts) < 10


def test_a_topic_that_is_back_is_gone_no_more() -> None:
    world = Setting()
    route = world.learn()
    route.gone = "it was deleted"
    assert world.learn().gone is None
