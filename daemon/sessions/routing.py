"""Routes by topic: partition count, maximum record size and sticky partition of each topic that frames go to.

The ledger numbers all partitions of a topic when its first frame arrives. A restarted router therefore knows the
partition count and accepts frames for the topic while Kafka is unreachable.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...producer.accumulator.partitioners import (
    BATCH_HEADER_BYTES,
    KeylessPartitioner,
    LedPartition,
    QueueSize,
    choices_of,
)
from ...wire import slices
from ...wire.record_ids import ADDED_BYTES_MAX
from ..ledger.partition_state import Ledger, LedgerPartition
from ..ledger.slices import EntryLog

KEYLESS_LOOKS: Final = 30
"""After this many load updates without a keyless frame, a topic's loads are dropped: with thousands of partitions one
update costs milliseconds."""


class TopicFacts(NamedTuple):
    """Broker metadata of a topic. None: unknown. `leaders`: of the partitions that have a leader."""

    topic: str
    topic_id: bytes
    partition_count: int
    leaders: tuple[LedPartition, ...]
    replicas_min: int
    message_bytes_max: int | None
    in_sync_min: int | None


class PartitionQueueStats(NamedTuple):
    """The queue of a partition that has a leader. `node_unavailable`: its node could not be sent to for longer than
    `partitioner.availability.timeout.ms`; `full`: its shard reported lately that no open batch has room (BIP-9)."""

    partition: int
    batches: int
    node_unavailable: bool
    full: bool


@dataclass(slots=True)
class Route:
    """One topic. `states` and `checksums` (of each partition's prefix) are indexed by partition. `sticky`: chooses the
    partition of records without a key; `rack`: the rack whose leaders are preferred, "" for any."""

    topic: str
    states: list[LedgerPartition]
    checksums: list[int]
    sticky: KeylessPartitioner
    record_bytes_max: int
    rack: str = ""
    leaders: tuple[LedPartition, ...] = ()
    full: frozenset[int] = frozenset()
    load_updates_left: int = 0
    """How many more load updates to run; every keyless frame resets it."""
    single_replica: bool = True
    missing_error: str | None = None
    """The error of a live broker that no longer knows the topic."""
    ids: bool = False
    """Its records carry the id header, so size limits reserve space for it."""
    idle: bool = False
    """Its metadata is no longer refreshed, because no frame has arrived for too long."""

    @property
    def partition_count(self) -> int:
        return len(self.states)

    def count_keyless(self, nbytes: int) -> None:
        """Count the bytes of one frame's keyless records, which went to the sticky partition."""
        self.load_updates_left = KEYLESS_LOOKS
        sticky = self.sticky
        size = nbytes + BATCH_HEADER_BYTES if sticky.just_switched else nbytes
        sticky.appended(size, all_batches_full=sticky.partition in self.full)

    def set_leaders(self, leaders: tuple[LedPartition, ...]) -> None:
        """Set the partition leaders. Loads must be set again after it."""
        self.leaders = leaders
        self.sticky.update(choices_of(self.partition_count, leaders, rack=self.rack))

    def update_load(self, waiting: Callable[[], Sequence[PartitionQueueStats]], *, adaptive: bool) -> None:
        """Apply the current queues, if keyless frames arrived lately; the last update removes all loads."""
        if self.load_updates_left:
            self.load_updates_left -= 1
            self.set_load(waiting() if self.load_updates_left else (), adaptive=adaptive)

    def set_load(self, waiting: Sequence[PartitionQueueStats], *, adaptive: bool) -> None:
        """Apply the known queues. They influence the choice once every partition has been written to (ADP-1). An
        unavailable node is excluded even before that."""
        self.full = frozenset(each.partition for each in waiting if each.full)
        queues: list[QueueSize] | None = None
        weighs = all(state.next_ordinal for state in self.states) or any(each.node_unavailable for each in waiting)
        if adaptive and weighs and len(waiting) == len(self.leaders):
            queues = [QueueSize(each.partition, each.batches, each.node_unavailable) for each in waiting]
        self.sticky.update(choices_of(self.partition_count, self.leaders, queues, self.rack))


class Routing:
    """Routes by topic."""

    def __init__(
        self,
        ledger: Ledger,
        log: EntryLog,
        *,
        checksum: Callable[[bytes, int], int],
        keyless: Callable[[], KeylessPartitioner],
        record_bytes_max: int,
        ids_of: Callable[[str], bool],
        rack: str = "",
    ) -> None:
        """`keyless` creates one topic's partitioner; `ids_of`: whether a topic's records carry the id header."""
        self._ledger = ledger
        self._log = log
        self._checksum = checksum
        self._keyless = keyless
        self._record_bytes_max = record_bytes_max
        self._ids_of = ids_of
        self._rack = rack
        self._routes: dict[str, Route] = {}
        self._recover()

    def find(self, topic: str) -> Route | None:
        """The route of a topic, or None if the topic is unknown."""
        return self._routes.get(topic)

    def update_topic(self, facts: TopicFacts) -> Route:
        """Apply broker metadata. A topic never shrinks: numbered partitions keep their records."""
        route = self._routes.get(facts.topic)
        if route is None:
            route = self._routes[facts.topic] = self._new(facts.topic)
        for index in range(route.partition_count, facts.partition_count):
            entry = self._ledger.new_partition_entry(facts.topic, facts.topic_id, index)
            _ = self._log.append(entry)
            self._ledger.apply(entry)
            self._add(route, self._ledger.by_topic_partition[facts.topic, index])
        if facts.message_bytes_max is not None:
            route.record_bytes_max = self._record_bytes_max_of(
                min(self._record_bytes_max, facts.message_bytes_max), ids=route.ids
            )
        route.missing_error = None
        in_sync = facts.in_sync_min or 0
        route.single_replica = min(in_sync, facts.replicas_min) < 2
        route.set_leaders(facts.leaders)
        return route

    def routes(self) -> Iterable[Route]:
        return self._routes.values()

    def _recover(self) -> None:
        """Create the routes of the topics that the spool knows."""
        places = sorted(self._ledger.by_topic_partition)
        for topic, index in places:
            route = self._routes.get(topic)
            if route is None:
                route = self._routes[topic] = self._new(topic)
            assert index == route.partition_count, "a topic's partitions are numbered without gaps"
            self._add(route, self._ledger.by_topic_partition[topic, index])
        for route in self._routes.values():
            route.set_leaders(())

    def _new(self, topic: str) -> Route:
        ids = self._ids_of(topic)
        return Route(
            topic,
            [],
            [],
            self._keyless(),
            self._record_bytes_max_of(self._record_bytes_max, ids=ids),
            self._rack,
            ids=ids,
        )

    @staticmethod
    def _record_bytes_max_of(record_bytes_max: int, *, ids: bool) -> int:
        """The record size a client may send, so that an accepted record also fits with the id header."""
        return max(record_bytes_max - ADDED_BYTES_MAX, 0) if ids else record_bytes_max

    def _add(self, route: Route, state: LedgerPartition) -> None:
        route.states.append(state)
        route.checksums.append(self._checksum(slices.crc_prefix(route.topic, state.index), 0))
