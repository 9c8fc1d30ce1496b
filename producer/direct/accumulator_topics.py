"""The topics whose partitions are known: their leaders, memory budgets, and the partitions of records without one."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ...api.metadata import PartitionMetadata
from ...api.partitioning import Partitioner, choose_partition
from ...config.direct import DirectSettings
from ..accumulator.budgets import budgets_by_node
from ..accumulator.buffer_pool import ANY_NODE, BufferPool
from ..accumulator.partitioners import (
    KeylessPartitioner,
    LedPartition,
    QueueSize,
    StickyPartitioner,
    choices_of,
    leaders_of,
)
from ..kernel.chunks import AccumulatorPartition, AccumulatorTopic, Chunk
from ..metadata.cluster import Cluster, TopicView
from .environment import Environment

if TYPE_CHECKING:
    from ..kernel.chunks import ChunkOwner  # exists only in the .pyi


class AccumulatorTopics:
    """See the module. All methods but the application's partitioner run under the producer's lock."""

    def __init__(
        self,
        settings: DirectSettings,
        environment: Environment,
        pool: BufferPool,
        owner: "ChunkOwner",
        partitioner: Partitioner | None,
        keyless: Callable[[], KeylessPartitioner] | None,
    ) -> None:
        """`owner`: of the chunks of every partition; `keyless`: makes another partitioner than the sticky one."""
        self.by_name: Final[dict[str, AccumulatorTopic]] = {}
        """Shared with the kernel."""
        self.partitioner: Final = partitioner
        self.cluster = Cluster()
        """The snapshot that the topics follow; set by `cluster_changed`."""
        self._settings: Final = settings
        self._lock: Final = environment.condition
        self._pool: Final = pool
        self._owner: Final = owner
        self._rack: Final = settings.client_rack if settings.partitioner_rack_aware else ""
        self._make_keyless: Final = keyless or (
            lambda: StickyPartitioner(max(1, settings.batch_size), environment.random31)
        )
        self._parts: Final[dict[tuple[str, int], AccumulatorPartition]] = {}
        self._leader_nodes: set[int] = set()

    # --- metadata ----------------------------------------------------------------------------------------------------

    def cluster_changed(self, cluster: Cluster) -> None:
        """Apply a new metadata snapshot to the topics in use."""
        self.cluster = cluster
        for name in list(self.by_name):
            view = cluster.topic(name)
            if view is None or not view.partitions:
                # Its metadata expired after a long time without use: the next record waits for it again.
                del self.by_name[name]
            else:
                _ = self.update(name, view)
        self._update_budgets()

    def update(self, name: str, view: TopicView) -> AccumulatorTopic:
        """Create or update the topic from the metadata snapshot."""
        topic = self.by_name.get(name)
        if topic is None:
            topic = self.by_name[name] = AccumulatorTopic(name, self._make_keyless())
        self._add_parts(topic, view.partition_count)
        topic.count = view.partition_count
        leaders = leaders_of(self.cluster, view)
        led = {leader.partition: leader.node for leader in leaders}
        for part in topic.parts:
            part.node = led.get(part.index, ANY_NODE)
        if not self._leader_nodes.issuperset(led.values()):
            self._update_budgets()
        self._update_choices(topic, leaders)
        return topic

    def _add_parts(self, topic: AccumulatorTopic, count: int) -> None:
        """Give the topic this many partitions. They keep their ordinals even if the topic is forgotten."""
        for index in range(len(topic.parts), count):
            part = self._parts.get((topic.name, index))
            if part is None:
                part = self._parts[topic.name, index] = AccumulatorPartition(self._owner, topic.name, index)
                part.sealed = deque()
            topic.parts.append(part)

    def part_at(self, name: str, index: int) -> AccumulatorPartition:
        """The partition, which must have been created before."""
        return self._parts[name, index]

    def partitions_of(self, topic: str) -> list[PartitionMetadata]:
        """The topic's partitions in the metadata snapshot, empty for an unknown topic."""
        view = self.cluster.topic(topic)
        if view is None:
            return []
        return [
            PartitionMetadata(part.index, part.leader, part.replicas, part.isr) for part in view.partitions.values()
        ]

    # --- memory budgets ----------------------------------------------------------------------------------------------

    def _update_budgets(self) -> None:
        """Set a memory budget for each node that leads a partition of a topic in use. Chunks keep their node."""
        leading = {part.node for topic in self.by_name.values() for part in topic.parts} - {ANY_NODE}
        if leading != self._leader_nodes:
            self._leader_nodes = leading
            record_bytes_max = min(self._settings.max_request_size, self._settings.buffer_memory)
            self._pool.share_out(budgets_by_node(self._pool.total_bytes, record_bytes_max, leading))

    def charged_node(self, part: AccumulatorPartition) -> int:
        """The node whose budget pays for a chunk of the partition: the leader if it has one, else `ANY_NODE`."""
        return part.node if self._pool.has_budget(part.node) else ANY_NODE

    def leave_full_node(self, topic: AccumulatorTopic, size: int) -> bool:
        """Move keyless records to a node that has memory, until the next load update. False: no node has any."""
        pool, view = self._pool, self.cluster.topic(topic.name)
        adapts = self._settings.partitioner_adaptive_partitioning_enable and isinstance(
            topic.keyless, StickyPartitioner
        )
        if view is None or not adapts or pool.closed:
            return False
        if not any(pool.reservable_for(node) >= size for node in self._leader_nodes):
            return False
        with_room = [
            leader
            for leader in leaders_of(self.cluster, view)
            if leader.partition < topic.count
            and pool.reservable_for(self.charged_node(topic.parts[leader.partition])) >= size
        ]
        if with_room:
            self._update_choices(topic, with_room)
            topic.sticky_bytes = 0
        return bool(with_room)

    # --- the choice of partitions ------------------------------------------------------------------------------------

    def rotate(self, topic: AccumulatorTopic, full: bool) -> None:
        """Report `sticky_bytes` to the partitioner, and take its next choice. `full`: no chunk is open."""
        topic.keyless.appended(topic.sticky_bytes, all_batches_full=full)
        topic.sticky_bytes = 0
        _follow_partitioner(topic)

    def ask_partitioner(self, topic: AccumulatorTopic, key: bytes | None, value: bytes | None) -> int:
        """The partition that the application's partitioner chose, -1 if it left the choice to the producer.

        Raises:
            TypeError, ValueError: it did not return a partition of the topic.
        """
        assert self.partitioner is not None
        index = choose_partition(self.partitioner, topic.name, key, value, self.partitions_of(topic.name))
        if index is not None and index >= len(topic.parts):
            with self._lock:  # the topic was recreated with more partitions meanwhile
                self._add_parts(topic, index + 1)
        return -1 if index is None else index

    def ask_partitioner_for_each(
        self,
        topic: AccumulatorTopic,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        wanted: Sequence[int | None] | None,
    ) -> list[int | None]:
        """The same for columns. Records with an explicit partition keep it."""
        every: list[int | None] = [None] * len(values) if wanted is None else list(wanted)
        for i, index in enumerate(every):
            if index is None:
                answer = self.ask_partitioner(topic, None if keys is None else keys[i], values[i])
                every[i] = None if answer < 0 else answer
        return every

    def update_load(self, unsettled: Iterable[Chunk], waited_s: Callable[[int], float]) -> None:
        """Update the sticky partitioners with the queue sizes (KIP-794, ADP-1, ADP-5). `waited_s`: for how many seconds
        a node could not be sent to.

        A partition's queue size is its number of unresolved chunks; most chunks become one batch.
        """
        timeout_s = self._settings.partitioner_availability_timeout_ms / 1000
        waiting = Counter(chunk.part for chunk in unsettled)
        for topic in self.by_name.values():
            view = self.cluster.topic(topic.name)
            if view is None or not isinstance(topic.keyless, StickyPartitioner):
                continue
            leaders = leaders_of(self.cluster, view)
            queues = [
                QueueSize(
                    leader.partition,
                    waiting[topic.parts[leader.partition]],
                    excluded=0 < timeout_s < waited_s(leader.node),
                )
                for leader in leaders
                if leader.partition < topic.count
            ]
            weighs = all(part.next_ordinal or waiting[part] for part in topic.parts)
            weighs = weighs or any(queue.excluded for queue in queues)
            topic.keyless.update(choices_of(topic.count, leaders, queues if weighs else None, self._rack))
            if topic.keyless.partition != topic.sticky:
                topic.sticky_bytes = 0
                _follow_partitioner(topic)

    def _update_choices(self, topic: AccumulatorTopic, leaders: Sequence[LedPartition]) -> None:
        topic.keyless.update(choices_of(topic.count, leaders, None, self._rack))
        _follow_partitioner(topic)


def _follow_partitioner(topic: AccumulatorTopic) -> None:
    topic.sticky = topic.keyless.partition
    topic.allowance = topic.keyless.allowance()
