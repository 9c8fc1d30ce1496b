"""What is known of the topics that frames go to: how many partitions, how large a record may be, which partition is sticky.

Partitions are numbered in the ledger, all of a topic at once, when its first frame comes: so a restarted router knows the
count and takes frames for it while Kafka is unreachable.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...producer.core.partitioners import LoadTable, Queue, Sticky, load_table
from ...wire import slices
from .ledger import Ledger, PartitionState
from .model import Log


class TopicFacts(NamedTuple):
    """What brokers said of a topic. None: not known. `available`: partitions that have a leader."""

    topic: str
    topic_id: bytes
    partition_count: int
    available: tuple[int, ...]
    replicas_min: int
    message_bytes_max: int | None
    in_sync_min: int | None


@dataclass(slots=True)
class Route:
    """One topic. `states` and `checksums` (of each partition's prefix) by partition index. `full`: partitions whose shard said
    lately that no open batch has room (BIP-9)."""

    topic: str
    states: list[PartitionState]
    checksums: list[int]
    sticky: Sticky
    record_bytes_max: int
    available: tuple[int, ...] = ()
    full: frozenset[int] = frozenset()
    weak: bool = True
    gone: str | None = None
    """What a live broker said when it did not know the topic any more."""

    @property
    def partition_count(self) -> int:
        return len(self.states)

    def keyless(self, nbytes: int) -> None:
        """So many record bytes went to the sticky partition."""
        self.sticky.appended(nbytes, all_batches_full=self.sticky.partition in self.full)

    def loads(self, queues: list[Queue], full: frozenset[int]) -> None:
        """What the shards reported: used while it covers every partition that has a leader (ADP-1)."""
        loads: LoadTable | None = None
        if len(queues) >= len(self.available) > 0:
            loads = load_table(queues)
        self.full = full
        self.sticky.learn(self.partition_count, self.available, loads)


class Routing:
    """Routes by topic."""

    def __init__(
        self,
        ledger: Ledger,
        log: Log,
        *,
        checksum: Callable[[bytes, int], int],
        draw: Callable[[], int],
        sticky_bytes: int,
        record_bytes_max: int,
    ) -> None:
        self._ledger = ledger
        self._log = log
        self._checksum = checksum
        self._draw = draw
        self._sticky_bytes = sticky_bytes
        self._record_bytes_max = record_bytes_max
        self._routes: dict[str, Route] = {}
        self._recover()

    def find(self, topic: str) -> Route | None:
        """None: nothing is known of the topic."""
        return self._routes.get(topic)

    def learn(self, facts: TopicFacts) -> Route:
        """Brokers answered. A topic never shrinks here: partitions that are numbered keep their records."""
        route = self._routes.get(facts.topic)
        if route is None:
            route = self._routes[facts.topic] = self._new(facts.topic)
        for index in range(route.partition_count, facts.partition_count):
            entry = self._ledger.new_partition_entry(facts.topic, facts.topic_id, index)
            _ = self._log.append(entry)
            self._ledger.apply(entry)
            self._add(route, self._ledger.by_place[facts.topic, index])
        if facts.message_bytes_max is not None:
            route.record_bytes_max = min(self._record_bytes_max, facts.message_bytes_max)
        route.gone = None
        in_sync = facts.in_sync_min or 0
        route.weak = min(in_sync, facts.replicas_min) < 2
        route.available = facts.available
        route.sticky.learn(route.partition_count, facts.available)
        return route

    def routes(self) -> Iterable[Route]:
        return self._routes.values()

    def _recover(self) -> None:
        """Routes of the topics that the spool knows."""
        places = sorted(self._ledger.by_place)
        for topic, index in places:
            route = self._routes.get(topic)
            if route is None:
                route = self._routes[topic] = self._new(topic)
            assert index == route.partition_count, "a topic's partitions are numbered without gaps"
            self._add(route, self._ledger.by_place[topic, index])
        for route in self._routes.values():
            route.sticky.learn(route.partition_count, ())

    def _new(self, topic: str) -> Route:
        sticky = Sticky(self._sticky_bytes, self._draw)
        return Route(topic, [], [], sticky, self._record_bytes_max)

    def _add(self, route: Route, state: PartitionState) -> None:
        route.states.append(state)
        route.checksums.append(self._checksum(slices.crc_prefix(route.topic, state.index), 0))
