"""Which partition records go to that name none and have no key (keys are hashed by the kernel).

One object per topic; random numbers are drawn from the function given. `PartitionChoices` is what the cluster looks like at the time,
and is made anew whenever that changes. Whoever appends tells the object what was appended and whether the partition has an
open batch with room; nothing here looks at queues by itself.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from ..metadata.cluster import Cluster, TopicView

BATCH_HEADER_BYTES: Final = 61


class LedPartition(NamedTuple):
    """A partition that has a leader: on which node, and in which rack that stands ("" where it has none)."""

    partition: int
    node: int
    rack: str = ""


class QueueSize(NamedTuple):
    """How much waits for a partition that has a leader. `excluded`: its node has been unavailable for too long."""

    partition: int
    batches: int
    excluded: bool = False


class PartitionLoadStats(NamedTuple):
    """Partitions, and running sums of how often each is to be chosen: a longer queue is chosen less often."""

    partitions: Sequence[int]
    sums: Sequence[int]


class PartitionChoices(NamedTuple):
    """A topic's partitions: how many there are, those to choose from, and the loads of these where they are known."""

    partition_count: int
    available: Sequence[int]
    loads: PartitionLoadStats | None = None


def leaders_of(cluster: Cluster, topic: TopicView) -> tuple[LedPartition, ...]:
    """The partitions of a topic whose leader is a node that is known."""
    nodes = cluster.nodes
    return tuple(
        LedPartition(index, found.leader, nodes[found.leader].rack)
        for index, found in sorted(topic.partitions.items())
        if found.leader in nodes
    )


def partition_load_stats(queues: Iterable[QueueSize]) -> PartitionLoadStats | None:
    """The table for a topic all of whose partitions with a leader are in `queues`; None: choose evenly.

    Exclusion is judged for every partition, an empty queue or not, and never leaves a trace in its neighbour.
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
    """What can be chosen from. `queues`: of every partition with a leader, None where they are not known. `rack`: partitions
    led in it are preferred as long as there is one that is not excluded; "" prefers none.
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
    # Who stays with one of these until it has had a batch's worth would wait as long as its node does.
    in_time = [partition for partition in available if partition not in late]
    return PartitionChoices(
        partition_count, in_time or available, None if queues is None else partition_load_stats(queues)
    )


def choose(choices: PartitionChoices, random31: int) -> int:
    """A partition, by load where loads are known, evenly otherwise; one without a leader only if none has one."""
    if choices.loads is not None:
        return choices.loads.partitions[bisect_right(choices.loads.sums, random31 % choices.loads.sums[-1])]
    return _even(choices, random31)


def _even(choices: PartitionChoices, number: int) -> int:
    if choices.available:
        return choices.available[number % len(choices.available)]
    return number % choices.partition_count


class KeylessPartitioner(Protocol):
    """How the partition of keyless records is chosen."""

    @property
    def partition(self) -> int:
        """Where the next one goes; `update` comes first."""
        ...

    @property
    def just_switched(self) -> bool:
        """Nothing was appended to it since it was chosen."""
        ...

    def update(self, choices: PartitionChoices) -> None:
        """What the cluster looks like now."""

    def allowance(self, *, all_batches_full: bool = False) -> int:
        """How many bytes may be appended before `appended` must be told; at least 1. It is to be asked again when
        `all_batches_full` changes."""
        ...

    def appended(self, size: int, *, all_batches_full: bool = False) -> None:
        """So many bytes went to `partition`; none: its last batch was closed, nothing more."""


class StickyPartitioner:
    """Stays with one partition until a batch's worth has gone there, so that batches fill up.

    `random31` gives numbers from 0 to 2^31 - 1. The producer counts by how much the estimated size of its batches grew, with
    their headers (BIP-5); the router whole frames, and one header for the first after a switch (BIP-9).
    """

    __slots__ = ("_choices", "_partition", "_produced", "_random31", "_sticky_bytes")

    def __init__(self, sticky_bytes: int, random31: Callable[[], int]) -> None:
        """`sticky_bytes`: size of a batch.

        Raises:
            ValueError: below 1.
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
        """What the cluster looks like now. A partition that is none to choose from any more is left at once if others are."""
        self._choices = choices
        lost = choices.available and self._partition not in choices.available
        if lost or not 0 <= self._partition < choices.partition_count:
            self._switch(choices)

    def allowance(self, *, all_batches_full: bool = False) -> int:
        return max(1, (1 if all_batches_full else 2) * self._sticky_bytes - self._produced)

    def appended(self, size: int, *, all_batches_full: bool = False) -> None:
        """Count, and move on when it was enough.

        While an open batch of the partition has room (`all_batches_full` false) it stays for up to twice as much: that spares
        a fraction of a batch where the linger is long. A size of 0 completes a switch that waited for the batch to be closed.
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
    """Each append goes to the next partition that has a leader, whatever waits there (RRP-1)."""

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
        """The next one's turn; nothing appended (0) ends none."""
        if size:
            self._turn = (self._turn + 1) & 0x7FFFFFFF
