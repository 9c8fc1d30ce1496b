"""Chooses partitions for records with neither key nor explicit partition. (The kernel hashes keys.)

One partitioner per topic. Its random numbers come from the function passed in. The caller creates a new
`PartitionChoices` whenever the cluster changes. It also reports every append, and whether the partition's open batch
has room: the partitioners do not read queues themselves.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from ..metadata.cluster import Cluster, TopicView

BATCH_HEADER_BYTES: Final = 61


class LedPartition(NamedTuple):
    """A partition with a leader. `rack`: the rack of the leader's `node`, "" without one."""

    partition: int
    node: int
    rack: str = ""


class QueueSize(NamedTuple):
    """Batches queued for a partition with a leader. `excluded`: its node has been unavailable for too long."""

    partition: int
    batches: int
    excluded: bool = False


class PartitionLoadStats(NamedTuple):
    """Partitions and the cumulative sums of their weights: the longer the queue, the lower the weight."""

    partitions: Sequence[int]
    sums: Sequence[int]


class PartitionChoices(NamedTuple):
    """A topic's partition count, the partitions to choose from, and their loads if known."""

    partition_count: int
    available: Sequence[int]
    loads: PartitionLoadStats | None = None


def leaders_of(cluster: Cluster, topic: TopicView) -> tuple[LedPartition, ...]:
    """The partitions of a topic whose leader is a known node."""
    nodes = cluster.nodes
    return tuple(
        LedPartition(index, found.leader, nodes[found.leader].rack)
        for index, found in sorted(topic.partitions.items())
        if found.leader in nodes
    )


def partition_load_stats(queues: Iterable[QueueSize]) -> PartitionLoadStats | None:
    """The load table of a topic; None: choose evenly. `queues` must have every partition with a leader.

    Every partition can be excluded, even one with an empty queue; that does not change the weights of the others.
    """
    every = list(queues)
    kept = [queue for queue in every if not queue.excluded]
    if len(every) < 2 or not kept:
        return None
    longest = max(queue.batches for queue in kept)
    if len(kept) == len(every) and all(queue.batches == longest for queue in kept):
        return None
    sums = list(accumulate(longest + 1 - queue.batches for queue in kept))
    return PartitionLoadStats([queue.partition for queue in kept], sums)


def choices_of(
    partition_count: int, leaders: Sequence[LedPartition], queues: Sequence[QueueSize] | None = None, rack: str = ""
) -> PartitionChoices:
    """The choices for a topic. `queues`: of every partition with a leader, or None if unknown. `rack`: only partitions
    led in this rack are chosen, unless all of them are excluded or there are none; "" prefers no rack.
    """
    near = {leader.partition for leader in leaders if leader.rack == rack} if rack else set[int]()
    if near and queues is not None:
        close = [queue for queue in queues if queue.partition in near]
        if close and all(queue.excluded for queue in close):
            near = set()
        else:
            queues = close
    available = [leader.partition for leader in leaders if not near or leader.partition in near]
    late = {queue.partition for queue in queues or () if queue.excluded}
    # A sticky partitioner on a late partition would wait with it until its node is available again.
    in_time = [partition for partition in available if partition not in late]
    return PartitionChoices(
        partition_count, in_time or available, None if queues is None else partition_load_stats(queues)
    )


def choose(choices: PartitionChoices, random31: int) -> int:
    """Choose a partition, by load if known, evenly otherwise. Without `available` ones any partition may be chosen."""
    if choices.loads is not None:
        return choices.loads.partitions[bisect_right(choices.loads.sums, random31 % choices.loads.sums[-1])]
    return _even(choices, random31)


def _even(choices: PartitionChoices, number: int) -> int:
    if choices.available:
        return choices.available[number % len(choices.available)]
    return number % choices.partition_count


class KeylessPartitioner(Protocol):
    """Chooses the partitions of keyless records of one topic."""

    @property
    def partition(self) -> int:
        """The partition of the next record. Call `update` first."""
        ...

    @property
    def just_switched(self) -> bool:
        """Whether nothing was appended to `partition` since it was chosen."""
        ...

    def update(self, choices: PartitionChoices) -> None:
        """Use these choices from now on."""

    def allowance(self, *, all_batches_full: bool = False) -> int:
        """How many bytes may be appended before `appended` must be called; at least 1. Call it again when
        `all_batches_full` changes."""
        ...

    def appended(self, size: int, *, all_batches_full: bool = False) -> None:
        """Report `size` bytes appended to `partition`; 0: only its last batch was closed."""


class StickyPartitioner:
    """Stays with one partition until a batch's worth was appended to it, so that batches fill up.

    `random31` returns numbers from 0 to 2^31 - 1. The producer counts the growth of the estimated size of its batches,
    headers included (BIP-5). The router counts whole frames, plus one header for the first after a switch (BIP-9).
    """

    __slots__ = ("_choices", "_partition", "_produced", "_random31", "_sticky_bytes")

    def __init__(self, sticky_bytes: int, random31: Callable[[], int]) -> None:
        """`sticky_bytes`: size of a batch.

        Raises:
            ValueError: `sticky_bytes` is below 1.
        """
        if sticky_bytes < 1:
            raise ValueError(f"a batch of {sticky_bytes} bytes is none to stay for")
        self._sticky_bytes: Final = sticky_bytes
        self._random31: Final = random31
        self._choices: PartitionChoices | None = None
        self._partition = -1
        self._produced = 0

    @property
    def partition(self) -> int:
        assert self._partition >= 0, "nothing is known of the topic"
        return self._partition

    @property
    def just_switched(self) -> bool:
        return self._produced == 0

    def update(self, choices: PartitionChoices) -> None:
        """Use these choices from now on. Switches at once if `partition` is unavailable now and others are not."""
        self._choices = choices
        lost = choices.available and self._partition not in choices.available
        if lost or not 0 <= self._partition < choices.partition_count:
            self._switch(choices)

    def allowance(self, *, all_batches_full: bool = False) -> int:
        return max(1, (1 if all_batches_full else 2) * self._sticky_bytes - self._produced)

    def appended(self, size: int, *, all_batches_full: bool = False) -> None:
        """Count the bytes, and switch to another partition after a batch's worth.

        While the partition's open batch has room (`all_batches_full` false), the limit is two batches' worth: with a
        long linger this avoids part-full batches. A size of 0 completes a switch that waited for the batch to close.
        """
        assert self._choices is not None, "nothing is known of the topic"
        self._produced += size
        enough = self._sticky_bytes if all_batches_full else 2 * self._sticky_bytes
        if self._produced >= enough:
            self._switch(self._choices)

    def _switch(self, choices: PartitionChoices) -> None:
        self._partition = choose(choices, self._random31())
        self._produced = 0


class RoundRobinPartitioner:
    """Each append goes to the next partition that has a leader, regardless of its queue (RRP-1)."""

    __slots__ = ("_choices", "_turn")

    def __init__(self) -> None:
        self._choices: PartitionChoices | None = None
        self._turn = 0

    @property
    def partition(self) -> int:
        assert self._choices is not None, "nothing is known of the topic"
        return _even(self._choices, self._turn)

    @property
    def just_switched(self) -> bool:
        return True

    def update(self, choices: PartitionChoices) -> None:
        self._choices = choices

    def allowance(self, *, all_batches_full: bool = False) -> int:  # noqa: ARG002 - every append ends its turn
        return 1

    def appended(self, size: int, *, all_batches_full: bool = False) -> None:  # noqa: ARG002 - whatever it filled
        """Go to the next partition, unless `size` is 0."""
        if size:
            self._turn = (self._turn + 1) & 0x7FFFFFFF
