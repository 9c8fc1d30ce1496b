"""Partition load statistics of the direct producer, for the adaptive choice of partitions (KIP-794, ADP-1, ADP-5)."""

from collections import Counter
from collections.abc import Callable

from ..accumulator.partitioners import QueueSize, StickyPartitioner, choices_of, leaders_of
from .record_accumulator import RecordAccumulator


def update_partition_load(rooms: RecordAccumulator, waited_s: Callable[[int], float]) -> None:
    """Update the sticky partitioners with the queue sizes. `waited_s`: for how many seconds a node could not be sent
    to.

    A partition's queue size is its number of unresolved chunks; most chunks become one batch.
    """
    settings = rooms.settings
    timeout_s = settings.partitioner_availability_timeout_ms / 1000
    rack = settings.client_rack if settings.partitioner_rack_aware else ""
    with rooms.condition:
        waiting = Counter(chunk.part for chunk in rooms.unsettled.values())
        for topic in rooms.topics.values():
            view = rooms.cluster.topic(topic.name)
            if view is None or not isinstance(topic.keyless, StickyPartitioner):
                continue
            leaders = leaders_of(rooms.cluster, view)
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
            topic.keyless.update(choices_of(topic.count, leaders, queues if weighs else None, rack))
            if topic.keyless.partition != topic.sticky:
                topic.sticky = topic.keyless.partition
                topic.allowance = topic.keyless.allowance()
                topic.sticky_bytes = 0
